"""What is drawn in training: noise on the two selections of a step, and dropout masks.

A mask belongs to a node made, or to a pair that is scored; the backward pass draws it a second time.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from beamtree.engine.record import Timeline
from beamtree.kernels.runtime.random_bits import FIRST_LEVEL, SECOND_LEVEL, draw_keep, gumbel

_DRAWS_AT_ONCE = 1 << 17


@dataclass(frozen=True)
class Randomness:
    """What is drawn in training, by which seed."""

    seed: Tensor
    noisy: bool
    dropout: float
    hidden_size: int  # the width of a dropout mask
    per_pair: bool = False  # a mask belongs to a pair, whose score is read off its parent, not to a node


class Draws:
    """A step's noise and masks, drawn for several steps at once where a step's are few."""

    def __init__(self, randomness: Randomness, order: Tensor, K: int, n: int, dtype: torch.dtype) -> None:
        self.randomness, self.order, self.K, self.steps, self.dtype = randomness, order, K, n - 1, dtype
        self.noisy = randomness.noisy
        self._noise_until = self._masks_until = 0

    def gumbel(self, t: int, A: int, pairs: int) -> tuple[Tensor, Tensor]:  # (A, K, pairs), (A, K, K)
        if t >= self._noise_until:
            steps, sequence, slot = self._counters(t, A, pairs + self.K)
            wide = torch.promote_types(self.dtype, torch.float32)
            seed = self.randomness.seed
            self._first = gumbel(seed, FIRST_LEVEL, steps, sequence, slot, pairs, wide)
            self._second = gumbel(seed, SECOND_LEVEL, steps, sequence, slot, self.K, wide)
            self._noise_from, self._noise_until = t, t + len(steps)
        i = t - self._noise_from
        return self._first[i, :A, :, :pairs], self._second[i, :A]

    def keep(self, t: int, A: int) -> Tensor | None:  # (A·K, hidden)
        width, dropout = self.randomness.hidden_size, self.randomness.dropout
        if dropout == 0.0 or self.randomness.per_pair:
            return None
        if t >= self._masks_until:
            steps, sequence, slot = self._counters(t, A, width)
            self._keep = draw_keep(self.randomness.seed, steps, sequence, slot, width, dropout, self.dtype)
            self._masks_from, self._masks_until = t, t + len(steps)
        return self._keep[t - self._masks_from, :A].reshape(A * self.K, width)

    def _counters(self, t: int, A: int, per_beam: int) -> tuple[Tensor, Tensor, Tensor]:
        """Index tensors (steps, A, K), by broadcasting, of about as many steps as a block of draws holds."""
        steps = max(1, min(self.steps - t, _DRAWS_AT_ONCE // (A * self.K * per_beam)))
        device = self.order.device
        step = torch.arange(t, t + steps, device=device).view(-1, 1, 1)
        return step, self.order[:A].view(1, A, 1), torch.arange(self.K, device=device).view(1, 1, -1)


def node_masks(randomness: Randomness, timeline: Timeline, rows: Tensor, dtype: torch.dtype) -> Tensor:
    """The masks (m, hidden) of these rows of the tape: two beams that merge the same pair draw two."""
    step, sequence, slot = timeline.step(rows), timeline.sequence(rows), timeline.slot(rows)
    return draw_keep(randomness.seed, step, sequence, slot, randomness.hidden_size, randomness.dropout, dtype)


def pair_masks(randomness: Randomness, timeline: Timeline, pairs: Tensor, dtype: torch.dtype) -> Tensor:
    """The masks (m, hidden) of pairs of ids (m, 2): the same for its score and for the node it becomes.

    The names of the two nodes stand where a node's mask has its step and its slot.
    """
    left, right = timeline.names(pairs).unbind(-1)
    sequence = timeline.owner(pairs.amax(-1))  # at the border one of the two is NONE, which is 0
    return draw_keep(
        randomness.seed, left, sequence, right, randomness.hidden_size, randomness.dropout, dtype
    )
