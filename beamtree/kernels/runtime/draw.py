# mypy: allow-untyped-defs
"""Dropout masks on a GPU by one kernel, bit for bit those of random_bits.py, which takes twenty."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from beamtree.kernels.runtime.draw_kernels import DROPOUT, kept, row_key
from beamtree.pytorch.launch import launch

AXES = 3  # of the index tensors, at most


@triton.jit(do_not_specialize=[
    "rows", "dropped", "size_1", "size_2", "step_0", "step_1", "step_2",
    "sequence_0", "sequence_1", "sequence_2", "slot_0", "slot_1", "slot_2",
])  # fmt: skip
def keep_kernel(
    keep, seed, step, sequence, slot, rows, scale, dropped, size_1, size_2,
    step_0, step_1, step_2, sequence_0, sequence_1, sequence_2, slot_0, slot_1, slot_2,
    WIDTH: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Rows of masks; the sizes and strides are those of the index tensors."""
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
