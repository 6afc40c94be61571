"""When, where and in which sequence a node was made, read off its id.

Ids: 0 is no node; leaf i of sequence b is 1 + b·n + i; then the nodes made, numbered by step, within it by
sequence (longest first), within it by slot.
"""

import torch
from torch import Tensor


class Timeline:
    def __init__(self, lengths: Tensor, n: int, K: int) -> None:
        self.n, self.K = n, K
        self.first = 1 + lengths.shape[0] * n  # the id of the first node made
        self.order = lengths.argsort(descending=True, stable=True)
        self.running = _running_counts(lengths.tolist(), n)  # how many sequences merge at each step
        counts = torch.tensor([0, *self.running], dtype=torch.int64, device=lengths.device)
        self.begins = (counts * K).cumsum(0)  # the first merge of each step, and the end
        self.made = K * sum(self.running)

    def step(self, merges: Tensor) -> Tensor:
        return torch.searchsorted(self.begins, merges, right=True) - 1

    def slot(self, merges: Tensor) -> Tensor:
        return merges % self.K

    def sequence(self, merges: Tensor) -> Tensor:
        return self.order[(merges - self.begins[self.step(merges)]) // self.K]

    def born(self, ids: Tensor) -> Tensor:
        """The first step at which a node's pairs are scored."""
        return torch.where(ids < self.first, 0, self.step(ids - self.first) + 1)

    def names(self, ids: Tensor) -> Tensor:
        """A number for each node of a sequence, whatever the padding and the rest of the batch."""
        merges = ids - self.first
        return torch.where(
            merges < 0, (ids - 1) % self.n, 2**32 + self.step(merges) * self.K + self.slot(merges)
        )

    def owner(self, ids: Tensor) -> Tensor:
        """The sequence that a node, leaf or made, belongs to."""
        merges = ids - self.first
        return torch.where(merges < 0, (ids - 1) // self.n, self.sequence(merges.clamp(min=0)))


def _running_counts(lengths: list[int], n: int) -> list[int]:
    ends = [0] * n
    for length in lengths:
        ends[length - 1] += 1
    counts, running = [], len(lengths)
    for t in range(n - 1):
        running -= ends[t]
        counts.append(running)
    return counts
