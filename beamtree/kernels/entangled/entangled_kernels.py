# mypy: allow-untyped-defs
"""A search step with an entangled scorer, e = w·cell(l, r) + b: a pair is scored by making its parent.

Each survivor makes two new pairs, so the cell's two products have 2·K rows a sequence. All parents are kept,
as candidates: that of the chosen pair becomes a node. A candidate is found by its pair alone, because every
pair was new when the younger of its nodes was.
"""

import triton
import triton.language as tl

from beamtree.kernels.runtime import addresses as at
from beamtree.kernels.runtime.draw_kernels import DROPOUT, kept, row_key
from beamtree.kernels.runtime.math_kernels import gelu, product
from beamtree.kernels.search.choose_kernels import choose, moments, node_row, node_vectors
from beamtree.kernels.search.merge_kernels import add_up, draw, rank, splice
from beamtree.kernels.search.step_kernels import clock


@triton.jit
def name_of(node, n):
    """A node's name in the counter of a pair's mask, as `Timeline.names`: the same whatever the padding."""
    return tl.where(node < n, node.to(tl.int64), node.to(tl.int64) - n + 4294967296)


@triton.jit
def candidate_row(board, sequence, left, right, K: tl.constexpr):
    n = at.number(board, at.LENGTH)
    youngest = tl.maximum(left, right)
    made = n - 1 + 2 * (youngest - n) + (youngest == left).to(tl.int32)
    return sequence.to(tl.int64) * ((n - 1) * (1 + 2 * K)) + tl.where(youngest < n, left, made)


@triton.jit
def new_pairs_of(board, row, inside, K: tl.constexpr):
    """For flat (sequence, slot, side) rows: whether there is a new pair, and its ids."""
    place = at.integers(board, at.NEW_PAIRS) + row * 2
    left = tl.load(place, mask=inside, other=-1)
    right = tl.load(place + 1, mask=inside, other=-1)
    active = left >= 0
    return active, tl.where(active, left, 0), tl.where(active, right, 0)


@triton.jit
def pair_hidden(
    board, row, inside, first_column,
    D: tl.constexpr, K: tl.constexpr, UNITS: tl.constexpr, DROPS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of u = keep · GELU(W₁ [l; r] + b₁) of the new pairs; a mask belongs to a pair."""
    active, left, right = new_pairs_of(board, row, inside, K)
    sequence = row // (2 * K)
    base = node_row(board, sequence, K)
    nodes, weight = at.floats(board, at.NODES), at.floats(board, at.W1)
    column = first_column + tl.arange(0, BLOCK_N)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for side in tl.static_range(2):
        source = nodes + (base + (left if side == 0 else right)) * D
        for first in range(0, D, BLOCK_K):
            feature = first + tl.arange(0, BLOCK_K)
            x = tl.load(
                source[:, None] + feature[None, :], mask=active[:, None] & (feature < D)[None, :], other=0.0
            )
            inside_w = (column < UNITS)[None, :] & (feature < D)[:, None]
            w = weight + column[None, :] * (2 * D) + side * D + feature[:, None]
            total = product(x, tl.load(w, mask=inside_w, other=0.0), total, PRECISION)
    total += tl.load(at.floats(board, at.B1) + column, mask=column < UNITS, other=0.0)[None, :]
    u = gelu(total)
    if DROPS:
        n = at.number(board, at.LENGTH)
        dropped = at.number(board, at.DROPPED)
        key = row_key(at.seed(board), DROPOUT, name_of(left, n), sequence, name_of(right, n))
        keep = kept(key[:, None], column[None, :], dropped)
        u = tl.where(keep, u * (65536.0 / (65536 - dropped)), 0.0)
    target = at.floats(board, at.HIDDEN) + row[:, None].to(tl.int64) * UNITS + column[None, :]
    tl.store(target, u, mask=active[:, None] & (column < UNITS)[None, :])


@triton.jit
def pair_gates(
    board, row, inside, first_feature,
    D: tl.constexpr, K: tl.constexpr, UNITS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_F: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of σ(a)·l + σ(b)·r + σ(g)·c of the new pairs, all four gates of its features in one program."""
    active, left, right = new_pairs_of(board, row, inside, K)
    base = node_row(board, row // (2 * K), K)
    column = tl.arange(0, 4 * BLOCK_F)  # 4·feature + gate
    weight_row = (column % 4) * D + first_feature + column // 4
    real = first_feature + column // 4 < D
    source = at.floats(board, at.HIDDEN) + row.to(tl.int64) * UNITS
    weight = at.floats(board, at.W2)
    total = tl.zeros([BLOCK_M, 4 * BLOCK_F], tl.float32)
    for first in range(0, UNITS, BLOCK_K):
        unit = first + tl.arange(0, BLOCK_K)
        u = tl.load(
            source[:, None] + unit[None, :], mask=active[:, None] & (unit < UNITS)[None, :], other=0.0
        )
        inside_w = real[None, :] & (unit < UNITS)[:, None]
        w = tl.load(weight + weight_row[None, :] * UNITS + unit[:, None], mask=inside_w, other=0.0)
        total = product(u, w, total, PRECISION)
    total += tl.load(at.floats(board, at.B2) + weight_row, mask=real, other=0.0)[None, :]
    even, odd = tl.split(tl.reshape(total, [BLOCK_M, BLOCK_F, 2, 2]))
    to_left, to_content = tl.split(even)
    to_right, content = tl.split(odd)
    feature = first_feature + tl.arange(0, BLOCK_F)
    nodes = at.floats(board, at.NODES) + feature[None, :]
    mask = active[:, None] & (feature < D)[None, :]
    result = tl.sigmoid(to_left) * tl.load(nodes + (base + left)[:, None] * D, mask=mask, other=0.0)
    result += tl.sigmoid(to_right) * tl.load(nodes + (base + right)[:, None] * D, mask=mask, other=0.0)
    result += tl.sigmoid(to_content) * content
    target = at.floats(board, at.SUMS) + row[:, None].to(tl.int64) * D + feature[None, :]
    tl.store(target, result, mask=mask)


@triton.jit
def score_parents(
    board, t, sequence,
    D: tl.constexpr, K: tl.constexpr, PAIRS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Layer norm and score of the pairs that step t − 1 made in a sequence. PAIRS is 2·K rounded up."""
    B, n = at.number(board, at.BATCH), at.number(board, at.LENGTH)
    pair = tl.arange(0, PAIRS)
    row = sequence * (2 * K) + pair
    active, left, right = new_pairs_of(board, row, pair < 2 * K, K)
    source = at.floats(board, at.SUMS) + row.to(tl.int64) * D
    candidate = candidate_row(board, sequence, left, right, K)
    position = tl.load(at.integers(board, at.FRESH) + (sequence * K + pair // 2) * 4, mask=active, other=0)
    mean, scale = moments(source, active, D, PAIRS, BLOCK_D)
    total = tl.zeros([PAIRS], tl.float32)
    for first in range(0, D, BLOCK_D):
        feature = first + tl.arange(0, BLOCK_D)
        x = node_vectors(board, source, mean, scale, active, feature, D, False)
        target = at.floats(board, at.CANDIDATES) + candidate[:, None] * D + feature[None, :]
        tl.store(target, x, mask=active[:, None] & (feature < D)[None, :])
        w = tl.load(at.floats(board, at.SCORER_W2) + feature, mask=feature < D, other=0.0)
        total += tl.sum(x * w[None, :], 1)
    total += tl.load(at.floats(board, at.SCORER_B2))
    beam = ((t & 1) * B + sequence) * K + pair // 2
    place = at.floats(board, at.PAIR_SCORES) + beam.to(tl.int64) * n + position - 1 + pair % 2
    tl.store(place, total, mask=active)


@triton.jit
def settle(board, t, sequence, D: tl.constexpr, K: tl.constexpr, BEAMS: tl.constexpr, BLOCK_D: tl.constexpr):
    """Make nodes of the candidates that step t chose, and say which pairs they make with their neighbours."""
    B, n = at.number(board, at.BATCH), at.number(board, at.LENGTH)
    pairs = at.length_of(board, sequence, True) - 1 - t
    slot = tl.arange(0, BEAMS)
    children = at.integers(board, at.CHILDREN) + (sequence * K + slot) * 2
    left = tl.load(children, mask=slot < K, other=-1)
    chosen = left >= 0
    right = tl.load(children + 1, mask=chosen, other=0)
    record = (sequence * (n - 1) + t) * K + slot
    parent = tl.load(at.integers(board, at.PARENTS) + record, mask=chosen, other=0)
    position = tl.load(at.integers(board, at.POSITIONS) + record, mask=chosen, other=0)
    ids = at.integers(board, at.IDS) + (((t & 1) * B + sequence) * K + parent).to(tl.int64) * n + position
    before = tl.load(ids - 1, mask=chosen & (position > 0), other=-1)
    behind = tl.load(ids + 2, mask=chosen & (position + 2 <= pairs), other=-1)
    made = n + t * K + slot
    new_pairs = at.integers(board, at.NEW_PAIRS) + (sequence * K + slot) * 4
    tl.store(new_pairs, before, mask=slot < K)
    tl.store(new_pairs + 1, made, mask=slot < K)
    tl.store(new_pairs + 2, tl.where(behind >= 0, made, -1), mask=slot < K)
    tl.store(new_pairs + 3, behind, mask=slot < K)
    source = at.floats(board, at.CANDIDATES) + candidate_row(board, sequence, left, right, K)[:, None] * D
    target = at.floats(board, at.NODES) + (node_row(board, sequence, K) + made)[:, None] * D
    for first in range(0, D, BLOCK_D):
        feature = (first + tl.arange(0, BLOCK_D))[None, :]
        mask = chosen[:, None] & (feature < D)
        tl.store(target + feature, tl.load(source + feature, mask=mask, other=0.0), mask=mask)


@triton.jit(do_not_specialize=["step", "products"])
def pair_hidden_kernel(
    board, step, products,
    D: tl.constexpr, K: tl.constexpr, UNITS: tl.constexpr, DROPS: tl.constexpr,
    CHUNKS: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """The first `products` programs each make a tile of the hidden layer, the others splice."""
    t = clock(board, step, CHAINED)
    program = tl.program_id(0)
    if t < at.number(board, at.LENGTH) - 1:
        if program < products:
            BLOCKS: tl.constexpr = (UNITS + BLOCK_N - 1) // BLOCK_N
            row = program // BLOCKS * BLOCK_M + tl.arange(0, BLOCK_M)
            inside = row < at.number(board, at.BATCH) * (2 * K)
            first = program % BLOCKS * BLOCK_N
            pair_hidden(board, row, inside, first, D, K, UNITS, DROPS, BLOCK_M, BLOCK_N, BLOCK_K, PRECISION)
        else:
            splice(board, t, program - products, K, CHUNKS, CHUNK, ROWS)


@triton.jit(do_not_specialize=["step", "products", "lists"])
def pair_gates_kernel(
    board, step, products, lists,
    D: tl.constexpr, K: tl.constexpr, UNITS: tl.constexpr, NOISY: tl.constexpr,
    CHUNKS: tl.constexpr, CHUNK: tl.constexpr, BEAMS: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_F: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """The first `products` programs each make a tile of the candidates, the next `lists` rank, the others
    add up."""
    t = clock(board, step, CHAINED)
    program = tl.program_id(0)
    if t < at.number(board, at.LENGTH) - 1:
        if program < products:
            BLOCKS: tl.constexpr = (D + BLOCK_F - 1) // BLOCK_F
            row = program // BLOCKS * BLOCK_M + tl.arange(0, BLOCK_M)
            inside = row < at.number(board, at.BATCH) * (2 * K)
            first = program % BLOCKS * BLOCK_F
            pair_gates(board, row, inside, first, D, K, UNITS, BLOCK_M, BLOCK_F, BLOCK_K, PRECISION)
        elif program < products + lists:
            rank(board, t, program - products, K, NOISY, CHUNKS, CHUNK, BEAMS, ROWS)
        else:
            add_up(board, t, program - products - lists, K, CHUNKS, CHUNK, ROWS)


@triton.jit(do_not_specialize=["step", "choices"])
def pair_choose_kernel(
    board, step, choices,
    D: tl.constexpr, K: tl.constexpr, NOISY: tl.constexpr, CHUNKS: tl.constexpr, CHUNK: tl.constexpr,
    BEAMS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """The first `choices` programs each choose for a sequence, the others draw for the step after."""
    t = clock(board, step, CHAINED)
    program = tl.program_id(0)
    if t < at.number(board, at.LENGTH) - 1:
        if program < choices:
            length = at.length_of(board, program, True)
            if (t > 0) & (t < length - 1):
                score_parents(board, t, program, D, K, 2 * BEAMS, BLOCK_D)
                tl.debug_barrier()
            choose(board, t, program, K, 0, NOISY, CHUNKS, CHUNK, BEAMS, WIDTH, 16)
            if t < length:
                tl.debug_barrier()
                settle(board, t, program, D, K, BEAMS, BLOCK_D)
        else:
            draw(board, t + 1, program - choices, K, 16, NOISY, False, CHUNKS, CHUNK, BEAMS, ROWS)
