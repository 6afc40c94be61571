"""A schedule whose shapes do not depend on the lengths, so that a CUDA graph can hold the whole tree."""

from itertools import accumulate

import torch
from torch import Tensor

from beamtree.zoo.gumbel_sweep import Schedule


class StaticSchedule(Schedule):
    """Every sequence takes part in every step; one that is not yet as long as its list stays as it is.

    The host does not look at the lengths.
    """

    def __init__(self, lengths: Tensor, n: int) -> None:
        self.B, self.n, self.lengths = len(lengths), n, lengths
        self.order = lengths.argsort(descending=True, stable=True)  # (B,)
        self.counts = [self.B] * (n - 1)
        self.starts = [0, *accumulate(self.counts)]
        self.made = self.starts[-1]
        self.first_node = 1 + self.B * n
        self.first_pair = self.B * (n - 1)

    def active(self, t: int) -> Tensor | None:
        return self.lengths[self.order, None] >= self.n - t

    def _by_step(self, positions: Tensor) -> Tensor:
        return positions.view(self.n - 1, self.B) - 1

    def _starts(self) -> Tensor:
        return torch.arange(self.n, device=self.order.device) * self.B
