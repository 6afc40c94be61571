# mypy: allow-untyped-defs
"""The nodes of given trees, level by level from the lowest height up, and the log-probability of the trees.

Node rows are the B·n leaves, then the merges, lowest first. Each level takes three phases with barriers
between them. The number of levels stays on the device: the host never reads it.
"""

import triton
import triton.language as tl

from beamtree.kernels import cell_kernels as cell
from beamtree.kernels.replay.level_kernels import wait_for_all
from beamtree.kernels.runtime.math_kernels import gelu, normalised


@triton.jit
def child_vectors(nodes, children, row, inside, D: tl.constexpr):
    """Pointers to the vectors of the left and right children of some merges."""
    left = nodes + tl.load(children + row * 2, mask=inside, other=0) * D
    return left, nodes + tl.load(children + row * 2 + 1, mask=inside, other=0) * D


@triton.jit
def activate_level(
    nodes, children, keep, w1, b1, hidden, start, end, tile, block,
    D: tl.constexpr, UNITS: tl.constexpr, DROPS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """First phase: a tile of u = keep · GELU(W₁ [l; r] + b₁)."""
    row = (start + tile * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    inside = row < end
    unit = block * BLOCK_N + tl.arange(0, BLOCK_N)
    left, right = child_vectors(nodes, children, row, inside, D)
    u = cell.hidden_tile(left, right, inside, w1, b1, unit, D, UNITS, BLOCK_K, PRECISION, ".cg")
    place = row[:, None] * UNITS + unit[None, :]
    mask = inside[:, None] & (unit < UNITS)[None, :]
    if DROPS:
        u *= tl.load(keep + place, mask=mask, other=0.0)
    tl.store(hidden + place, u, mask=mask)


@triton.jit
def mix_level(
    nodes, children, w2, b2, hidden, first_row, start, end, tile, block,
    D: tl.constexpr, UNITS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_F: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Second phase: a tile of the sums σ(a)·l + σ(b)·r + σ(g)·c."""
    row = (start + tile * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    inside = row < end
    left, right = child_vectors(nodes, children, row, inside, D)
    mixed = cell.mixed_tile(
        hidden + row * UNITS, left, right, inside, w2, b2, block * BLOCK_F,
        D, UNITS, BLOCK_F, BLOCK_K, PRECISION, ".cg",
    )  # fmt: skip
    feature = block * BLOCK_F + tl.arange(0, BLOCK_F)
    place = nodes + (first_row + row)[:, None] * D + feature[None, :]
    tl.store(place, mixed, mask=inside[:, None] & (feature < D)[None, :])


@triton.jit
def normalise_rows(
    nodes, gamma, beta, first_row, start, end, tile,
    D: tl.constexpr, ALL_D: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Third phase: the layer norm of the sums, in place."""
    row = (start + tile * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    feature = tl.arange(0, ALL_D)
    mask = (row < end)[:, None] & (feature < D)[None, :]
    place = nodes + (first_row + row)[:, None] * D + feature[None, :]
    mixed = tl.load(place, mask=mask, other=0.0, cache_modifier=".cg")
    normed, _ = normalised(mixed, mask, D, 1e-5)
    weight = tl.load(gamma + feature, mask=feature < D, other=0.0)[None, :]
    bias = tl.load(beta + feature, mask=feature < D, other=0.0)[None, :]
    tl.store(place, normed * weight + bias, mask=mask)


@triton.jit(do_not_specialize=["first_row", "level"])
def ascend_kernel(
    nodes, children, keep, w1, b1, w2, b2, gamma, beta, hidden, starts, height, counter, first_row, level,
    D: tl.constexpr, UNITS: tl.constexpr, ALL_D: tl.constexpr, DROPS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, ROWS: tl.constexpr,
    PRECISION: tl.constexpr, PHASE: tl.constexpr,
):  # fmt: skip
    """Make the nodes of all levels, from 1 to `height`. PHASE = 0 runs all levels in one cooperative launch,
    with barriers between phases; 1, 2 or 3 run one phase of one `level` in an ordinary launch."""
    UNIT_BLOCKS: tl.constexpr = (UNITS + BLOCK_N - 1) // BLOCK_N
    BLOCK_F: tl.constexpr = BLOCK_N // 4
    FEATURE_BLOCKS: tl.constexpr = (D + BLOCK_F - 1) // BLOCK_F
    programs = tl.num_programs(0)
    levels = tl.load(height) if PHASE == 0 else 1
    lowest = 1 if PHASE == 0 else level
    goal = 0
    for up in range(0, levels):
        start = tl.load(starts + lowest + up - 1)
        end = tl.load(starts + lowest + up)
        tiles = (end - start + BLOCK_M - 1) // BLOCK_M
        if PHASE < 2:
            for job in range(tl.program_id(0), tiles * UNIT_BLOCKS, programs):
                activate_level(
                    nodes, children, keep, w1, b1, hidden, start, end, job // UNIT_BLOCKS, job % UNIT_BLOCKS,
                    D, UNITS, DROPS, BLOCK_M, BLOCK_N, BLOCK_K, PRECISION,
                )  # fmt: skip
        if PHASE == 0:
            goal += programs
            wait_for_all(counter, goal)
        if PHASE % 2 == 0:
            for job in range(tl.program_id(0), tiles * FEATURE_BLOCKS, programs):
                mix_level(
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
    """Gather the children's vectors, zero where there is no merge, and give every child its parent, as
    1 + 2 · the parent's row + side."""
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
def activate_merges_kernel(
    children, keep, hidden, activated, N,
    UNITS: tl.constexpr, DROPS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """u = keep·GELU(h) goes into `activated`, and h becomes ∂u/∂h; both are zero where there is no merge."""
    row, _, inside, place = cell.unit_tile(tl.program_id(0), tl.program_id(1), N, UNITS, BLOCK_M, BLOCK_N)
    exists = tl.load(children + row * 2, mask=row < N, other=-1) >= 0
    scale = tl.where(exists[:, None], 1.0, 0.0)
    if DROPS:
        scale *= tl.load(keep + place, mask=inside, other=0.0)
    cell.activate_tile(hidden, scale, activated, hidden, place, inside, True, True)


@triton.jit
def pair_scores(
    projections, scorer_b1, scorer_w2, scorer_b2, left, right, exists, H: tl.constexpr, UNITS: tl.constexpr
):
    """Scores of pairs of node rows, from the projections: the rest of the scorer. −inf where no pair
    exists."""
    unit = tl.arange(0, UNITS)[None, :]
    mask = exists[:, None] & (unit < H)
    h = tl.load(projections + left[:, None] * (2 * H) + unit, mask=mask, other=0.0)
    h += tl.load(projections + right[:, None] * (2 * H) + H + unit, mask=mask, other=0.0)
    h += tl.load(scorer_b1 + unit, mask=unit < H, other=0.0)
    w = tl.load(scorer_w2 + unit, mask=unit < H, other=0.0)
    return tl.where(exists, tl.sum(gelu(h) * w, 1) + tl.load(scorer_b2), float("-inf"))


@triton.jit(do_not_specialize=["n"])
def trace_kernel(
    merges, lengths, projections, scorer_b1, scorer_w2, scorer_b2,
    live, scores, links, slots, energies, log_z, offset, n,
    H: tl.constexpr, UNITS: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The log-probability of given merges, S = Σ_t (e_chosen − log Z_t), where Z_t = Σ exp(e) over the pairs
    there are at step t. One program replays the merges of a sequence on its list of live nodes. It records
    what a search with one beam does: at each step the children and their neighbours, the scores of the three
    pairs that end, and log Z; and S itself."""
    tree = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths + tree).to(tl.int32)
    first_node, first_step = tree * (2 * n - 1), tree * (n - 1)
    live += tree * n
    scores += tree * n
    for first in range(0, n, ROWS):
        place = first + tl.arange(0, ROWS)
        exists = place + 1 < length
        node = first_node + place
        energy = pair_scores(projections, scorer_b1, scorer_w2, scorer_b2, node, node + 1, exists, H, UNITS)
        tl.store(live + place, place, mask=place < n)
        tl.store(scores + place, energy, mask=place < n)
    around = tl.arange(0, 4)  # left neighbour, left child, right child, right neighbour
    side = tl.arange(0, 2)
    whole = tl.zeros([1], tl.float64)
    for t in range(0, length - 1):
        tl.debug_barrier()  # the lists have been written
        here = first_step + t
        pairs = length - 1 - t
        # log Z: log-sum-exp over the list, block by block with a running maximum.
        top = tl.full([1], float("-inf"), tl.float32)
        mass = tl.zeros([1], tl.float32)
        for first in range(0, pairs, BLOCK):
            place = first + tl.arange(0, BLOCK)
            energy = tl.load(scores + place, mask=place < pairs, other=float("-inf"))
            higher = tl.maximum(top, tl.max(energy, 0))
            mass = mass * tl.exp(top - higher) + tl.sum(tl.exp(energy - higher), 0)
            top = higher
        z = top + tl.log(mass)
        # The record of the merge.
        position = tl.load(merges + here).to(tl.int32)
        index = position - 1 + around
        node = tl.load(live + index, mask=(index >= 0) & (index <= pairs), other=-1)
        energy = tl.load(
            scores + index, mask=(index >= 0) & (index < pairs) & (around < 3), other=float("-inf")
        )
        tl.store(links + here * 4 + around, node)
        tl.store(energies + here * 4 + around, energy)
        tl.store(slots + here, 0)
        tl.store(log_z + here + tl.arange(0, 1), z)
        whole += (tl.max(tl.where(around == 1, energy, float("-inf")), 0) - z).to(tl.float64)

        # Scores of the new node with its two neighbours.
        made = n + t
        before = tl.max(tl.where(around == 0, node, -1), 0)
        after = tl.max(tl.where(around == 3, node, -1), 0)
        left = tl.where(side == 0, before, made)
        right = tl.where(side == 0, made, after)
        exists = (left >= 0) & (right >= 0)
        fresh = pair_scores(
            projections, scorer_b1, scorer_w2, scorer_b2, first_node + left, first_node + right, exists,
            H, UNITS,
        )  # fmt: skip
        # Everything right of the merge moves one place to the left; all threads read a block before any
        # writes.
        for first in range(position // BLOCK * BLOCK, pairs, BLOCK):
            place = first + tl.arange(0, BLOCK)
            changes = (place >= position) & (place < pairs)
            moved = tl.load(live + place + 1, mask=changes, other=0)
            score = tl.load(scores + place + 1, mask=changes & (place + 1 < pairs), other=float("-inf"))
            tl.debug_barrier()
            tl.store(live + place, tl.where(place == position, made, moved), mask=changes)
            tl.store(scores + place, score, mask=changes)
        tl.debug_barrier()
        tl.store(scores + position - 1 + side, fresh, mask=position - 1 + side >= 0)
    tl.store(offset + tree + tl.arange(0, 1), whole)
