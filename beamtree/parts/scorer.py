"""Pair scorers: how good a merge of two neighbours would be.

A scorer sees its two nodes only and has no dropout, so a pair's score never changes: that is what lets the
search keep it. Scores are at least float32 whatever the parameters are, autocast included.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from beamtree.pytorch.checks import at_least_one, at_least_one_if_given
from beamtree.pytorch.direct_reading import DirectlyRead, read_part
from beamtree.pytorch.precision import without_autocast


class SlicedScorer(DirectlyRead):
    """e = w₂·GELU(W₁ [l[:s]; r[:s]] + b₁) + b₂ on the first s features; s = d gives the unsliced scorer."""

    def __init__(
        self,
        d_model: int,
        *,
        slice_size: int | None = 64,
        hidden_size: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        at_least_one(d_model=d_model)
        at_least_one_if_given(slice_size=slice_size)
        self.slice_size = d_model if slice_size is None else min(slice_size, d_model)
        if hidden_size is None:
            hidden_size = d_model if slice_size is None else 64
        if hidden_size < 1:
            raise ValueError(f"the scorer's hidden size must be at least 1, got {hidden_size}")
        self.hidden = nn.Linear(2 * self.slice_size, hidden_size, device=device, dtype=dtype)
        self.out = nn.Linear(hidden_size, 1, device=device, dtype=dtype)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:  # (…, d), (…, d) -> (…)
        s = self.slice_size
        with without_autocast(left):
            pair = torch.cat((left[..., :s], right[..., :s]), -1)
            return _linear_wide(F.gelu(_linear_wide(pair, self.hidden)), self.out).squeeze(-1)

    def extra_repr(self) -> str:
        return f"slice_size={self.slice_size}"


class EntangledScorer(DirectlyRead):
    """e = w·cell(l, r) + b: the score is read off the parent that the cell would make (GT-GRC, BT-GRC)."""

    def __init__(
        self, d_model: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(1, d_model, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(1, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw it anew, as an `nn.Linear` is."""
        bound = self.weight.shape[-1] ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, parent: Tensor) -> Tensor:  # (…, d) -> (…)
        with without_autocast(parent):
            return _linear_wide(parent, self).squeeze(-1)


def _linear_wide(x: Tensor, linear: nn.Linear | EntangledScorer) -> Tensor:
    weight, bias = read_part(linear)
    wide = torch.promote_types(weight.dtype, torch.float32)
    return F.linear(x.to(wide), weight.to(wide), bias.to(wide))
