"""Pair scorers, which score how good a merge of two neighbours would be.

A scorer sees only the two nodes and has no dropout. A pair's score therefore never changes, and the search
computes it once. Scores are at least float32, whatever the dtype of the parameters and under autocast too.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from beamtree.pytorch.checks import at_least_one, at_least_one_if_given
from beamtree.pytorch.direct_reading import DirectlyRead, read_part
from beamtree.pytorch.precision import without_autocast


class SlicedScorer(DirectlyRead):
    """Scores a pair from the first s features of its nodes: e = w₂·GELU(W₁ [l[:s]; r[:s]] + b₁) + b₂.

    Args:
        d_model: width of a node.
        slice_size: s; None, or more than `d_model`, for all features.
        hidden_size: width of the hidden layer; 64 if not given, or `d_model` without a slice.
    """

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
        """Return the scores (…) of pairs of left and right nodes, (…, d) each."""
        s = self.slice_size
        with without_autocast(left):
            pair = torch.cat((left[..., :s], right[..., :s]), -1)
            return _linear_wide(F.gelu(_linear_wide(pair, self.hidden)), self.out).squeeze(-1)

    def extra_repr(self) -> str:
        return f"slice_size={self.slice_size}"


class EntangledScorer(DirectlyRead):
    """Scores a pair from the parent that the cell would make of it: e = w·cell(l, r) + b (GT-GRC, BT-GRC).

    It is called on the parents, (…, d) -> (…).
    """

    def __init__(
        self, d_model: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(1, d_model, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(1, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise weight and bias as `nn.Linear` does."""
        bound = self.weight.shape[-1] ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, parent: Tensor) -> Tensor:  # (…, d) -> (…)
        """Return the scores (…) of pairs from their parents (…, d)."""
        with without_autocast(parent):
            return _linear_wide(parent, self).squeeze(-1)


def _linear_wide(x: Tensor, linear: nn.Linear | EntangledScorer) -> Tensor:
    weight, bias = read_part(linear)
    wide = torch.promote_types(weight.dtype, torch.float32)
    return F.linear(x.to(wide), weight.to(wide), bias.to(wide))
