"""Sequence models that build no tree: BiLSTM (Hochreiter and Schmidhuber 1997), Transformer (Vaswani et al.
2017) and Universal Transformer (Dehghani et al. 2019) as sentence encoders.

For comparison: the paper copies its figures for the Transformers without a configuration, and has no LSTM;
the settings are ours.
"""

import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from beamtree.parts.leaf import LeafTransform
from beamtree.pytorch.checks import looks_at_values
from beamtree.pytorch.derivatives import refuse_forward_mode
from beamtree.pytorch.precision import layer_norm_wide
from beamtree.pytorch.tracing import State, at, check_exported, is_exporting, traced_loop, untraced
from beamtree.zoo.tree_encoder import row


class SequenceModel(nn.Module):
    """What they share: the leaf transform, a last norm, and the refusal of trees."""

    builds_trees = False

    def __init__(
        self,
        d_model: int,
        *,
        input_size: int | None,
        dropout: float,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        if not 0.0 <= dropout < 1.0:
            raise ValueError(f"dropout must lie in [0, 1), got {dropout}")
        self.d_model = d_model
        self.input_size = d_model if input_size is None else input_size
        self.leaf = LeafTransform(self.input_size, d_model, device=device, dtype=dtype)
        self.norm = nn.LayerNorm(d_model, device=device, dtype=dtype)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None, need_trees: bool = False) -> Tensor:
        if need_trees:
            raise ValueError(f"{type(self).__name__} builds no tree: call it without need_trees")
        leaves, lengths = self.leaf.read(x, key_padding_mask)
        return self.encode(leaves, lengths, key_padding_mask)

    def encode(self, leaves: Tensor, lengths: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        raise NotImplementedError


class BiLSTM(SequenceModel):
    """(B, n, input_size) -> (B, d): LSTMs that read from both ends.

    Each of `layers` has `hidden_size` features a direction, d/2 if not given. The sentence is what either
    direction has after its last token, side by side, mapped to d where it is not so wide, and normalised.
    Dropout acts on the input of every layer.
    """

    def __init__(
        self,
        d_model: int,
        *,
        input_size: int | None = None,
        layers: int = 1,
        hidden_size: int | None = None,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if hidden_size is None and d_model % 2:
            raise ValueError(f"d_model must be even, half of it for each direction, got {d_model}")
        for name, size in {"layers": layers, "hidden_size": hidden_size}.items():
            if size is not None and size < 1:
                raise ValueError(f"{name} must be at least 1, got {size}")
        super().__init__(d_model, input_size=input_size, dropout=dropout, device=device, dtype=dtype)
        self.hidden_size = d_model // 2 if hidden_size is None else hidden_size
        both = 2 * self.hidden_size
        self.rightward, self.leftward = (
            nn.ModuleList(
                _OneWayLSTM(
                    both if layer else d_model, self.hidden_size, batch_first=True, device=device, dtype=dtype
                )
                for layer in range(layers)
            )
            for _ in range(2)
        )
        self.out = nn.Identity() if both == d_model else nn.Linear(both, d_model, device=device, dtype=dtype)

    def encode(self, leaves: Tensor, lengths: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        check_exported(self)
        if is_exporting():
            return self._read_both_ways(leaves, lengths)
        B, n, _ = leaves.shape
        if B == 0:  # cuDNN takes no empty batch
            leaves, lengths = F.pad(leaves, (0, 0, 0, 0, 0, 1)), F.pad(lengths, (0, 1), value=n)
        return self._read_untraced(leaves, lengths)[:B]

    def _read_both_ways(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        # Either direction reads padding last, where no token sees it, so the host need not know the lengths.
        last = (lengths - 1).clamp(min=0)
        place = torch.arange(tokens.shape[1], device=tokens.device)
        from_end = last.unsqueeze(1) - place
        turned = torch.where(from_end >= 0, from_end, place)  # (B, n); padding stays
        for rightward, leftward in zip(self.rightward, self.leftward, strict=True):
            tokens = self.dropout(tokens)
            there = _read(rightward, tokens, lengths)
            back = _read(leftward, _turn(tokens, turned), lengths)
            tokens = torch.cat((there, _turn(back, turned)), -1)  # (B, n, d)
        half = self.hidden_size
        ends = torch.cat((row(tokens, last)[:, :half], tokens[:, 0, half:]), -1)
        return layer_norm_wide(self.out(ends), self.norm)

    _read_untraced = untraced(_read_both_ways)


class _OneWayLSTM(nn.LSTM):
    """Always in training mode, which in one layer changes no result: cuDNN has no gradient otherwise."""

    weight_ih_l0: Tensor
    weight_hh_l0: Tensor
    bias_ih_l0: Tensor
    bias_hh_l0: Tensor

    def train(self, mode: bool = True) -> "_OneWayLSTM":
        return super().train()


def _turn(tokens: Tensor, turned: Tensor) -> Tensor:
    """Every sequence of (B, n, d) from its end to its beginning, by the places (B, n)."""
    return tokens.gather(1, turned.unsqueeze(-1).expand_as(tokens))


def _read(layer: nn.Module, tokens: Tensor, lengths: Tensor) -> Tensor:
    """The state after each token: (B, n, d) -> (B, n, d/2)."""
    if not is_exporting():
        found: Tensor = layer(tokens)[0]
        return found
    # PyTorch would unroll its own loop for one length.
    lstm = cast(_OneWayLSTM, layer)
    inputs = F.linear(tokens, lstm.weight_ih_l0, lstm.bias_ih_l0)  # (B, n, 4 · d/2)
    column = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(-1)  # (n, 1)

    def step(t: Tensor, states: Tensor, state: Tensor, memory: Tensor) -> State:
        gates = at(inputs, t, 1) + F.linear(state, lstm.weight_hh_l0, lstm.bias_hh_l0)
        write, keep, new, show = gates.chunk(4, -1)
        memory = keep.sigmoid() * memory + write.sigmoid() * new.tanh()
        state = show.sigmoid() * memory.tanh()
        return torch.where(column == t, state.unsqueeze(1), states), state, memory

    nothing = torch.zeros_like(inputs[..., : lstm.hidden_size])
    start = (nothing, nothing[:, 0].clone(), nothing[:, 0].clone())
    return traced_loop(lambda t, *_: t < lengths.max(), step, start)[0]


class ClsEncoder(SequenceModel):
    """What the Transformers share: a trained CLS vector before the leaves, and what becomes of it is the
    sentence; sinusoidal positions."""

    def __init__(
        self,
        d_model: int,
        *,
        input_size: int | None,
        dropout: float,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__(d_model, input_size=input_size, dropout=dropout, device=device, dtype=dtype)
        self.cls = nn.Parameter(torch.randn(d_model, device=device, dtype=dtype))

    def encode(self, leaves: Tensor, lengths: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        B, n, _ = leaves.shape
        if key_padding_mask is None:
            is_padding = torch.zeros(B, n + 1, dtype=torch.bool, device=leaves.device)
        else:
            is_padding = F.pad(key_padding_mask, (1, 0), value=False)
        tokens = torch.cat((self.cls.expand(B, 1, -1), leaves), 1)  # (B, n + 1, d)
        return self.contextualize(tokens, is_padding)

    def contextualize(self, tokens: Tensor, is_padding: Tensor) -> Tensor:
        raise NotImplementedError


class TransformerSentenceEncoder(ClsEncoder):
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
        super().__init__(d_model, input_size=input_size, dropout=dropout, device=device, dtype=dtype)
        if steps < 1:
            raise ValueError(f"steps must be at least 1, got {steps}")
        if not 0.0 < threshold < 1.0:
            raise ValueError(f"threshold must lie in (0, 1), got {threshold}")
        self.steps, self.threshold, self.ponder_weight = steps, threshold, ponder_weight
        self.layer = _layer(d_model, heads, hidden_size, dropout, device, dtype)
        self.halting = nn.Linear(d_model, 1, device=device, dtype=dtype)

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
