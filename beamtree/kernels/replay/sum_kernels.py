# mypy: allow-untyped-defs
"""Gradients of the parameters that are sums over rows: biases, the layer norm, the scorer's second layer."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["N", "rows"])
def close_kernel(
    gates, sums, hidden, totals, normed, activity, grad_energies, grad_projections, partial, N, rows,
    D: tl.constexpr, UNITS: tl.constexpr, H: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """∂p/∂gates become ∂L/∂gates; partial sums over rows for every parameter that a product does not give."""
    GATES: tl.constexpr = (4 * D + BLOCK_N - 1) // BLOCK_N
    UNIT_BLOCKS: tl.constexpr = (UNITS + BLOCK_N - 1) // BLOCK_N
    D_BLOCKS: tl.constexpr = (D + BLOCK_N - 1) // BLOCK_N
    H_BLOCKS: tl.constexpr = (H + BLOCK_N - 1) // BLOCK_N
    WIDTH: tl.constexpr = 6 * D + UNITS + 2 * H + 1
    block = tl.program_id(1)
    splits = tl.num_programs(0)
    target = partial + tl.program_id(0) * WIDTH
    local = tl.arange(0, BLOCK_N)
    total = tl.zeros([BLOCK_N], tl.float32)
    other = tl.zeros([BLOCK_N], tl.float32)
    if block < GATES:
        column = block * BLOCK_N + local
        for first in range(tl.program_id(0) * BLOCK_M, N, splits * BLOCK_M):
            row = (first + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
            mask = (row < N) & (column < 4 * D)[None, :]
            gate = gates + row * (4 * D) + column[None, :]
            grad = tl.load(gate, mask=mask, other=0.0)
            grad *= tl.load(sums + row * D + (column % D)[None, :], mask=mask, other=0.0)
            tl.store(gate, grad, mask=mask)
            total += tl.sum(grad, 0)
        tl.store(target + column, total, mask=column < 4 * D)
    elif block < GATES + UNIT_BLOCKS:
        column = (block - GATES) * BLOCK_N + local
        for first in range(tl.program_id(0) * BLOCK_M, N, splits * BLOCK_M):
            row = (first + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
            mask = (row < N) & (column < UNITS)[None, :]
            total += tl.sum(tl.load(hidden + row * UNITS + column[None, :], mask=mask, other=0.0), 0)
        tl.store(target + 4 * D + column, total, mask=column < UNITS)
    elif block < GATES + UNIT_BLOCKS + D_BLOCKS:
        column = (block - GATES - UNIT_BLOCKS) * BLOCK_N + local
        for first in range(tl.program_id(0) * BLOCK_M, N, splits * BLOCK_M):
            row = (first + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
            mask = (row < N) & (column < D)[None, :]
            grad = tl.load(totals + row * D + column[None, :], mask=mask, other=0.0)
            total += tl.sum(grad, 0)
            other += tl.sum(grad * tl.load(normed + row * D + column[None, :], mask=mask, other=0.0), 0)
        tl.store(target + 4 * D + UNITS + column, other, mask=column < D)
        tl.store(target + 5 * D + UNITS + column, total, mask=column < D)
    elif block < GATES + UNIT_BLOCKS + D_BLOCKS + H_BLOCKS:
        column = (block - GATES - UNIT_BLOCKS - D_BLOCKS) * BLOCK_N + local
        for first in range(tl.program_id(0) * BLOCK_M, rows, splits * BLOCK_M):
            row = (first + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
            mask = (row < rows) & (column < H)[None, :]
            total += tl.sum(
                tl.load(grad_projections + row * (2 * H) + H + column[None, :], mask=mask, other=0.0), 0
            )
            mask = (row < N) & (column < H)[None, :]
            other += tl.sum(tl.load(activity + row * H + column[None, :], mask=mask, other=0.0), 0)
        tl.store(target + 6 * D + UNITS + column, total, mask=column < H)
        tl.store(target + 6 * D + UNITS + H + column, other, mask=column < H)
    else:
        energy = tl.zeros([BLOCK_N], tl.float32)
        for first in range(tl.program_id(0) * BLOCK_N, N, splits * BLOCK_N):
            row = first + local
            energy += tl.load(grad_energies + row, mask=row < N, other=0.0)
        tl.store(target + 6 * D + UNITS + 2 * H, tl.sum(energy, 0))
