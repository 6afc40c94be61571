# mypy: allow-untyped-defs
"""The cell's gradient, level by level from the highest nodes down.

What does not depend on gradients is computed for all survivors at once (`activate`, `open_gates`). A level
has two phases, each a product: `through_gates` takes the gradient of its nodes through the layer norm and
the gates to the hidden layer; `through_hidden` takes it on to the children. No phase adds into shared
memory: a node gathers from its at most K parents, so the result does not depend on timing.
"""

import triton
import triton.language as tl

from beamtree.kernels.replay.survivor_kernels import locate
from beamtree.kernels.runtime.draw_kernels import DROPOUT, kept, row_key
from beamtree.kernels.runtime.math_kernels import gelu, gelu_slope, product


@triton.jit(do_not_specialize=["N", "T", "dropped"])
def activate_kernel(
    order, slots, hidden, activated, seed, N, T, dropped,
    K: tl.constexpr, UNITS: tl.constexpr, DROPS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """u = keep·GELU(h) beside h, and h itself becomes ∂u/∂h."""
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (row < N)[:, None] & (column < UNITS)[None, :]
    place = row[:, None].to(tl.int64) * UNITS + column[None, :]
    h = tl.load(hidden + place, mask=inside, other=0.0)
    u, slope = gelu(h), gelu_slope(h)
    if DROPS:
        _, sequence, _, t, record = locate(order, slots, row, row < N, T, K)
        slot = record - (sequence * T + t) * K
        key = row_key(tl.load(seed), DROPOUT, t, sequence, slot)
        keep = kept(key[:, None], column[None, :], dropped)
        scale = 65536.0 / (65536 - dropped)
        u = tl.where(keep, u * scale, 0.0)
        slope = tl.where(keep, slope * scale, 0.0)
    tl.store(activated + place, u, mask=inside)
    tl.store(hidden + place, slope, mask=inside)


@triton.jit(do_not_specialize=["N"])
def open_gates_kernel(
    gates, pairs, opened, normed, scales, N, D: tl.constexpr, BLOCK_M: tl.constexpr, ALL_D: tl.constexpr
):  # fmt: skip
    """gates become ∂p/∂gates; σ(a), σ(b), the normed sum and its scale are kept."""
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    feature = tl.arange(0, ALL_D)
    inside = (row < N)[:, None] & (feature < D)[None, :]
    gate = gates + row[:, None].to(tl.int64) * (4 * D) + feature[None, :]
    pair = pairs + row[:, None].to(tl.int64) * (2 * D) + feature[None, :]
    left = tl.load(pair, mask=inside, other=0.0)
    right = tl.load(pair + D, mask=inside, other=0.0)
    to_left = tl.sigmoid(tl.load(gate, mask=inside, other=0.0))
    to_right = tl.sigmoid(tl.load(gate + D, mask=inside, other=0.0))
    to_content = tl.sigmoid(tl.load(gate + 2 * D, mask=inside, other=0.0))
    content = tl.load(gate + 3 * D, mask=inside, other=0.0)
    total = tl.where(inside, to_left * left + to_right * right + to_content * content, 0.0)
    mean = tl.sum(total, 1) / D
    centred = tl.where(inside, total - mean[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 1) / D + 1e-5)
    place = row[:, None].to(tl.int64) * D + feature[None, :]
    tl.store(normed + place, centred * scale[:, None], mask=inside)
    tl.store(scales + row, scale, mask=row < N)
    open_pair = opened + row[:, None].to(tl.int64) * (2 * D) + feature[None, :]
    tl.store(open_pair, to_left, mask=inside)
    tl.store(open_pair + D, to_right, mask=inside)
    tl.store(gate, left * to_left * (1.0 - to_left), mask=inside)
    tl.store(gate + D, right * to_right * (1.0 - to_right), mask=inside)
    tl.store(gate + 2 * D, content * to_content * (1.0 - to_content), mask=inside)
    tl.store(gate + 3 * D, to_content, mask=inside)


@triton.jit
def collected(gradients, child_grads, parents, row, inside, feature, D: tl.constexpr, K: tl.constexpr):
    """A gradient row's own share and what its parents send it. Parents are of a higher level."""
    mask = inside[:, None] & (feature < D)[None, :]
    total = tl.load(gradients + row[:, None] * D + feature[None, :], mask=mask, other=0.0)
    for k in tl.static_range(K):
        parent = tl.load(parents + row * K + k, mask=inside, other=0) - 1
        sent = child_grads + parent[:, None].to(tl.int64) * D + feature[None, :]
        # Written by other programs during this launch: not through the first-level cache.
        total += tl.load(sent, mask=mask & (parent >= 0)[:, None], other=0.0, cache_modifier=".cg")
    return total


@triton.jit
def through_norm(
    gradients, child_grads, parents, normed, scales, gamma, first_row, row, inside, feature,
    D: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Gradient of survivors' nodes, and of the sums before their layer norm."""
    mask = inside[:, None] & (feature < D)[None, :]
    total = collected(gradients, child_grads, parents, first_row + row.to(tl.int64), inside, feature, D, K)
    y = tl.load(normed + row[:, None].to(tl.int64) * D + feature[None, :], mask=mask, other=0.0)
    scale = tl.load(scales + row, mask=inside, other=0.0)
    scaled = total * tl.load(gamma + feature, mask=feature < D, other=0.0)[None, :]
    mean = tl.sum(scaled, 1) / D
    along = tl.sum(scaled * y, 1) / D
    return total, tl.where(mask, (scaled - mean[:, None] - y * along[:, None]) * scale[:, None], 0.0)


@triton.jit
def keep_node_gradient(
    totals, sums, child_grads, total, through, row, inside, feature, D: tl.constexpr
):  # fmt: skip
    """Both gradients for the parameters, and the children's direct share: σ(a) and σ(b) times the sum's."""
    mask = inside[:, None] & (feature < D)[None, :]
    place = row[:, None].to(tl.int64) * D + feature[None, :]
    tl.store(totals + place, total, mask=mask)
    tl.store(sums + place, through, mask=mask)
    child = child_grads + row[:, None].to(tl.int64) * (2 * D) + feature[None, :]
    tl.store(child, tl.load(child, mask=mask, other=0.0) * through, mask=mask)
    tl.store(child + D, tl.load(child + D, mask=mask, other=0.0) * through, mask=mask)


@triton.jit
def through_gates(
    gradients, child_grads, parents, normed, scales, gamma, gates, hidden, w2, totals, sums,
    first_row, start, end, tile, block,
    D: tl.constexpr, K: tl.constexpr, UNITS: tl.constexpr, ALL_D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """First phase, a tile of rows × hidden units: `hidden`, which holds ∂u/∂h, becomes ∂L/∂h."""
    row = start + tile * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = row < end
    feature = tl.arange(0, ALL_D)
    total, through = through_norm(
        gradients, child_grads, parents, normed, scales, gamma, first_row, row, inside, feature, D, K
    )
    if block == 0:
        keep_node_gradient(totals, sums, child_grads, total, through, row, inside, feature, D)
    unit = block * BLOCK_N + tl.arange(0, BLOCK_N)
    to_hidden = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for gate in tl.static_range(4):
        mask = inside[:, None] & (feature < D)[None, :]
        place = row[:, None].to(tl.int64) * (4 * D) + gate * D + feature[None, :]
        to_gate = through * tl.load(gates + place, mask=mask, other=0.0)
        mask_w = (feature < D)[:, None] & (unit < UNITS)[None, :]
        w = tl.load(w2 + (gate * D + feature[:, None]) * UNITS + unit[None, :], mask=mask_w, other=0.0)
        to_hidden = product(to_gate, w, to_hidden, PRECISION)
    mask_h = inside[:, None] & (unit < UNITS)[None, :]
    target = hidden + row[:, None].to(tl.int64) * UNITS + unit[None, :]
    tl.store(target, tl.load(target, mask=mask_h, other=0.0) * to_hidden, mask=mask_h)


@triton.jit
def through_hidden(
    hidden, child_grads, w1, start, end, tile, block,
    D: tl.constexpr, UNITS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Second phase, a tile of rows × 2·d: add ∂L/∂h·W₁ to what the children are sent."""
    row = start + tile * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = row < end
    column = block * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for first in range(0, UNITS, BLOCK_K):
        unit = first + tl.arange(0, BLOCK_K)
        mask = inside[:, None] & (unit < UNITS)[None, :]
        place = row[:, None].to(tl.int64) * UNITS + unit[None, :]
        grad = tl.load(hidden + place, mask=mask, other=0.0, cache_modifier=".cg")
        mask_w = (unit < UNITS)[:, None] & (column < 2 * D)[None, :]
        w = tl.load(w1 + unit[:, None] * (2 * D) + column[None, :], mask=mask_w, other=0.0)
        total = product(grad, w, total, PRECISION)
    mask_c = inside[:, None] & (column < 2 * D)[None, :]
    target = child_grads + row[:, None].to(tl.int64) * (2 * D) + column[None, :]
    tl.store(target, tl.load(target, mask=mask_c, other=0.0, cache_modifier=".cg") + total, mask=mask_c)


@triton.jit
def wait_for_all(counter, goal):
    """A barrier over the grid, which must be resident as a whole: a cooperative launch."""
    tl.debug_barrier()
    seen = tl.atomic_add(counter, 1) + 1
    while seen < goal:
        seen = tl.atomic_add(counter, 0)
    tl.debug_barrier()


@triton.jit(do_not_specialize=["first_row", "highest", "lowest"])
def levels_kernel(
    gradients, child_grads, parents, normed, scales, gamma, gates, hidden, w1, w2, totals, sums, starts,
    counter, first_row, highest, lowest,
    D: tl.constexpr, K: tl.constexpr, UNITS: tl.constexpr, ALL_D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
    PHASES: tl.constexpr,
):  # fmt: skip
    """Levels of height `highest` down to `lowest`. PHASES = 3: in one cooperative launch, with barriers
    between phases; 1 or 2: one phase of one level, an ordinary launch."""
    programs = tl.num_programs(0)
    goal = 0
    for down in range(0, highest - lowest + 1):
        start = tl.load(starts + highest - down)
        end = tl.load(starts + highest - down - 1)
        tiles = (end - start + BLOCK_M - 1) // BLOCK_M
        if PHASES % 2 == 1:
            BLOCKS: tl.constexpr = (UNITS + BLOCK_N - 1) // BLOCK_N
            for job in range(tl.program_id(0), tiles * BLOCKS, programs):
                through_gates(
                    gradients, child_grads, parents, normed, scales, gamma, gates, hidden, w2, totals, sums,
                    first_row, start, end, job // BLOCKS, job % BLOCKS,
                    D, K, UNITS, ALL_D, BLOCK_M, BLOCK_N, PRECISION,
                )  # fmt: skip
        if PHASES == 3:
            goal += programs
            wait_for_all(counter, goal)
        if PHASES >= 2:
            COLUMNS: tl.constexpr = (2 * D + BLOCK_N - 1) // BLOCK_N
            for job in range(tl.program_id(0), tiles * COLUMNS, programs):
                through_hidden(
                    hidden, child_grads, w1, start, end, job // COLUMNS, job % COLUMNS,
                    D, UNITS, BLOCK_M, BLOCK_N, BLOCK_K, PRECISION,
                )  # fmt: skip
        if PHASES == 3:
            goal += programs
            wait_for_all(counter, goal)


@triton.jit(do_not_specialize=["first_row", "start", "end"])
def node_gradient_kernel(
    gradients, child_grads, parents, normed, scales, gamma, totals, sums, first_row, start, end,
    D: tl.constexpr, K: tl.constexpr, BLOCK_M: tl.constexpr, ALL_D: tl.constexpr,
):  # fmt: skip
    """The first phase without its product, where d is large and the library's products pay."""
    row = start + tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = row < end
    feature = tl.arange(0, ALL_D)
    total, through = through_norm(
        gradients, child_grads, parents, normed, scales, gamma, first_row, row, inside, feature, D, K
    )
    keep_node_gradient(totals, sums, child_grads, total, through, row, inside, feature, D)


@triton.jit(do_not_specialize=["rows"])
def collect_kernel(
    gradients, child_grads, parents, target, rows,
    D: tl.constexpr, K: tl.constexpr, BLOCK_M: tl.constexpr, ALL_D: tl.constexpr,
):  # fmt: skip
    """The leaves' gradient."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    feature = tl.arange(0, ALL_D)
    total = collected(gradients, child_grads, parents, row, row < rows, feature, D, K)
    mask = (row < rows)[:, None] & (feature < D)[None, :]
    tl.store(target + row[:, None] * D + feature[None, :], total, mask=mask)
