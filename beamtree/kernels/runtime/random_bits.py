"""Random numbers by counter: the same (seed, stream, step, sequence, slot, lane) gives the same bits, always.

A dropout mask belongs to a node, and the backward pass needs it again: it is drawn a second time, not stored.
The bits are splitmix64's, in wrapping int64 arithmetic, so they are the same on every device and platform.
"""

import torch
from torch import Tensor

from beamtree.pytorch.registry import HAS_TRITON

DROPOUT, FIRST_LEVEL, SECOND_LEVEL = 1, 2, 3  # streams

_GOLDEN = -0x61C8864680B583EB  # 0x9E3779B97F4A7C15 as a signed number
_MIX_1 = -0x40A7B892E31B1A47  # 0xBF58476D1CE4E5B9
_MIX_2 = -0x6B2FB644ECCEEE15  # 0x94D049BB133111EB
_STREAM, _STEP, _SEQUENCE = 0x2545F4914F6CDD1D, 0x5851F42D4C957F2D, 0x369DEA0F31A53F85


def draw_seed(device: torch.device) -> Tensor:
    """A fresh seed from PyTorch's generator, left on its device: no synchronisation."""
    return torch.randint(0, 2**62, (), device=device)


def _mix_(x: Tensor) -> Tensor:
    """splitmix64's finaliser, in place."""
    x.bitwise_xor_((x >> 30).bitwise_and_(0x3FFFFFFFF)).mul_(_MIX_1)
    x.bitwise_xor_((x >> 27).bitwise_and_(0x1FFFFFFFFF)).mul_(_MIX_2)
    return x.bitwise_xor_((x >> 31).bitwise_and_(0x1FFFFFFFF))


def mix(x: Tensor) -> Tensor:
    """64 bits for each number that look drawn at random."""
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
    """Standard Gumbel noise, (…, count) for index tensors of shape (…); any prefix of it is the same."""
    words = _words(_row_keys(seed, stream, step, sequence, slot), (count + 1) // 2)
    uniform = words.view(torch.int32)[..., :count].to(dtype).mul_(2.0**-32).add_(0.5)
    return uniform.clamp_(2.0**-33, 1 - 2.0**-24).log_().neg_().log_().neg_()


def draw_keep(
    seed: Tensor, step: Tensor, sequence: Tensor, slot: Tensor, width: int, dropout: float, dtype: torch.dtype
) -> Tensor:
    """Dropout masks (…, width), scaled so that their mean is one; the rate is rounded to a 65536th."""
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
