"""Random numbers in training: noise on the two selections of a step, and dropout masks.

They come from a counter: equal (seed, stream, step, sequence, slot, lane) always give equal bits. These are
computed by splitmix64 in wrapping int64 arithmetic, so they are the same on every device and platform. A mask
belongs to a merged node or to a scored pair, and the backward pass draws it a second time instead of storing
it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from beamtree.engine.record import Timeline
from beamtree.pytorch.launch import HAS_TRITON

DROPOUT, FIRST_SELECTION, SECOND_SELECTION = 1, 2, 3  # streams: masks, and noise on a step's two selections

_GOLDEN = -0x61C8864680B583EB  # 0x9E3779B97F4A7C15 as a signed number
_MIX_1 = -0x40A7B892E31B1A47  # 0xBF58476D1CE4E5B9
_MIX_2 = -0x6B2FB644ECCEEE15  # 0x94D049BB133111EB
_STREAM, _STEP, _SEQUENCE = 0x2545F4914F6CDD1D, 0x5851F42D4C957F2D, 0x369DEA0F31A53F85

_DRAWS_AT_ONCE = 1 << 17


def draw_seed(device: torch.device) -> Tensor:
    """A fresh seed from PyTorch's generator; it stays on the device, without synchronisation."""
    return torch.randint(0, 2**62, (), device=device)


def _mix_(x: Tensor) -> Tensor:
    """splitmix64's finaliser, in place."""
    x.bitwise_xor_((x >> 30).bitwise_and_(0x3FFFFFFFF)).mul_(_MIX_1)
    x.bitwise_xor_((x >> 27).bitwise_and_(0x1FFFFFFFFF)).mul_(_MIX_2)
    return x.bitwise_xor_((x >> 31).bitwise_and_(0x1FFFFFFFF))


def mix(x: Tensor) -> Tensor:
    """64 random-looking bits for each number."""
    return _mix_(x + _GOLDEN)


def _row_keys(seed: Tensor, stream: int, step: Tensor, sequence: Tensor, slot: Tensor) -> Tensor:
    start = _mix_(seed + stream * _STREAM)
    return _mix_(start + step * _STEP + sequence * _SEQUENCE + slot * _GOLDEN)


def _words(keys: Tensor, count: int) -> Tensor:
    """`count` random 64-bit words for each key, (…, count)."""
    lanes = torch.arange(1, count + 1, device=keys.device) * _GOLDEN
    return _mix_(keys.unsqueeze(-1) + lanes)


def gumbel(
    seed: Tensor, stream: int, step: Tensor, sequence: Tensor, slot: Tensor, count: int, dtype: torch.dtype
) -> Tensor:
    """Standard Gumbel noise, (…, count) for index tensors of shape (…); a greater count only adds to it."""
    words = _words(_row_keys(seed, stream, step, sequence, slot), (count + 1) // 2)
    uniform = words.view(torch.int32)[..., :count].to(dtype).mul_(2.0**-32).add_(0.5)
    return uniform.clamp_(2.0**-33, 1 - 2.0**-24).log_().neg_().log_().neg_()


def draw_keep(
    seed: Tensor, step: Tensor, sequence: Tensor, slot: Tensor, width: int, dropout: float, dtype: torch.dtype
) -> Tensor:
    """Dropout masks (…, width), scaled to a mean of one; the rate is rounded to a multiple of 1/65536."""
    if (
        seed.is_cuda
        and HAS_TRITON
        and dtype == torch.float32
        and max(map(Tensor.dim, (step, sequence, slot))) <= 3
    ):
        from beamtree.kernels.runtime import random_kernels

        return random_kernels.draw_keep(seed, step, sequence, slot, width, dropout)
    words = _words(_row_keys(seed, DROPOUT, step, sequence, slot), (width + 3) // 4)
    dropped = round(dropout * 65536)
    keep = words.view(torch.int16)[..., :width] >= dropped - 32768
    return keep.to(dtype).mul_(65536 / (65536 - dropped))


@dataclass(frozen=True)
class Randomness:
    """Which random numbers training draws, and from which seed."""

    seed: Tensor
    noisy: bool
    dropout: float
    hidden_size: int  # the width of a dropout mask
    masks_pairs: bool = False  # not nodes, because a score is computed from the pair's parent


class Draws:
    """Noise and masks step by step; when a step needs few numbers, several steps are drawn at once."""

    def __init__(self, randomness: Randomness, order: Tensor, K: int, n: int, dtype: torch.dtype) -> None:
        self.randomness, self.order, self.K, self.steps, self.dtype = randomness, order, K, n - 1, dtype
        self.noisy = randomness.noisy
        self._noise_until = self._masks_until = 0

    def gumbel(self, t: int, A: int, pairs: int) -> tuple[Tensor, Tensor]:  # (A, K, pairs), (A, K, K)
        if t >= self._noise_until:
            steps, sequence, slot = self._counters(t, A, pairs + self.K)
            wide = torch.promote_types(self.dtype, torch.float32)
            seed = self.randomness.seed
            self._first = gumbel(seed, FIRST_SELECTION, steps, sequence, slot, pairs, wide)
            self._second = gumbel(seed, SECOND_SELECTION, steps, sequence, slot, self.K, wide)
            self._noise_from, self._noise_until = t, t + len(steps)
        i = t - self._noise_from
        return self._first[i, :A, :, :pairs], self._second[i, :A]

    def keep(self, t: int, A: int) -> Tensor | None:  # (A·K, hidden)
        width, dropout = self.randomness.hidden_size, self.randomness.dropout
        if dropout == 0.0 or self.randomness.masks_pairs:
            return None
        if t >= self._masks_until:
            steps, sequence, slot = self._counters(t, A, width)
            self._keep = draw_keep(self.randomness.seed, steps, sequence, slot, width, dropout, self.dtype)
            self._masks_from, self._masks_until = t, t + len(steps)
        return self._keep[t - self._masks_from, :A].reshape(A * self.K, width)

    def _counters(self, t: int, A: int, per_beam: int) -> tuple[Tensor, Tensor, Tensor]:
        """Index tensors that broadcast to (steps, A, K), for about as many steps as fit a block of draws."""
        steps = max(1, min(self.steps - t, _DRAWS_AT_ONCE // (A * self.K * per_beam)))
        device = self.order.device
        step = torch.arange(t, t + steps, device=device).view(-1, 1, 1)
        return step, self.order[:A].view(1, A, 1), torch.arange(self.K, device=device).view(1, 1, -1)


def node_masks(randomness: Randomness, timeline: Timeline, merges: Tensor, dtype: torch.dtype) -> Tensor:
    """The masks (m, hidden) of the nodes that these merges make.

    Two beams that merge the same pair make two nodes, with a mask each (unlike in `pair_masks`).
    """
    step, sequence, slot = timeline.step(merges), timeline.sequence(merges), timeline.slot(merges)
    return _masks(randomness, step, sequence, slot, dtype)


def pair_masks(randomness: Randomness, timeline: Timeline, pairs: Tensor, dtype: torch.dtype) -> Tensor:
    """The masks (m, hidden) of pairs of ids (m, 2), shared by the score of a pair and the node it becomes.

    The numbers of the two nodes in their sequence take the places of step and slot in the counter.
    """
    left, right = timeline.number_in_sequence(pairs).unbind(-1)
    sequence = timeline.owner(pairs.amax(-1))  # at the border one of the two ids is NONE, 0
    return _masks(randomness, left, sequence, right, dtype)


def _masks(
    randomness: Randomness, step: Tensor, sequence: Tensor, slot: Tensor, dtype: torch.dtype
) -> Tensor:
    width = randomness.hidden_size
    if not len(step):  # PyTorch may refuse to view an empty tensor as bits
        return torch.empty(0, width, dtype=dtype, device=step.device)
    return draw_keep(randomness.seed, step, sequence, slot, width, randomness.dropout, dtype)
