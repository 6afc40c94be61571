"""Transformers as sentence encoders: a plain one (Vaswani et al. 2017), the Universal Transformer (Dehghani
et al. 2019), and one with rotary positions (Su et al. 2021).

They are here for comparison. The paper quotes figures for the first two without a configuration; the settings
are ours.
"""

import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from beamtree.pytorch.checks import at_least_one, looks_at_values, padding_of
from beamtree.pytorch.derivatives import refuse_forward_mode
from beamtree.pytorch.precision import layer_norm_wide
from beamtree.pytorch.tracing import is_compiling, is_exporting
from beamtree.zoo.sequence_models import SequenceModel

_LONGEST_WAVE = 10_000.0  # the longest wavelength of positions, divided by 2π


class ClsEncoder(SequenceModel):
    """Base class: a learnt CLS vector is put before the leaves; its final state is the sentence vector."""

    def __init__(self, d_model: int, **shared: Any) -> None:
        super().__init__(d_model, **shared)
        self.cls = nn.Parameter(torch.randn_like(self.norm.weight))

    def encode(self, leaves: Tensor, lengths: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        return self.contextualize(*self.with_cls(leaves, key_padding_mask))

    def with_cls(self, leaves: Tensor, key_padding_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the tokens with CLS in front, (B, n + 1, d), and their padding mask, (B, n + 1)."""
        is_padding = F.pad(padding_of(leaves, key_padding_mask), (1, 0), value=False)
        return torch.cat((self.cls.expand(leaves.shape[0], 1, -1), leaves), 1), is_padding

    def contextualize(self, tokens: Tensor, is_padding: Tensor) -> Tensor:
        """Return the sentence vector (B, d) of tokens (B, n + 1, d)."""
        raise NotImplementedError


class TransformerSentenceEncoder(ClsEncoder):
    """A pre-norm Transformer with GELU and sinusoidal positions, (B, n, input_size) -> (B, d_model).

    The tables use d_model = 128, 8 heads, hidden_size = 512, 6 layers and dropout 0.1.

    Args:
        d_model: width of a token.
        input_size: width of the input tokens, `d_model` if not given.
        heads: number of heads; if not given, the largest number up to 8 that divides d_model.
        layers: number of layers.
        hidden_size: feed-forward width, 4·d_model if not given.
        dropout: dropout rate.
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
        super().__init__(d_model, input_size=input_size, dropout=dropout, device=device, dtype=dtype)
        self.layers = nn.ModuleList(
            _layer(d_model, heads, hidden_size, dropout, device, dtype) for _ in range(layers)
        )

    def contextualize(self, tokens: Tensor, is_padding: Tensor) -> Tensor:
        tokens = self.dropout(tokens + sinusoids(torch.arange(tokens.shape[1], device=tokens.device), tokens))
        for layer in self.layers:
            tokens = _attend(layer, tokens, is_padding)
        return layer_norm_wide(tokens[:, 0], self.norm)


class UniversalTransformer(ClsEncoder):
    """The Universal Transformer, (B, n, input_size) -> (B, d_model).

    It applies a single layer a variable number of times, the layer of `TransformerSentenceEncoder`. Before
    each step, encodings of position and step are added. Each position decides by adaptive computation time
    (Graves 2016) how many steps it takes: it halts when its halting probabilities sum to more than
    `threshold`, and after `steps` steps at the latest. Its result is the average of its states, weighted by
    these probabilities; the last state gets what is left to 1. Halted positions can still be attended to.

    The ponder cost is `ponder_weight` times the mean of steps + remainder over CLS and real tokens. In
    training a backward pass through the sentence vector adds its gradient, whatever the loss.

    The tables use d_model = 128, 8 heads, hidden_size = 512, threshold 0.99, at most 12 steps, ponder weight
    1e-3 and dropout 0.1.
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
        super().__init__(d_model, input_size=input_size, dropout=dropout, device=device, dtype=dtype)
        at_least_one(steps=steps)
        if not 0.0 < threshold < 1.0:
            raise ValueError(f"threshold must lie in (0, 1), got {threshold}")
        self.steps, self.threshold, self.ponder_weight = steps, threshold, ponder_weight
        self.layer = _layer(d_model, heads, hidden_size, dropout, device, dtype)
        self.halting = nn.Linear(d_model, 1, device=device, dtype=dtype)

    def may_replay(self, tokens: Tensor) -> bool:
        return False  # the number of steps depends on the batch, and a graph would always run all of them

    def contextualize(self, tokens: Tensor, is_padding: Tensor) -> Tensor:
        may_look, real = _may_look(tokens), ~is_padding
        positions = sinusoids(torch.arange(tokens.shape[1], device=tokens.device), tokens)
        # Padding counts as halted from the start, so that it neither keeps the loop running nor counts.
        spent = is_padding.to(tokens.dtype)  # (B, n), the sum of each position's halting probabilities
        result, remainder = torch.zeros_like(tokens), torch.zeros_like(spent)
        for step in range(self.steps):
            running = spent < self.threshold
            # An empty batch takes one step too, so that every parameter gets a gradient.
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


def _may_look(tokens: Tensor) -> bool:
    """Return True if the loop may check whether all positions have halted.

    It may on a GPU too, as waiting for the answer takes less time than a step.
    """
    if tokens.is_cuda and type(tokens) is Tensor and not is_compiling():
        return not torch.cuda.is_current_stream_capturing()
    return looks_at_values(tokens)


def _attend(layer: nn.Module, tokens: Tensor, is_padding: Tensor) -> Tensor:
    if not is_exporting():
        # PyTorch's attention accepts no mask for an empty batch.
        found: Tensor = layer(tokens, src_key_padding_mask=is_padding if tokens.shape[0] else None)
        return found
    # The mask is expanded over the heads here: if attention does it, the export fails for a dynamic n.
    heads = cast(nn.TransformerEncoderLayer, layer).self_attn.num_heads
    by_head = is_padding[torch.arange(tokens.shape[0] * heads, device=tokens.device) // heads].unsqueeze(1)
    exported: Tensor = layer(tokens, by_head.expand(-1, tokens.shape[1], -1))
    return exported


class _AddToLoss(torch.autograd.Function):
    """Returns the sentence unchanged; a backward pass through it adds the gradient of the penalty."""

    @staticmethod
    def forward(ctx: Any, sentence: Tensor, penalty: Tensor) -> Tensor:
        ctx.save_for_backward(torch.ones_like(penalty))
        return sentence.view_as(sentence)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_sentence: Tensor) -> tuple[Tensor, Tensor]:
        return d_sentence, ctx.saved_tensors[0]


def sinusoids(position: Tensor, like: Tensor) -> Tensor:
    """Return sines and cosines of the positions (n,) at wavelengths from 2π to 20000π: (n, d)."""
    d = like.shape[-1]
    wide = torch.promote_types(like.dtype, torch.float32)
    rate = torch.exp(torch.arange(0, d, 2, device=like.device, dtype=wide) * (-math.log(_LONGEST_WAVE) / d))
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
    return nn.TransformerEncoderLayer(
        d_model,
        _choose_heads(heads, d_model),
        4 * d_model if hidden_size is None else hidden_size,
        dropout,
        activation="gelu",
        batch_first=True,
        norm_first=True,
        device=device,
        dtype=dtype,
    )


def _choose_heads(heads: int | None, d_model: int, *, even: bool = False) -> int:
    """Return `heads`, or if not given the largest number up to 8 that divides d_model.

    With `even`, d_model / heads must be even.
    """
    unit = 2 if even else 1
    if heads is None:
        heads = max((count for count in range(1, 9) if d_model % (unit * count) == 0), default=0)
    if heads < 1 or d_model % (unit * heads):
        parts = " into even parts" if even else ""
        raise ValueError(f"heads must divide d_model = {d_model}{parts}, got {heads}")
    return heads


class RotaryTransformer(ClsEncoder):
    """A pre-norm Transformer with GELU and rotary positions, (B, n, input_size) -> (B, d_model).

    Args:
        d_model: width of a token.
        input_size: width of the input tokens, `d_model` if not given.
        heads: number of heads; d_model / heads must be even. If not given, the largest such number up to 8.
        layers: number of layers.
        hidden_size: feed-forward width, 4·d_model if not given.
        dropout: dropout rate.
    """

    def __init__(
        self,
        d_model: int,
        *,
        input_size: int | None = None,
        heads: int | None = None,
        layers: int = 4,
        hidden_size: int | None = None,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(d_model, input_size=input_size, dropout=dropout, device=device, dtype=dtype)
        at_least_one(layers=layers)
        self.heads = _choose_heads(heads, d_model, even=True)
        self.layers = nn.ModuleList(
            _RotaryLayer(d_model, self.heads, hidden_size or 4 * d_model, dropout, device, dtype)
            for _ in range(layers)
        )

    def contextualize(self, tokens: Tensor, is_padding: Tensor) -> Tensor:
        tokens = self.dropout(tokens)
        turns = turns_of(tokens.shape[1], self.d_model // self.heads, tokens)
        for layer in self.layers:
            tokens = layer(tokens, is_padding, turns)
        return layer_norm_wide(tokens[:, 0], self.norm)


class _RotaryLayer(nn.Module):
    def __init__(
        self,
        d_model: int,
        heads: int,
        hidden_size: int,
        dropout: float,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.heads = heads
        self.norm1 = nn.LayerNorm(d_model, **factory)
        self.norm2 = nn.LayerNorm(d_model, **factory)
        self.enter = nn.Linear(d_model, 3 * d_model, **factory)
        self.leave = nn.Linear(d_model, d_model, **factory)
        self.linear1 = nn.Linear(d_model, hidden_size, **factory)
        self.linear2 = nn.Linear(hidden_size, d_model, **factory)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor, is_padding: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        queries, keys, values = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, heads, n, d / heads)
            for part in self.enter(layer_norm_wide(tokens, self.norm1)).chunk(3, -1)
        )
        found = F.scaled_dot_product_attention(
            turn(queries, turns),
            turn(keys, turns),
            values,
            attn_mask=~is_padding[:, None, None, :],
            dropout_p=self.dropout.p if self.training else 0.0,
        )
        tokens = tokens + self.dropout(self.leave(found.transpose(1, 2).flatten(2))).to(tokens.dtype)
        hidden = self.dropout(F.gelu(self.linear1(layer_norm_wide(tokens, self.norm2))))
        return tokens + self.dropout(self.linear2(hidden)).to(tokens.dtype)


def turns_of(n: int, size: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosines and sines (n, size / 2) of the angles by which positions turn pairs of features."""
    wide = torch.promote_types(like.dtype, torch.float32)
    rate = _LONGEST_WAVE ** -(torch.arange(0, size, 2, device=like.device, dtype=wide) / size)
    angle = torch.arange(n, device=like.device, dtype=wide).unsqueeze(1) * rate
    return angle.cos(), angle.sin()


def turn(x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    """Turn each pair of features (…, n, size) by its position.

    The scalar product of a turned query and a turned key depends only on the distance of their positions.
    """
    cos, sin = turns
    first, second = x.to(cos.dtype).unflatten(-1, (2, -1)).unbind(-2)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), -1).to(x.dtype)
