"""The leaf transform: what a token's vector passes before the tree is built, leaf = LayerNorm(W x + b)."""

import torch
from torch import Tensor, nn

from beamtree.cell import layer_norm_wide
from beamtree.checks import lengths_from
from beamtree.ops.products import linear


class LeafTransform(nn.Module):
    def __init__(
        self,
        input_size: int,
        d_model: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(input_size, d_model, device=device, dtype=dtype)
        self.norm = nn.LayerNorm(d_model, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        return layer_norm_wide(linear(x, self.linear), self.norm)

    def read(self, x: Tensor, key_padding_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Leaves (B, n, d) and lengths (B,) of a checked input; what stands in padded rows has no effect."""
        lengths = lengths_from(
            x, key_padding_mask, input_size=self.linear.in_features, weight=self.linear.weight
        )
        if key_padding_mask is not None:
            x = x.masked_fill(key_padding_mask.unsqueeze(-1), 0.0)
        return self(x), lengths
