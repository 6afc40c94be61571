# mypy: allow-untyped-defs
"""Gradients of the parameters. All are sums over rows: of the rows themselves for biases, the layer norm and
the scorer's second layer, of outer products for the matrices.

Several programs share the rows of a sum. Each stores its part, and the parts are then added in order, so that
the result does not depend on timing.
"""

import triton
import triton.language as tl

from beamtree.kernels.runtime import address_kernels as at
from beamtree.kernels.runtime.math_kernels import product_tile, share_of


@triton.jit
def column_sums(
    values, other, column, real, rows, STRIDE: tl.constexpr, BLOCK_M: tl.constexpr, BOTH: tl.constexpr
):
    """Sums of some columns over this program's rows; with BOTH also the sums of values · other."""
    total = tl.zeros([column.shape[0]], tl.float32)
    along = tl.zeros([column.shape[0]], tl.float32)
    for first in range(tl.program_id(0) * BLOCK_M, rows, tl.num_programs(0) * BLOCK_M):
        row = (first + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
        mask = (row < rows) & real[None, :]
        place = row * STRIDE + column[None, :]
        x = tl.load(values + place, mask=mask, other=0.0)
        total += tl.sum(x, 0)
        if BOTH:
            along += tl.sum(x * tl.load(other + place, mask=mask, other=0.0), 0)
    return total, along


@triton.jit
def close_kernel(
    table, D: tl.constexpr, UNITS: tl.constexpr, H: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    """∂p/∂gates become ∂L/∂gates; and the partial sums for every parameter that is not a matrix, next to one
    another: b₂, b₁, γ, β, the scorer's b₁ and w₂, its b₂. A program takes one block of columns."""
    GATES: tl.constexpr = (4 * D + BLOCK_N - 1) // BLOCK_N
    UNIT_BLOCKS: tl.constexpr = (UNITS + BLOCK_N - 1) // BLOCK_N
    D_BLOCKS: tl.constexpr = (D + BLOCK_N - 1) // BLOCK_N
    H_BLOCKS: tl.constexpr = (H + BLOCK_N - 1) // BLOCK_N
    WIDTH: tl.constexpr = 6 * D + UNITS + 2 * H + 1
    N = at.number(table, at.SURVIVORS)
    leaves = at.number(table, at.BATCH) * at.number(table, at.LENGTH)
    block = tl.program_id(1)
    splits = tl.num_programs(0)
    target = at.floats(table, at.PARTIAL_SUMS) + tl.program_id(0) * WIDTH
    local = tl.arange(0, BLOCK_N)
    used = tl.minimum(leaves, 1)  # 0 if the table is empty, 1 otherwise
    if block < GATES:  # ∂L/∂gates, and the gradient of b₂
        gates, sums = at.floats(table, at.GATES), at.floats(table, at.SUMS)
        column = block * BLOCK_N + local
        total = tl.zeros([BLOCK_N], tl.float32)
        for first in range(tl.program_id(0) * BLOCK_M, N, splits * BLOCK_M):
            row = (first + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
            mask = (row < N) & (column < 4 * D)[None, :]
            gate = gates + row * (4 * D) + column[None, :]
            grad = tl.load(gate, mask=mask, other=0.0)
            grad *= tl.load(sums + row * D + (column % D)[None, :], mask=mask, other=0.0)
            tl.store(gate, grad, mask=mask)
            total += tl.sum(grad, 0)
        tl.store(target + column, total, mask=column < 4 * D * used)
    elif block < GATES + UNIT_BLOCKS:  # b₁
        hidden = at.floats(table, at.HIDDEN)
        column = (block - GATES) * BLOCK_N + local
        total, _ = column_sums(hidden, hidden, column, column < UNITS, N, UNITS, BLOCK_M, False)
        tl.store(target + 4 * D + column, total, mask=column < UNITS * used)
    elif block < GATES + UNIT_BLOCKS + D_BLOCKS:  # γ and β
        totals, normed = at.floats(table, at.TOTALS), at.floats(table, at.NORMED)
        column = (block - GATES - UNIT_BLOCKS) * BLOCK_N + local
        total, along = column_sums(totals, normed, column, column < D, N, D, BLOCK_M, True)
        tl.store(target + 4 * D + UNITS + column, along, mask=column < D * used)
        tl.store(target + 5 * D + UNITS + column, total, mask=column < D * used)
    elif block < GATES + UNIT_BLOCKS + D_BLOCKS + H_BLOCKS:  # the scorer's b₁ and w₂
        # Each pair has one right child, so the gradients of right projections alone sum up to ∂L/∂b₁.
        of_right, activity = at.floats(table, at.GRAD_PROJECTIONS) + H, at.floats(table, at.ACTIVITY)
        column = (block - GATES - UNIT_BLOCKS - D_BLOCKS) * BLOCK_N + local
        total, _ = column_sums(of_right, of_right, column, column < H, leaves + N, 2 * H, BLOCK_M, False)
        tl.store(target + 6 * D + UNITS + column, total, mask=column < H * used)
        total, _ = column_sums(activity, activity, column, column < H, N, H, BLOCK_M, False)
        tl.store(target + 6 * D + UNITS + H + column, total, mask=column < H * used)
    else:  # the scorer's b₂
        grad_energies = at.floats(table, at.GRAD_ENERGIES)
        energy = tl.zeros([BLOCK_N], tl.float32)
        for first in range(tl.program_id(0) * BLOCK_N, N, splits * BLOCK_N):
            row = first + local
            energy += tl.load(grad_energies + row, mask=row < N, other=0.0)
        tl.store(target + 6 * D + UNITS + 2 * H, tl.sum(energy, 0), mask=used > 0)


@triton.jit
def outer_products(
    a, b, target, job, splits, rows,
    M: tl.constexpr, N: tl.constexpr, ROLES: tl.constexpr, STRIDE: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """A tile of aᵀ·b, summed over a part of the rows of a (·, M) and b (·, N). Parts are STRIDE numbers
    apart. With ROLES = 2 the upper and the lower half of the M rows are stored side by side: (M / 2, 2·N)."""
    BLOCKS: tl.constexpr = (N + BLOCK - 1) // BLOCK
    TILES: tl.constexpr = (M + BLOCK - 1) // BLOCK * BLOCKS
    EACH: tl.constexpr = M // ROLES
    row = job % TILES // BLOCKS * BLOCK + tl.arange(0, BLOCK)[:, None]
    column = job % BLOCKS * BLOCK + tl.arange(0, BLOCK)[None, :]
    first, end = share_of(job // TILES, splits, rows.to(tl.int64), BLOCK_R)
    total = product_tile(a, b, row, column, first, end, M, N, M, N, True, False, PRECISION, BLOCK_R)
    place = (row % EACH) * (ROLES * N) + row // EACH * N + column
    tl.store(target + job // TILES * STRIDE + place, total, mask=(row < M) & (column < N))


@triton.jit
def weights_kernel(
    table,
    D: tl.constexpr, UNITS: tl.constexpr, S: tl.constexpr, H: tl.constexpr, CELL: tl.constexpr,
    PRECISION: tl.constexpr, SCORER_PRECISION: tl.constexpr, BLOCK: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Partial sums for the scorer's first layer, and with CELL for the cell's two matrices."""
    N = at.number(table, at.SURVIVORS)
    splits = at.number(table, at.CELL_SPLITS)
    target = at.floats(table, at.PARTIAL_CELL)
    SCORER_TILES: tl.constexpr = ((2 * H + BLOCK - 1) // BLOCK) * ((S + BLOCK - 1) // BLOCK)
    FIRST: tl.constexpr = ((UNITS + BLOCK - 1) // BLOCK) * ((2 * D + BLOCK - 1) // BLOCK)
    SECOND: tl.constexpr = ((4 * D + BLOCK - 1) // BLOCK) * ((UNITS + BLOCK - 1) // BLOCK)
    if H > 0:
        of_scorer = at.number(table, at.SCORER_SPLITS)
        rows = at.number(table, at.BATCH) * at.number(table, at.LENGTH) + N
        for job in range(tl.program_id(0), SCORER_TILES * of_scorer, tl.num_programs(0)):
            outer_products(
                at.floats(table, at.GRAD_PROJECTIONS), at.floats(table, at.SLICES),
                at.floats(table, at.PARTIAL_SCORER), job, of_scorer, rows,
                2 * H, S, 2, 2 * H * S, SCORER_PRECISION, BLOCK, BLOCK_R,
            )  # fmt: skip
    if CELL:
        for job in range(tl.program_id(0), FIRST * splits, tl.num_programs(0)):
            outer_products(
                at.floats(table, at.HIDDEN), at.floats(table, at.PAIRS), target, job, splits, N,
                UNITS, 2 * D, 1, 6 * D * UNITS, PRECISION, BLOCK, BLOCK_R,
            )  # fmt: skip
        for job in range(tl.program_id(0), SECOND * splits, tl.num_programs(0)):
            outer_products(
                at.floats(table, at.GATES), at.floats(table, at.ACTIVATED), target + 2 * D * UNITS,
                job, splits, N, 4 * D, UNITS, 1, 6 * D * UNITS, PRECISION, BLOCK, BLOCK_R,
            )  # fmt: skip


@triton.jit
def add_parts(parts, target, count, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Add `count` parts of SIZE numbers each, in order."""
    for first in range(tl.program_id(0) * BLOCK, SIZE, tl.num_programs(0) * BLOCK):
        index = first + tl.arange(0, BLOCK)
        total = tl.zeros([BLOCK], tl.float32)
        for part in range(0, count):
            total += tl.load(parts + tl.cast(part, tl.int64) * SIZE + index, mask=index < SIZE, other=0.0)
        tl.store(target + index, total, mask=index < SIZE)


@triton.jit
def add_parts_kernel(
    table,
    SUMS: tl.constexpr, SPLITS: tl.constexpr, SCORER: tl.constexpr, CELL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add the parts of every sum. A matrix's single part is already in the place of the sum."""
    OF_SCORER: tl.constexpr = (SUMS + 3) // 4 * 4
    OF_CELL: tl.constexpr = OF_SCORER + (SCORER + 3) // 4 * 4
    target = at.floats(table, at.GRAD_WEIGHTS)
    if at.number(table, at.BATCH) > 0:
        add_parts(at.floats(table, at.PARTIAL_SUMS), target, SPLITS, SUMS, BLOCK)
    splits = at.number(table, at.SCORER_SPLITS)
    if splits > 1:
        add_parts(at.floats(table, at.PARTIAL_SCORER), target + OF_SCORER, splits, SCORER, BLOCK)
    splits = at.number(table, at.CELL_SPLITS)
    if splits > 1:
        add_parts(at.floats(table, at.PARTIAL_CELL), target + OF_CELL, splits, CELL, BLOCK)
