# mypy: allow-untyped-defs
"""Given trees on a GPU: all nodes of one height at a time, up for the values, down for the gradients.

A node row stands for a leaf (B·n of them) or for a merge (after the leaves, lowest first). Each level has
three phases that wait for each other. The highest level is known on the device only: nobody asks for it.
"""

import triton
import triton.language as tl

from beamtree.kernels.replay.level_kernels import (
    keep_node_gradient,
    through_hidden,
    through_norm,
    wait_for_all,
)
from beamtree.kernels.runtime.math_kernels import gelu, gelu_slope, product


@triton.jit
def hidden_tile(
    nodes, children, keep, w1, b1, hidden, start, end, tile, block,
    D: tl.constexpr, UNITS: tl.constexpr, DROPS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """First phase up, a tile of rows × hidden units: u = keep · GELU(W₁ [l; r] + b₁)."""
    row = (start + tile * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    inside = row < end
    unit = block * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for side in tl.static_range(2):
        source = nodes + tl.load(children + row * 2 + side, mask=inside, other=0) * D
        for first in range(0, D, BLOCK_K):
            feature = first + tl.arange(0, BLOCK_K)
            mask = inside[:, None] & (feature < D)[None, :]
            # Written by other programs during this launch: not through the first-level cache.
            x = tl.load(source[:, None] + feature[None, :], mask=mask, other=0.0, cache_modifier=".cg")
            mask_w = (unit < UNITS)[None, :] & (feature < D)[:, None]
            w = w1 + unit[None, :] * (2 * D) + side * D + feature[:, None]
            total = product(x, tl.load(w, mask=mask_w, other=0.0), total, PRECISION)
    u = gelu(total + tl.load(b1 + unit, mask=unit < UNITS, other=0.0)[None, :])
    place = row[:, None] * UNITS + unit[None, :]
    mask = inside[:, None] & (unit < UNITS)[None, :]
    if DROPS:
        u *= tl.load(keep + place, mask=mask, other=0.0)
    tl.store(hidden + place, u, mask=mask)


@triton.jit
def gates_tile(
    nodes, children, w2, b2, hidden, first_row, start, end, tile, block,
    D: tl.constexpr, UNITS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_F: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Second phase up, a tile of rows × features: σ(a)·l + σ(b)·r + σ(g)·c, all four gates of a feature."""
    row = (start + tile * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    inside = row < end
    column = tl.arange(0, 4 * BLOCK_F)  # 4·feature + gate
    weight_row = (column % 4) * D + block * BLOCK_F + column // 4
    real = block * BLOCK_F + column // 4 < D
    total = tl.zeros([BLOCK_M, 4 * BLOCK_F], tl.float32)
    for first in range(0, UNITS, BLOCK_K):
        unit = first + tl.arange(0, BLOCK_K)
        mask = inside[:, None] & (unit < UNITS)[None, :]
        u = hidden + row[:, None] * UNITS + unit[None, :]
        u = tl.load(u, mask=mask, other=0.0, cache_modifier=".cg")
        mask_w = real[None, :] & (unit < UNITS)[:, None]
        w = tl.load(w2 + weight_row[None, :] * UNITS + unit[:, None], mask=mask_w, other=0.0)
        total = product(u, w, total, PRECISION)
    total += tl.load(b2 + weight_row, mask=real, other=0.0)[None, :]
    even, odd = tl.split(tl.reshape(total, [BLOCK_M, BLOCK_F, 2, 2]))
    to_left, to_content = tl.split(even)
    to_right, content = tl.split(odd)
    feature = block * BLOCK_F + tl.arange(0, BLOCK_F)
    mask = inside[:, None] & (feature < D)[None, :]
    left = tl.load(children + row * 2, mask=inside, other=0)[:, None] * D + feature[None, :]
    right = tl.load(children + row * 2 + 1, mask=inside, other=0)[:, None] * D + feature[None, :]
    mixed = tl.sigmoid(to_left) * tl.load(nodes + left, mask=mask, other=0.0, cache_modifier=".cg")
    mixed += tl.sigmoid(to_right) * tl.load(nodes + right, mask=mask, other=0.0, cache_modifier=".cg")
    mixed += tl.sigmoid(to_content) * content
    tl.store(nodes + (first_row + row)[:, None] * D + feature[None, :], mixed, mask=mask)


@triton.jit
def normalise_rows(
    nodes, gamma, beta, first_row, start, end, tile,
    D: tl.constexpr, ALL_D: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Third phase up: the layer norm, in place."""
    row = (start + tile * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    feature = tl.arange(0, ALL_D)
    mask = (row < end)[:, None] & (feature < D)[None, :]
    place = nodes + (first_row + row)[:, None] * D + feature[None, :]
    mixed = tl.load(place, mask=mask, other=0.0, cache_modifier=".cg")
    mean = tl.sum(mixed, 1) / D
    centred = tl.where(mask, mixed - mean[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 1) / D + 1e-5)
    weight = tl.load(gamma + feature, mask=feature < D, other=0.0)[None, :]
    bias = tl.load(beta + feature, mask=feature < D, other=0.0)[None, :]
    tl.store(place, centred * scale[:, None] * weight + bias, mask=mask)


@triton.jit(do_not_specialize=["first_row", "lowest"])
def ascend_kernel(
    nodes, children, keep, w1, b1, w2, b2, gamma, beta, hidden, starts, height, counter, first_row, lowest,
    D: tl.constexpr, UNITS: tl.constexpr, ALL_D: tl.constexpr, DROPS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, ROWS: tl.constexpr,
    PRECISION: tl.constexpr, PHASE: tl.constexpr,
):  # fmt: skip
    """The nodes of all levels. PHASE = 0: in one cooperative launch, with barriers between phases; 1, 2 or 3:
    one phase of the level `lowest`, an ordinary launch."""
    UNIT_BLOCKS: tl.constexpr = (UNITS + BLOCK_N - 1) // BLOCK_N
    BLOCK_F: tl.constexpr = BLOCK_N // 4
    FEATURE_BLOCKS: tl.constexpr = (D + BLOCK_F - 1) // BLOCK_F
    programs = tl.num_programs(0)
    levels = tl.load(height) if PHASE == 0 else 1
    goal = 0
    for up in range(0, levels):
        start = tl.load(starts + lowest + up)
        end = tl.load(starts + lowest + up + 1)
        tiles = (end - start + BLOCK_M - 1) // BLOCK_M
        if PHASE < 2:
            for job in range(tl.program_id(0), tiles * UNIT_BLOCKS, programs):
                hidden_tile(
                    nodes, children, keep, w1, b1, hidden, start, end, job // UNIT_BLOCKS, job % UNIT_BLOCKS,
                    D, UNITS, DROPS, BLOCK_M, BLOCK_N, BLOCK_K, PRECISION,
                )  # fmt: skip
        if PHASE == 0:
            goal += programs
            wait_for_all(counter, goal)
        if PHASE % 2 == 0:
            for job in range(tl.program_id(0), tiles * FEATURE_BLOCKS, programs):
                gates_tile(
                    nodes, children, w2, b2, hidden, first_row, start, end,
                    job // FEATURE_BLOCKS, job % FEATURE_BLOCKS,
                    D, UNITS, BLOCK_M, BLOCK_F, BLOCK_K, PRECISION,
                )  # fmt: skip
        if PHASE == 0:
            goal += programs
            wait_for_all(counter, goal)
        if PHASE % 3 == 0:
            for tile in range(tl.program_id(0), (end - start + ROWS - 1) // ROWS, programs):
                normalise_rows(nodes, gamma, beta, first_row, start, end, tile, D, ALL_D, ROWS)
        if PHASE == 0:
            goal += programs
            wait_for_all(counter, goal)


@triton.jit(do_not_specialize=["N"])
def gather_kernel(
    nodes, children, parents, pairs, N, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr
):
    """The children's vectors, zero where there is no merge; and every child is told who its parent is, as
    1 + twice the parent's row + side."""
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    for side in tl.static_range(2):
        child = tl.load(children + row.to(tl.int64) * 2 + side, mask=row < N, other=-1)
        exists = child >= 0
        tl.store(parents + child, 1 + 2 * row + side, mask=exists)
        for first in range(0, D, BLOCK_D):
            feature = first + tl.arange(0, BLOCK_D)
            real = (feature < D)[None, :]
            x = tl.load(nodes + child[:, None] * D + feature[None, :], mask=exists[:, None] & real, other=0.0)
            target = pairs + row[:, None].to(tl.int64) * (2 * D) + side * D + feature[None, :]
            tl.store(target, x, mask=(row < N)[:, None] & real)


@triton.jit(do_not_specialize=["N"])
def activate_kernel(
    children, keep, hidden, activated, N,
    UNITS: tl.constexpr, DROPS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """u = keep·GELU(h) beside h, and h itself becomes ∂u/∂h; both zero where there is no merge."""
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    exists = tl.load(children + row.to(tl.int64) * 2, mask=row < N, other=-1) >= 0
    inside = (row < N)[:, None] & (column < UNITS)[None, :]
    place = row[:, None].to(tl.int64) * UNITS + column[None, :]
    h = tl.load(hidden + place, mask=inside, other=0.0)
    scale = tl.where(exists[:, None], 1.0, 0.0)
    if DROPS:
        scale *= tl.load(keep + place, mask=inside, other=0.0)
    tl.store(activated + place, gelu(h) * scale, mask=inside)
    tl.store(hidden + place, gelu_slope(h) * scale, mask=inside)


@triton.jit
def to_hidden_tile(
    sums, gates, hidden, w2, start, end, tile, block,
    D: tl.constexpr, UNITS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Second phase down, a tile of rows × hidden units: `hidden`, which holds ∂u/∂h, becomes ∂L/∂h."""
    row = (start + tile * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    inside = row < end
    unit = block * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for gate in tl.static_range(4):
        for first in range(0, D, BLOCK_K):
            feature = first + tl.arange(0, BLOCK_K)
            mask = inside[:, None] & (feature < D)[None, :]
            grad = sums + row[:, None] * D + feature[None, :]
            grad = tl.load(grad, mask=mask, other=0.0, cache_modifier=".cg")
            place = row[:, None] * (4 * D) + gate * D + feature[None, :]
            grad *= tl.load(gates + place, mask=mask, other=0.0)
            mask_w = (feature < D)[:, None] & (unit < UNITS)[None, :]
            w = tl.load(w2 + (gate * D + feature[:, None]) * UNITS + unit[None, :], mask=mask_w, other=0.0)
            total = product(grad, w, total, PRECISION)
    mask = inside[:, None] & (unit < UNITS)[None, :]
    target = hidden + row[:, None] * UNITS + unit[None, :]
    tl.store(target, tl.load(target, mask=mask, other=0.0) * total, mask=mask)


@triton.jit(do_not_specialize=["first_row", "highest"])
def descend_kernel(
    gradients, child_grads, parents, normed, scales, gamma, gates, hidden, w1, w2, totals, sums, starts,
    height, counter, first_row, highest,
    D: tl.constexpr, UNITS: tl.constexpr, ALL_D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, ROWS: tl.constexpr,
    PRECISION: tl.constexpr, PHASE: tl.constexpr,
):  # fmt: skip
    """The cell's gradient at all levels, the highest first; PHASE as above, of the level `highest`."""
    UNIT_BLOCKS: tl.constexpr = (UNITS + BLOCK_N - 1) // BLOCK_N
    COLUMNS: tl.constexpr = (2 * D + BLOCK_N - 1) // BLOCK_N
    programs = tl.num_programs(0)
    levels = tl.load(height) if PHASE == 0 else 1
    top = levels - 1 if PHASE == 0 else highest
    feature = tl.arange(0, ALL_D)
    goal = 0
    for down in range(0, levels):
        start = tl.load(starts + top - down)
        end = tl.load(starts + top - down + 1)
        tiles = (end - start + BLOCK_M - 1) // BLOCK_M
        if PHASE < 2:
            for tile in range(tl.program_id(0), (end - start + ROWS - 1) // ROWS, programs):
                row = start + tile * ROWS + tl.arange(0, ROWS)
                inside = row < end
                total, through = through_norm(
                    gradients, child_grads, parents, normed, scales, gamma, first_row, row, inside, feature,
                    D, 1,
                )  # fmt: skip
                keep_node_gradient(totals, sums, child_grads, total, through, row, inside, feature, D)
        if PHASE == 0:
            goal += programs
            wait_for_all(counter, goal)
        if PHASE % 2 == 0:
            for job in range(tl.program_id(0), tiles * UNIT_BLOCKS, programs):
                to_hidden_tile(
                    sums, gates, hidden, w2, start, end, job // UNIT_BLOCKS, job % UNIT_BLOCKS,
                    D, UNITS, BLOCK_M, BLOCK_N, BLOCK_K, PRECISION,
                )  # fmt: skip
        if PHASE == 0:
            goal += programs
            wait_for_all(counter, goal)
        if PHASE % 3 == 0:
            for job in range(tl.program_id(0), tiles * COLUMNS, programs):
                through_hidden(
                    hidden, child_grads, w1, start, end, job // COLUMNS, job % COLUMNS,
                    D, UNITS, BLOCK_M, BLOCK_N, BLOCK_K, PRECISION,
                )  # fmt: skip
        if PHASE == 0:
            goal += programs
            wait_for_all(counter, goal)
