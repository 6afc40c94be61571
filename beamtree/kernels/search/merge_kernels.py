# mypy: allow-untyped-defs
"""The first part of a search step: make the survivors' nodes and splice their lists.

`hidden` and `gates` are the cell's two products. List work runs beside them, off the critical path:
`splice` moves the lists and writes the history; `add_up` and `rank` prepare the next choice among the old
pairs of the new lists, those that the merge left alone. `draw` makes a step's random numbers, ahead of it.
"""

import triton
import triton.language as tl

from beamtree.kernels.runtime import addresses as at
from beamtree.kernels.runtime.draw_kernels import DROPOUT, FIRST_LEVEL, SECOND_LEVEL, gumbel, kept, row_key
from beamtree.kernels.runtime.math_kernels import (
    WORST,
    gelu,
    index_of,
    key_of,
    product,
    up_to_rounding,
    value_of,
)
from beamtree.kernels.search.choose_kernels import NONE, node_row


@triton.jit
def children_of(board, row, inside, K: tl.constexpr):
    """For flat (sequence, slot) rows: whether something is merged there, and the two children's node rows."""
    place = at.integers(board, at.CHILDREN) + row * 2
    left = tl.load(place, mask=inside, other=-1)
    right = tl.load(place + 1, mask=inside, other=0)
    base = node_row(board, row // K, K)
    active = left >= 0
    return active, base + tl.where(active, left, 0), base + tl.where(active, right, 0)


@triton.jit
def hidden(
    board, t, row, inside, first_column,
    D: tl.constexpr, K: tl.constexpr, UNITS: tl.constexpr, DROPS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of u = keep · GELU(W₁ [l; r] + b₁)."""
    active, left, right = children_of(board, row, inside, K)
    nodes, weight = at.floats(board, at.NODES), at.floats(board, at.W1)
    column = first_column + tl.arange(0, BLOCK_N)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for side in tl.static_range(2):
        source = nodes + (left if side == 0 else right) * D
        for first in range(0, D, BLOCK_K):
            feature = first + tl.arange(0, BLOCK_K)
            x = tl.load(
                source[:, None] + feature[None, :], mask=inside[:, None] & (feature < D)[None, :], other=0.0
            )
            inside_w = (column < UNITS)[None, :] & (feature < D)[:, None]
            w = weight + column[None, :] * (2 * D) + side * D + feature[:, None]
            total = product(x, tl.load(w, mask=inside_w, other=0.0), total, PRECISION)
    total += tl.load(at.floats(board, at.B1) + column, mask=column < UNITS, other=0.0)[None, :]
    u = gelu(total)
    real = inside[:, None] & (column < UNITS)[None, :]
    if DROPS:
        rows = (t & 1) * (at.number(board, at.BATCH) * K) + row
        keep = at.bytes(board, at.KEEP) + rows[:, None].to(tl.int64) * UNITS + column[None, :]
        scale = 65536.0 / (65536 - at.number(board, at.DROPPED))
        u = tl.where(tl.load(keep, mask=real, other=0) != 0, u * scale, 0.0)
    target = at.floats(board, at.HIDDEN) + row[:, None].to(tl.int64) * UNITS + column[None, :]
    tl.store(target, u, mask=active[:, None] & real)


@triton.jit
def gates(
    board, row, inside, first_feature,
    D: tl.constexpr, K: tl.constexpr, UNITS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_F: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of σ(a)·l + σ(b)·r + σ(g)·c: one program holds all four gates of its features."""
    active, left, right = children_of(board, row, inside, K)
    column = tl.arange(0, 4 * BLOCK_F)  # 4·feature + gate
    weight_row = (column % 4) * D + first_feature + column // 4
    real = first_feature + column // 4 < D
    source = at.floats(board, at.HIDDEN) + row.to(tl.int64) * UNITS
    weight = at.floats(board, at.W2)
    total = tl.zeros([BLOCK_M, 4 * BLOCK_F], tl.float32)
    for first in range(0, UNITS, BLOCK_K):
        unit = first + tl.arange(0, BLOCK_K)
        u = tl.load(
            source[:, None] + unit[None, :], mask=inside[:, None] & (unit < UNITS)[None, :], other=0.0
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
    loads = inside[:, None] & (feature < D)[None, :]
    result = tl.sigmoid(to_left) * tl.load(nodes + left[:, None] * D, mask=loads, other=0.0)
    result += tl.sigmoid(to_right) * tl.load(nodes + right[:, None] * D, mask=loads, other=0.0)
    result += tl.sigmoid(to_content) * content
    target = at.floats(board, at.SUMS) + row[:, None].to(tl.int64) * D + feature[None, :]
    tl.store(target, result, mask=active[:, None] & (feature < D)[None, :])


@triton.jit
def list_task(board, t, task, K: tl.constexpr, CHUNKS: tl.constexpr, ROWS: tl.constexpr):
    """A program's share of the list work: a chunk of ROWS beams' lists of a sequence. ROWS is 1, or all
    beams."""
    GROUPS: tl.constexpr = K if ROWS == 1 else 1
    chunk = task % CHUNKS
    sequence = task // (CHUNKS * GROUPS)
    slot = task // CHUNKS % GROUPS + tl.arange(0, ROWS)
    nodes_left = at.length_of(board, sequence, True) - 1 - t  # after step t's merge
    return sequence, slot, chunk, nodes_left


@triton.jit
def splice(
    board, t, task,
    K: tl.constexpr, CHUNKS: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Move the lists of the parents to the survivors, less the merged pair."""
    B, n = at.number(board, at.BATCH), at.number(board, at.LENGTH)
    sequence, slot, chunk, nodes_left = list_task(board, t, task, K, CHUNKS, ROWS)
    if nodes_left > chunk * CHUNK:
        record = (sequence * (n - 1) + t) * K + slot
        parent = tl.load(at.integers(board, at.PARENTS) + record, mask=slot < K, other=-1)
        position = tl.load(at.integers(board, at.POSITIONS) + record, mask=slot < K, other=0)
        alive = parent >= 0
        old = (((t & 1) * B + sequence) * K + tl.maximum(parent, 0)).to(tl.int64) * n
        new = ((((t + 1) & 1) * B + sequence) * K + slot).to(tl.int64) * n
        ids, pair_scores = at.integers(board, at.IDS), at.floats(board, at.PAIR_SCORES)
        index = chunk * CHUNK + tl.arange(0, CHUNK)[None, :]
        source = old[:, None] + index + (index > position[:, None])
        moves = (index < nodes_left) & alive[:, None]
        node = tl.load(ids + source, mask=moves, other=0)
        score = tl.load(pair_scores + source, mask=moves & (index < nodes_left - 1), other=NONE)
        made = n + t * K + slot
        node = tl.where(index == position[:, None], made[:, None], node)
        tl.store(ids + new[:, None] + index, node, mask=moves)
        tl.store(pair_scores + new[:, None] + index, score, mask=moves)
        if chunk == 0:
            record_merge(board, sequence, slot, record, old, position, alive, nodes_left, K)


@triton.jit
def record_merge(board, sequence, slot, record, old, position, alive, nodes_left, K: tl.constexpr):
    """History: the children between their neighbours, the scores of the pairs that end, the height. For the
    next step: where the new node stands, and between whom."""
    n = at.number(board, at.LENGTH)
    around = tl.arange(0, 4)[None, :]
    index = position[:, None] - 1 + around
    place = old[:, None] + index
    exists = alive[:, None] & (index >= 0) & (index <= nodes_left)
    node = tl.load(at.integers(board, at.IDS) + place, mask=exists, other=-1)
    history = record[:, None].to(tl.int64) * 4 + around
    tl.store(at.integers(board, at.LINKS) + history, node, mask=alive[:, None])
    exists = alive[:, None] & (index >= 0) & (index < nodes_left) & (around < 3)
    energy = tl.load(at.floats(board, at.PAIR_SCORES) + place, mask=exists, other=NONE)
    tl.store(at.floats(board, at.ENERGIES) + history, energy, mask=alive[:, None] & (around < 3))
    fresh = at.integers(board, at.FRESH) + (sequence * K + slot) * 4
    tl.store(fresh, position, mask=slot < K)
    tl.store(fresh + 1, tl.max(tl.where(around == 0, node, -1), 1), mask=slot < K)
    tl.store(fresh + 2, tl.max(tl.where(around == 3, node, -1), 1), mask=slot < K)
    heights = at.integers(board, at.HEIGHTS)
    is_made = ((around == 1) | (around == 2)) & (node >= n)
    height = tl.load(heights + sequence * (n - 1) * K + node - n, mask=is_made, other=0)
    tl.store(heights + record, 1 + tl.max(height, 1), mask=alive)


@triton.jit
def old_pairs(board, t, sequence, slot, chunk, nodes_left, K: tl.constexpr, CHUNK: tl.constexpr):
    """Where a chunk of the lists after step t starts, its indices, which of them are old pairs, and their
    scores."""
    B, n = at.number(board, at.BATCH), at.number(board, at.LENGTH)
    row = sequence * K + slot
    position = tl.load(at.integers(board, at.FRESH) + row * 4, mask=slot < K, other=0)[:, None]
    start = (((t + 1) & 1) * B * K + row).to(tl.int64)[:, None] * n
    index = chunk * CHUNK + tl.arange(0, CHUNK)[None, :]
    is_old = (index < nodes_left - 1) & (index != position) & (index != position - 1) & (slot < K)[:, None]
    energy = tl.load(at.floats(board, at.PAIR_SCORES) + start + index, mask=is_old, other=NONE)
    return start, index, is_old, energy


@triton.jit
def add_up(
    board, t, task,
    K: tl.constexpr, CHUNKS: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Log-sum-exp of a chunk's old pairs, for the step after t."""
    sequence, slot, chunk, nodes_left = list_task(board, t, task, K, CHUNKS, ROWS)
    if nodes_left > chunk * CHUNK:
        _, _, _, energy = old_pairs(board, t, sequence, slot, chunk, nodes_left, K, CHUNK)
        top = tl.max(energy, 1)
        safe = tl.where(top == NONE, 0.0, top)
        log_sum = safe + tl.log(tl.sum(tl.exp(energy - safe[:, None]), 1))
        tl.store(
            at.floats(board, at.LOG_SUMS) + (sequence * K + slot) * CHUNKS + chunk, log_sum, mask=slot < K
        )


@triton.jit
def rank(
    board, t, task,
    K: tl.constexpr, NOISY: tl.constexpr, CHUNKS: tl.constexpr, CHUNK: tl.constexpr, BEAMS: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """The K best of a chunk's old pairs, noise included, for the step after t."""
    B, n = at.number(board, at.BATCH), at.number(board, at.LENGTH)
    sequence, slot, chunk, nodes_left = list_task(board, t, task, K, CHUNKS, ROWS)
    if nodes_left > chunk * CHUNK:
        start, index, is_old, value = old_pairs(board, t, sequence, slot, chunk, nodes_left, K, CHUNK)
        row = sequence * K + slot
        if NOISY:
            noise_row = (((t + 1) & 1) * B * K + row)[:, None].to(tl.int64)
            value += tl.load(at.floats(board, at.FIRST_NOISE) + noise_row * n + index, mask=is_old, other=0.0)
        else:
            value = up_to_rounding(value)
        key = tl.where(is_old & (value == value), key_of(value, index), WORST)
        place = tl.arange(0, BEAMS)[None, :]
        winners = tl.full([ROWS, BEAMS], WORST, tl.int64)
        for i in range(K):
            best = tl.max(key, 1)
            key = tl.where(key == best[:, None], WORST, key)
            winners = tl.where(place == i, best[:, None], winners)
        mask = (slot < K)[:, None] & (place < K)
        found = (winners != WORST) & mask
        position = index_of(winners)
        tops = (row * CHUNKS + chunk)[:, None] * (5 * BEAMS) + place
        tl.store(at.floats(board, at.TOPS) + tops, tl.where(found, value_of(winners), NONE), mask=mask)
        ids, pair_scores = at.integers(board, at.IDS), at.floats(board, at.PAIR_SCORES)
        energy = tl.load(pair_scores + start + position, mask=found, other=NONE)
        left = tl.load(ids + start + position, mask=found, other=0)
        right = tl.load(ids + start + position + 1, mask=found, other=0)
        tl.store(at.floats(board, at.TOPS) + tops + BEAMS, energy, mask=found)
        tl.store(at.integers(board, at.TOPS) + tops + 2 * BEAMS, position, mask=found)
        tl.store(at.integers(board, at.TOPS) + tops + 3 * BEAMS, left, mask=found)
        tl.store(at.integers(board, at.TOPS) + tops + 4 * BEAMS, right, mask=found)


@triton.jit
def draw(
    board, t, task,
    K: tl.constexpr, UNITS: tl.constexpr, NOISY: tl.constexpr, DROPS: tl.constexpr,
    CHUNKS: tl.constexpr, CHUNK: tl.constexpr, BEAMS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Step t's noise at both levels and its dropout masks."""
    B, n = at.number(board, at.BATCH), at.number(board, at.LENGTH)
    sequence, slot, chunk, pairs = list_task(board, t, task, K, CHUNKS, ROWS)
    real = (slot < K)[:, None]
    row = (((t & 1) * B + sequence) * K + slot)[:, None]
    if pairs > chunk * CHUNK:
        seed = at.seed(board)
        if NOISY:
            index = chunk * CHUNK + tl.arange(0, CHUNK)[None, :]
            key = row_key(seed, FIRST_LEVEL, t, sequence, slot)[:, None]
            noise = at.floats(board, at.FIRST_NOISE) + row.to(tl.int64) * n + index
            tl.store(noise, gumbel(key, index), mask=real & (index < pairs))
            if chunk == 0:
                rank = tl.arange(0, BEAMS)[None, :]
                key = row_key(seed, SECOND_LEVEL, t, sequence, slot)[:, None]
                tl.store(
                    at.floats(board, at.SECOND_NOISE) + row * K + rank,
                    gumbel(key, rank),
                    mask=real & (rank < K),
                )
        if DROPS:  # noqa: SIM102 known when compiled, unlike the next
            if chunk == 0:
                key = row_key(seed, DROPOUT, t, sequence, slot)[:, None]
                keep = at.bytes(board, at.KEEP) + row.to(tl.int64) * UNITS
                for first in range(0, UNITS, 128):
                    unit = first + tl.arange(0, 128)[None, :]
                    survives = kept(key, unit, at.number(board, at.DROPPED))
                    tl.store(keep + unit, survives.to(tl.int8), mask=real & (unit < UNITS))
