"""Transformer (Vaswani et al. 2017) and Universal Transformer (Dehghani et al. 2019) as sentence encoders.

The paper copies its figures for them and gives no configuration; these are ours, for a sanity row. Both read
a trained CLS vector and the leaves, add sinusoidal positions, and give what has become of CLS.
"""

import math
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from beamtree.parts.leaf import LeafTransform
from beamtree.pytorch.checks import looks_at_values
from beamtree.pytorch.derivatives import refuse_forward_mode
from beamtree.pytorch.precision import layer_norm_wide
from beamtree.pytorch.tracing import is_exporting


class _ClsEncoder(nn.Module):
    """What the two share: leaves behind a CLS vector, one kind of layer, and the refusal of trees."""

    builds_trees = False

    def __init__(
        self,
        d_model: int,
        *,
        input_size: int | None,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.d_model = d_model
        self.input_size = d_model if input_size is None else input_size
        self.leaf = LeafTransform(self.input_size, d_model, device=device, dtype=dtype)
        self.cls = nn.Parameter(torch.randn(d_model, device=device, dtype=dtype))
        self.norm = nn.LayerNorm(d_model, device=device, dtype=dtype)

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None, need_trees: bool = False) -> Tensor:
        if need_trees:
            raise ValueError(f"{type(self).__name__} builds no tree: call it without need_trees")
        leaves, _ = self.leaf.read(x, key_padding_mask)
        B, n, _ = leaves.shape
        if key_padding_mask is None:
            is_padding = torch.zeros(B, n + 1, dtype=torch.bool, device=x.device)
        else:
            is_padding = nn.functional.pad(key_padding_mask, (1, 0), value=False)
        tokens = torch.cat((self.cls.expand(B, 1, -1), leaves), 1)  # (B, n + 1, d)
        return self.contextualize(tokens, is_padding)

    def contextualize(self, tokens: Tensor, is_padding: Tensor) -> Tensor:
        raise NotImplementedError


class TransformerSentenceEncoder(_ClsEncoder):
    """(B, n, input_size) -> (B, d): `layers` unshared pre-norm layers with GELU and a final norm.

    The row of the tables: d = 128, 8 heads, feed-forward width 4d = 512, 6 layers, dropout 0.1. `heads` left
    open is 8, or the next smaller number that divides d.
    """

    def __init__(
        self,
        d_model: int,
        *,
        input_size: int | None = None,
        heads: int | None = None,
        layers: int = 6,
        hidden_size: int | None = None,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(d_model, input_size=input_size, device=device, dtype=dtype)
        self.layers = nn.ModuleList(
            _layer(d_model, heads, hidden_size, dropout, device, dtype) for _ in range(layers)
        )
        self.dropout = nn.Dropout(dropout)

    def contextualize(self, tokens: Tensor, is_padding: Tensor) -> Tensor:
        tokens = self.dropout(tokens + sinusoids(torch.arange(tokens.shape[1], device=tokens.device), tokens))
        for layer in self.layers:
            tokens = _attend(layer, tokens, is_padding)
        return layer_norm_wide(tokens[:, 0], self.norm)


class UniversalTransformer(_ClsEncoder):
    """(B, n, input_size) -> (B, d): one layer applied again and again, each position for as long as it asks.

    Before each step the signals of position and step are added. Adaptive computation time (Graves 2016): a
    position halts once its halting probabilities sum to more than `threshold`, after `steps` steps at the
    latest; its result is the average of its states by these probabilities, the last by the remainder to one.
    Halted positions can still be attended to. In training the ponder cost, `ponder_weight` times the mean of
    steps + remainder over CLS and real tokens, enters through its gradient: a backward pass through the
    sentence adds it, with weight one whatever the loss.

    The row of the tables: d = 128, 8 heads, feed-forward width 4d = 512, threshold 0.99, at most 12 steps,
    ponder weight 1e-3, dropout 0.1; the layer is that of `TransformerSentenceEncoder`.
    """

    def __init__(
        self,
        d_model: int,
        *,
        input_size: int | None = None,
        heads: int | None = None,
        steps: int = 12,
        hidden_size: int | None = None,
        threshold: float = 0.99,
        ponder_weight: float = 1e-3,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(d_model, input_size=input_size, device=device, dtype=dtype)
        if steps < 1:
            raise ValueError(f"steps must be at least 1, got {steps}")
        if not 0.0 < threshold < 1.0:
            raise ValueError(f"threshold must lie in (0, 1), got {threshold}")
        self.steps, self.threshold, self.ponder_weight = steps, threshold, ponder_weight
        self.layer = _layer(d_model, heads, hidden_size, dropout, device, dtype)
        self.halting = nn.Linear(d_model, 1, device=device, dtype=dtype)
        self.dropout = nn.Dropout(dropout)

    def contextualize(self, tokens: Tensor, is_padding: Tensor) -> Tensor:
        may_look, real = looks_at_values(tokens), ~is_padding
        positions = sinusoids(torch.arange(tokens.shape[1], device=tokens.device), tokens)
        # Padding has halted before it starts: it neither runs on nor counts.
        spent = is_padding.to(tokens.dtype)  # (B, n), the sum of each position's halting probabilities
        result, remainder = torch.zeros_like(tokens), torch.zeros_like(spent)
        for step in range(self.steps):
            running = spent < self.threshold
            # An empty batch takes a step too: every parameter gets a gradient.
            if may_look and step > 0 and not running.any():
                break
            signal = positions + sinusoids(torch.full((1,), step, device=tokens.device), tokens)
            tokens = _attend(self.layer, self.dropout(tokens + signal), is_padding)
            halts = self.halting(tokens).squeeze(-1).sigmoid()  # (B, n)
            is_last = running & (spent + halts > self.threshold) if step < self.steps - 1 else running
            remainder = torch.where(is_last, 1 - spent, remainder)
            weight = torch.where(is_last, 1 - spent, halts).masked_fill(~running, 0.0)
            spent = torch.where(is_last, torch.ones_like(spent), spent + weight)
            result = result + weight.unsqueeze(-1) * tokens
        sentence = layer_norm_wide(result[:, 0], self.norm)
        if self.training:
            refuse_forward_mode(sentence)
            ponder = (remainder * real).sum() / real.sum().clamp(min=1)
            sentence = _AddToLoss.apply(sentence, self.ponder_weight * ponder)
        return sentence


def _attend(layer: nn.Module, tokens: Tensor, is_padding: Tensor) -> Tensor:
    if not is_exporting():
        # PyTorch's attention takes no mask for an empty batch.
        found: Tensor = layer(tokens, src_key_padding_mask=is_padding if tokens.shape[0] else None)
        return found
    # Spread over the heads by attention itself, a mask of n + 1 columns is one that no dynamic n satisfies.
    heads = cast(nn.TransformerEncoderLayer, layer).self_attn.num_heads
    by_head = is_padding[torch.arange(tokens.shape[0] * heads, device=tokens.device) // heads].unsqueeze(1)
    exported: Tensor = layer(tokens, by_head.expand(-1, tokens.shape[1], -1))
    return exported


class _AddToLoss(torch.autograd.Function):
    """Returns the sentence as it is; a backward pass through it also differentiates the penalty."""

    @staticmethod
    def forward(ctx: Any, sentence: Tensor, penalty: Tensor) -> Tensor:
        ctx.save_for_backward(torch.ones_like(penalty))
        return sentence.view_as(sentence)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_sentence: Tensor) -> tuple[Tensor, Tensor]:
        return d_sentence, ctx.saved_tensors[0]


def sinusoids(position: Tensor, like: Tensor) -> Tensor:
    """(n, d): the sines and cosines of the positions (n,) at wavelengths from 2π to 20000π."""
    d = like.shape[-1]
    wide = torch.promote_types(like.dtype, torch.float32)
    rate = torch.exp(torch.arange(0, d, 2, device=like.device, dtype=wide) * (-math.log(10000.0) / d))
    angle = position.to(wide).unsqueeze(1) * rate
    return torch.stack((angle.sin(), angle.cos()), -1).flatten(1)[:, :d].to(like.dtype)


def _layer(
    d_model: int,
    heads: int | None,
    hidden_size: int | None,
    dropout: float,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> nn.TransformerEncoderLayer:
    if heads is None:
        heads = max(count for count in range(1, 9) if d_model % count == 0)
    elif heads < 1 or d_model % heads:
        raise ValueError(f"heads must divide d_model = {d_model}, got {heads}")
    if not 0.0 <= dropout < 1.0:
        raise ValueError(f"dropout must lie in [0, 1), got {dropout}")
    return nn.TransformerEncoderLayer(
        d_model,
        heads,
        4 * d_model if hidden_size is None else hidden_size,
        dropout,
        activation="gelu",
        batch_first=True,
        norm_first=True,
        device=device,
        dtype=dtype,
    )
