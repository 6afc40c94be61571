# mypy: allow-untyped-defs
"""The cell's gradient, level by level from the highest nodes down.

Everything that does not depend on gradients is computed for all nodes at once (`activate…`, `open_…`). Then
each level takes three phases: the gradient of a node goes back through the layer norm to its sum p, by a
product to the hidden layer, and by another product to the children. There are no atomic additions: a node
gathers from its parents, of which there are at most K, so the result does not depend on timing.
"""

import triton
import triton.language as tl

from beamtree.kernels import cell_kernels as cell
from beamtree.kernels.replay.survivor_kernels import locate
from beamtree.kernels.runtime import address_kernels as at
from beamtree.kernels.runtime.math_kernels import product, product_tile, row_tile


@triton.jit
def activate_survivors_kernel(
    table,
    K: tl.constexpr, UNITS: tl.constexpr, DROPS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """For the survivors, u = keep·GELU(h + b₁) goes into `activated`, and h becomes ∂u/∂h. `hidden` holds h
    without b₁. A mask belongs to a merge."""
    BLOCKS: tl.constexpr = (UNITS + BLOCK_N - 1) // BLOCK_N
    N, T = at.number(table, at.SURVIVORS), at.number(table, at.LENGTH) - 1
    order, slots = at.longs(table, at.ORDER), at.integers(table, at.SLOTS)
    hidden, activated = at.floats(table, at.HIDDEN), at.floats(table, at.ACTIVATED)
    biases = at.floats(table, at.B1)
    for job in range(tl.program_id(0), tl.cdiv(N, BLOCK_M) * BLOCKS, tl.num_programs(0)):
        row, unit, inside, place = cell.unit_tile(job // BLOCKS, job % BLOCKS, N, UNITS, BLOCK_M, BLOCK_N)
        keep = 1.0
        if DROPS:
            _, sequence, _, t, record = locate(order, slots, row, row < N, T, K)
            slot = record - (sequence * T + t) * K
            keep = cell.drawn_mask(at.seed(table), t, sequence, slot, unit, at.number(table, at.DROPPED))
        bias = tl.load(biases + unit, mask=unit < UNITS, other=0.0)[None, :]
        cell.activate_tile(hidden, keep, activated, hidden, place, inside, True, DROPS, bias)


@triton.jit
def open_gates(
    gates, pairs, opened, normed, scales, tile, N,
    D: tl.constexpr, BLOCK_M: tl.constexpr, ALL_D: tl.constexpr, biases=None,
):  # fmt: skip
    """Gates become ∂p/∂gates; σ(a), σ(b), the normalised sum and its scale are stored. `biases` is b₂ if the
    gates do not include it."""
    row, inside, feature, _, mask, place = row_tile(tile, N, D, ALL_D, BLOCK_M)
    gate = gates + row[:, None] * (4 * D) + feature[None, :]
    pair = row[:, None] * (2 * D) + feature[None, :]
    if biases is not None:
        biases += feature[None, :] + row[:, None] * 0
    left, right, a, b, g, c, y, scale = cell.open_gates(
        gate, pairs + pair, pairs + pair + D, mask, D, 1e-5, biases
    )
    tl.store(normed + place, y, mask=mask)
    tl.store(scales + row, scale, mask=inside)
    tl.store(opened + pair, a, mask=mask)
    tl.store(opened + pair + D, b, mask=mask)
    cell.store_gate_slopes(gate, left, right, a, b, g, c, 1.0, mask, D)


@triton.jit(do_not_specialize=["N"])
def open_gates_kernel(
    gates, pairs, opened, normed, scales, N, D: tl.constexpr, BLOCK_M: tl.constexpr, ALL_D: tl.constexpr
):
    """`open_gates` for any pairs."""
    open_gates(gates, pairs, opened, normed, scales, tl.program_id(0), N, D, BLOCK_M, ALL_D)


@triton.jit
def open_survivors_kernel(
    table, D: tl.constexpr, BLOCK_M: tl.constexpr, ALL_D: tl.constexpr, BIASED: tl.constexpr
):
    """`open_gates` for the survivors; with BIASED their gates include the biases. Also resets the barrier's
    counter."""
    N = at.number(table, at.SURVIVORS)
    tl.store(at.integers(table, at.COUNTER), 0, mask=tl.program_id(0) < tl.minimum(N, 1))
    for tile in range(tl.program_id(0), tl.cdiv(N, BLOCK_M), tl.num_programs(0)):
        open_gates(
            at.floats(table, at.GATES), at.floats(table, at.PAIRS), at.floats(table, at.CHILD_GRADS),
            at.floats(table, at.NORMED), at.floats(table, at.SCALES), tile, N, D, BLOCK_M, ALL_D,
            None if BIASED else at.floats(table, at.B2),
        )  # fmt: skip


@triton.jit
def collected(gradients, child_grads, parents, row, inside, feature, D: tl.constexpr, K: tl.constexpr):
    """A row's gradient: its own share plus what its parents send it, which are on higher levels."""
    mask = inside[:, None] & (feature < D)[None, :]
    total = tl.load(gradients + row[:, None] * D + feature[None, :], mask=mask, other=0.0)
    for k in tl.static_range(K):
        parent = tl.load(parents + row * K + k, mask=inside, other=0) - 1
        sent = child_grads + parent[:, None].to(tl.int64) * D + feature[None, :]
        # Other programs write this during the launch: bypass the first-level cache.
        total += tl.load(sent, mask=mask & (parent >= 0)[:, None], other=0.0, cache_modifier=".cg")
    return total


@triton.jit
def node_gradient(
    gradients, child_grads, parents, normed, scales, gamma, first_row, row, inside, feature,
    D: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """∂L/∂node of some survivors, and ∂L/∂p of the sums before their layer norm."""
    mask = inside[:, None] & (feature < D)[None, :]
    total = collected(gradients, child_grads, parents, first_row + row.to(tl.int64), inside, feature, D, K)
    y = tl.load(normed + row[:, None].to(tl.int64) * D + feature[None, :], mask=mask, other=0.0)
    scale = tl.load(scales + row, mask=inside, other=0.0)
    scaled = total * tl.load(gamma + feature, mask=feature < D, other=0.0)[None, :]
    return total, tl.where(mask, cell.through_norm(scaled, y, scale, D), 0.0)


@triton.jit
def keep_node_gradient(
    totals, sums, child_grads, total, through, row, inside, feature, D: tl.constexpr
):  # fmt: skip
    """Store both gradients, which the parameters' gradients need, and the children's share by
    p = σ(a)·l + σ(b)·r + …: σ(a)·∂L/∂p and σ(b)·∂L/∂p."""
    mask = inside[:, None] & (feature < D)[None, :]
    place = row[:, None].to(tl.int64) * D + feature[None, :]
    tl.store(totals + place, total, mask=mask)
    tl.store(sums + place, through, mask=mask)
    child = child_grads + row[:, None].to(tl.int64) * (2 * D) + feature[None, :]
    tl.store(child, tl.load(child, mask=mask, other=0.0) * through, mask=mask)
    tl.store(child + D, tl.load(child + D, mask=mask, other=0.0) * through, mask=mask)


@triton.jit
def to_sums(
    gradients, child_grads, parents, normed, scales, gamma, totals, sums, first_row, start, end,
    D: tl.constexpr, K: tl.constexpr, ALL_D: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """First phase, for some rows: gradients of nodes and of their sums, the children's share by the sum."""
    row = start + tl.arange(0, ROWS)
    inside = row < end
    feature = tl.arange(0, ALL_D)
    total, through = node_gradient(
        gradients, child_grads, parents, normed, scales, gamma, first_row, row, inside, feature, D, K
    )
    keep_node_gradient(totals, sums, child_grads, total, through, row, inside, feature, D)


@triton.jit
def through_gates(
    gradients, child_grads, parents, normed, scales, gamma, gates, hidden, w2, totals, sums,
    first_row, start, end, tile, block,
    D: tl.constexpr, K: tl.constexpr, UNITS: tl.constexpr, ALL_D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The first two phases in one, a tile of rows × hidden units: ∂u/∂h in `hidden` becomes ∂L/∂h. All blocks
    of a tile's rows compute the first phase; one of them stores it."""
    row = start + tile * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = row < end
    feature = tl.arange(0, ALL_D)
    total, through = node_gradient(
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
    """Third phase, a tile of rows × 2·d: add ∂L/∂h·W₁ to the gradient sent to the children."""
    row = (start + tile * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    inside = row < end
    column = block * BLOCK_N + tl.arange(0, BLOCK_N)
    total = cell.to_children_tile(hidden, child_grads, w1, row, inside, column, D, UNITS, BLOCK_K, PRECISION)
    target = child_grads + row[:, None] * (2 * D) + column[None, :]
    tl.store(target, total, mask=inside[:, None] & (column < 2 * D)[None, :])


@triton.jit
def wait_for_all(counter, goal):
    """A barrier for all programs, which must be resident at once: that takes a cooperative launch. The
    counter is never reset, so `goal` grows by the number of programs from one barrier to the next."""
    tl.debug_barrier()
    seen = tl.atomic_add(counter, 1) + 1
    while seen < goal:
        seen = tl.atomic_add(counter, 0)
    tl.debug_barrier()


@triton.jit(do_not_specialize=["level"])
def descend_kernel(
    table, level,
    D: tl.constexpr, K: tl.constexpr, UNITS: tl.constexpr, ALL_D: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
    PHASE: tl.constexpr,
):  # fmt: skip
    """All levels from the highest down to 1. Level h has the rows between starts[h − 1] and starts[h],
    whichever is less: rows may be sorted with the highest nodes first or last.

    PHASE = 0 runs all levels in one cooperative launch, with barriers between phases; 1, 2 or 3 run one phase
    of one `level` in an ordinary launch. ROWS is how many rows a program takes through the layer norm in the
    first phase; with 0 there is no first phase, and each tile of the second does it for its own rows, which
    pays on small levels.
    """
    UNIT_BLOCKS: tl.constexpr = (UNITS + BLOCK_N - 1) // BLOCK_N
    COLUMNS: tl.constexpr = (2 * D + BLOCK_N - 1) // BLOCK_N
    gradients, child_grads = at.floats(table, at.GRADIENTS), at.floats(table, at.CHILD_GRADS)
    parents, gamma = at.integers(table, at.TREE_PARENTS), at.floats(table, at.GAMMA)
    normed, scales = at.floats(table, at.NORMED), at.floats(table, at.SCALES)
    gates, hidden = at.floats(table, at.GATES), at.floats(table, at.HIDDEN)
    w1, w2 = at.floats(table, at.W1), at.floats(table, at.W2)
    totals, sums = at.floats(table, at.TOTALS), at.floats(table, at.SUMS)
    starts, counter = at.integers(table, at.STARTS), at.integers(table, at.COUNTER)
    first_row = at.number(table, at.BATCH) * at.number(table, at.LENGTH)
    programs = tl.num_programs(0)
    if PHASE == 0:
        levels = tl.load(at.integers(table, at.HEIGHT), mask=at.number(table, at.SURVIVORS) > 0, other=0)
        top = levels
    else:
        levels, top = 1, level
    goal = 0
    for down in range(0, levels):
        below, above = tl.load(starts + top - down - 1), tl.load(starts + top - down)
        start, end = tl.minimum(below, above), tl.maximum(below, above)
        tiles = (end - start + BLOCK_M - 1) // BLOCK_M
        if ROWS > 0:  # first phase
            if PHASE < 2:
                for tile in range(tl.program_id(0), (end - start + ROWS - 1) // ROWS, programs):
                    to_sums(
                        gradients, child_grads, parents, normed, scales, gamma, totals, sums,
                        first_row, start + tile * ROWS, end, D, K, ALL_D, ROWS,
                    )  # fmt: skip
            if PHASE == 0:
                goal += programs
                wait_for_all(counter, goal)
        if PHASE % 2 == 0:  # second phase, or the first two
            for job in range(tl.program_id(0), tiles * UNIT_BLOCKS, programs):
                if ROWS > 0:
                    cell.to_hidden_tile(
                        sums, gates, hidden, w2, start, end, job // UNIT_BLOCKS, job % UNIT_BLOCKS,
                        D, UNITS, BLOCK_M, BLOCK_N, BLOCK_K, PRECISION,
                    )  # fmt: skip
                else:
                    through_gates(
                        gradients, child_grads, parents, normed, scales, gamma, gates, hidden, w2, totals,
                        sums, first_row, start, end, job // UNIT_BLOCKS, job % UNIT_BLOCKS,
                        D, K, UNITS, ALL_D, BLOCK_M, BLOCK_N, PRECISION,
                    )  # fmt: skip
        if PHASE == 0:
            goal += programs
            wait_for_all(counter, goal)
        if PHASE % 3 == 0:  # third phase
            for job in range(tl.program_id(0), tiles * COLUMNS, programs):
                through_hidden(
                    hidden, child_grads, w1, start, end, job // COLUMNS, job % COLUMNS,
                    D, UNITS, BLOCK_M, BLOCK_N, BLOCK_K, PRECISION,
                )  # fmt: skip
        if PHASE == 0:
            goal += programs
            wait_for_all(counter, goal)


@triton.jit(do_not_specialize=["start", "end"])
def node_gradient_kernel(
    table, start, end, D: tl.constexpr, K: tl.constexpr, BLOCK_M: tl.constexpr, ALL_D: tl.constexpr
):
    """Only the first phase of a level, for a large d, where the library makes the products."""
    to_sums(
        at.floats(table, at.GRADIENTS), at.floats(table, at.CHILD_GRADS), at.integers(table, at.TREE_PARENTS),
        at.floats(table, at.NORMED), at.floats(table, at.SCALES), at.floats(table, at.GAMMA),
        at.floats(table, at.TOTALS), at.floats(table, at.SUMS),
        at.number(table, at.BATCH) * at.number(table, at.LENGTH),
        start + tl.program_id(0) * BLOCK_M, end, D, K, ALL_D, BLOCK_M,
    )  # fmt: skip


@triton.jit
def collect_kernel(table, D: tl.constexpr, K: tl.constexpr, BLOCK_M: tl.constexpr, ALL_D: tl.constexpr):
    """Gather the gradient of the leaves."""
    gradients, child_grads = at.floats(table, at.GRADIENTS), at.floats(table, at.CHILD_GRADS)
    parents, target = at.integers(table, at.TREE_PARENTS), at.floats(table, at.GRAD_LEAVES)
    rows = at.number(table, at.BATCH) * at.number(table, at.LENGTH)
    for tile in range(tl.program_id(0), tl.cdiv(rows, BLOCK_M), tl.num_programs(0)):
        row, inside, feature, _, mask, place = row_tile(tile, rows, D, ALL_D, BLOCK_M)
        total = collected(gradients, child_grads, parents, row, inside, feature, D, K)
        tl.store(target + place, total, mask=mask)


@triton.jit
def rows_product_kernel(
    table,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, OUT: tl.constexpr, LEAVES: tl.constexpr,
    N: tl.constexpr, R: tl.constexpr, OUT_STRIDE: tl.constexpr, ACROSS: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """a · b for all survivors' rows of a (·, R), with LEAVES for all gradient rows; b is (R, N), or with
    ACROSS (N, R) and transposed. LEFT, RIGHT and OUT are the slots of a, b and the result in the table."""
    BLOCKS: tl.constexpr = (N + BLOCK - 1) // BLOCK
    rows = at.number(table, at.SURVIVORS)
    if LEAVES:
        rows += at.number(table, at.BATCH) * at.number(table, at.LENGTH)
    a, b, out = at.floats(table, LEFT), at.floats(table, RIGHT), at.floats(table, OUT)
    for job in range(tl.program_id(0), tl.cdiv(rows, BLOCK) * BLOCKS, tl.num_programs(0)):
        row = (job // BLOCKS * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)[:, None]
        column = job % BLOCKS * BLOCK + tl.arange(0, BLOCK)[None, :]
        total = product_tile(
            a, b, row, column, 0, R, rows, N, R, R if ACROSS else N, False, ACROSS, PRECISION, BLOCK_R
        )
        tl.store(out + row * OUT_STRIDE + column, total, mask=(row < rows) & (column < N))
