# mypy: allow-untyped-defs
"""Counter-based random numbers, bit for bit those of engine/randomness.py: splitmix64 on (seed, stream,
step, sequence, slot). A dropout mask takes one kernel, in PyTorch twenty."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from beamtree.pytorch.launch import launch

DROPOUT, FIRST_SELECTION, SECOND_SELECTION = tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)

_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
_MIX_1 = tl.constexpr(0xBF58476D1CE4E5B9)
_MIX_2 = tl.constexpr(0x94D049BB133111EB)
_STREAM = tl.constexpr(0x2545F4914F6CDD1D)
_STEP = tl.constexpr(0x5851F42D4C957F2D)
_SEQUENCE = tl.constexpr(0x369DEA0F31A53F85)


@triton.jit
def _mix(x):
    x = (x ^ (x >> 30)) * _MIX_1
    x = (x ^ (x >> 27)) * _MIX_2
    return x ^ (x >> 31)


@triton.jit
def row_key(seed, stream: tl.constexpr, step, sequence, slot):
    start = _mix(seed.to(tl.uint64) + stream * _STREAM)
    where = step.to(tl.uint64) * _STEP + sequence.to(tl.uint64) * _SEQUENCE + slot.to(tl.uint64) * _GOLDEN
    return _mix(start + where)


@triton.jit
def gumbel(key, lane):
    """Standard Gumbel noise; each lane uses half of a 64-bit word."""
    word = _mix(key + ((lane >> 1) + 1).to(tl.uint64) * _GOLDEN)
    bits = (word >> ((lane & 1) * 32).to(tl.uint64)).to(tl.uint32).to(tl.int32, bitcast=True)
    uniform = bits.to(tl.float32) * 2.3283064365386963e-10 + 0.5
    uniform = tl.minimum(tl.maximum(uniform, 1.1641532182693481e-10), 0.99999994)
    return -tl.log(-tl.log(uniform))


@triton.jit
def kept(key, lane, dropped):
    """True if a hidden unit survives dropout at the rate `dropped` / 65536; each lane uses a quarter of a
    64-bit word."""
    word = _mix(key + ((lane >> 2) + 1).to(tl.uint64) * _GOLDEN)
    piece = (word >> ((lane & 3) * 16).to(tl.uint64)).to(tl.uint16).to(tl.int16, bitcast=True)
    return piece.to(tl.int32) >= dropped - 32768


AXES = 3  # at most, of the index tensors


@triton.jit(do_not_specialize=[
    "rows", "dropped", "size_1", "size_2", "step_0", "step_1", "step_2",
    "sequence_0", "sequence_1", "sequence_2", "slot_0", "slot_1", "slot_2",
])  # fmt: skip
def keep_kernel(
    keep, seed, step, sequence, slot, rows, scale, dropped, size_1, size_2,
    step_0, step_1, step_2, sequence_0, sequence_1, sequence_2, slot_0, slot_1, slot_2,
    WIDTH: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Rows of masks. A row is a place (i, j, k) in the index tensors step, sequence and slot, whose sizes and
    strides are given."""
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    lane = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = row < rows
    i, j, k = row // (size_1 * size_2), row // size_2 % size_1, row % size_2
    t = tl.load(step + i * step_0 + j * step_1 + k * step_2, mask=inside, other=0)
    b = tl.load(sequence + i * sequence_0 + j * sequence_1 + k * sequence_2, mask=inside, other=0)
    s = tl.load(slot + i * slot_0 + j * slot_1 + k * slot_2, mask=inside, other=0)
    key = row_key(tl.load(seed), DROPOUT, t, b, s)
    survives = kept(key[:, None], lane[None, :], dropped)
    place = keep + row[:, None].to(tl.int64) * WIDTH + lane[None, :]
    tl.store(place, tl.where(survives, scale, 0.0), mask=inside[:, None] & (lane < WIDTH)[None, :])


def draw_keep(
    seed: Tensor, step: Tensor, sequence: Tensor, slot: Tensor, width: int, dropout: float
) -> Tensor:
    """float32 masks (…, width) for int64 index tensors of at most three axes that broadcast to (…)."""
    dropped = round(dropout * 65536)
    shape = torch.broadcast_shapes(step.shape, sequence.shape, slot.shape)
    keep = torch.empty(*shape, width, device=seed.device)
    rows = keep.numel() // width
    full = (1,) * (AXES - len(shape)) + tuple(shape)
    indices = [index.expand(full) for index in (step, sequence, slot)]
    strides = [stride for index in indices for stride in index.stride()]
    if rows:
        launch(keep_kernel, (triton.cdiv(rows, 16), triton.cdiv(width, 128)),
            keep, seed, *indices, rows, 65536 / (65536 - dropped), dropped, *full[1:], *strides,
            WIDTH=width, BLOCK_M=16, BLOCK_N=128, num_warps=4,
        )  # fmt: skip
    return keep


@triton.jit
def name_of(node, n):
    """The number of a node in the counter of a pair's dropout mask, as `Timeline.number_in_sequence`; it does
    not depend on the padding."""
    return tl.where(node < n, node.to(tl.int64), node.to(tl.int64) - n + 4294967296)
