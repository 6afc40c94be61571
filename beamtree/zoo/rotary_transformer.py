"""A Transformer that knows positions by turning queries and keys (Su et al. 2021), as a sentence encoder."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from beamtree.pytorch.precision import layer_norm_wide
from beamtree.zoo.sequence_models import ClsEncoder

_LONGEST_WAVE = 10_000.0


class RotaryTransformer(ClsEncoder):
    """(B, n, input_size) -> (B, d): `layers` unshared pre-norm layers with GELU and a final norm over what
    becomes of a trained CLS vector.

    `hidden_size` is the feed-forward width, 4·d if not given; `heads` must divide d into even parts.
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
        if layers < 1:
            raise ValueError(f"layers must be at least 1, got {layers}")
        if heads is None:
            heads = max((count for count in range(1, 9) if d_model % (2 * count) == 0), default=0)
        if heads < 1 or d_model % (2 * heads):
            raise ValueError(f"heads must divide d_model = {d_model} into even parts, got {heads}")
        self.heads = heads
        self.layers = nn.ModuleList(
            _RotaryLayer(d_model, heads, hidden_size or 4 * d_model, dropout, device, dtype)
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
        self.heads = heads
        self.norm1 = nn.LayerNorm(d_model, device=device, dtype=dtype)
        self.norm2 = nn.LayerNorm(d_model, device=device, dtype=dtype)
        self.enter = nn.Linear(d_model, 3 * d_model, device=device, dtype=dtype)
        self.leave = nn.Linear(d_model, d_model, device=device, dtype=dtype)
        self.linear1 = nn.Linear(d_model, hidden_size, device=device, dtype=dtype)
        self.linear2 = nn.Linear(hidden_size, d_model, device=device, dtype=dtype)
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
    """Cosines and sines (n, size / 2) by which position and feature turn."""
    wide = torch.promote_types(like.dtype, torch.float32)
    rate = _LONGEST_WAVE ** -(torch.arange(0, size, 2, device=like.device, dtype=wide) / size)
    angle = torch.arange(n, device=like.device, dtype=wide).unsqueeze(1) * rate
    return angle.cos(), angle.sin()


def turn(x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    """Each pair of features (…, n, size) turned by its position: products of two see their distance alone."""
    cos, sin = turns
    first, second = x.to(cos.dtype).unflatten(-1, (2, -1)).unbind(-2)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), -1).to(x.dtype)
