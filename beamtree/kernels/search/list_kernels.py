# mypy: allow-untyped-defs
"""The list work of a search step, which runs next to the cell's two products, off the critical path.

`splice` makes the lists after the merge and writes the history. `add_up` and `rank` prepare the next choice
among the old pairs of the new lists, those that the merge left as they were. `draw` makes the random numbers
of a step ahead of time.
"""

import triton
import triton.language as tl

from beamtree.kernels.runtime import address_kernels as at
from beamtree.kernels.runtime.math_kernels import WORST, index_of, key_of, up_to_rounding, value_of
from beamtree.kernels.runtime.random_kernels import (
    DROPOUT,
    FIRST_SELECTION,
    SECOND_SELECTION,
    gumbel,
    kept,
    row_key,
)
from beamtree.kernels.search.choose_kernels import NONE


@triton.jit
def list_task(table, t, task, K: tl.constexpr, CHUNKS: tl.constexpr, ROWS: tl.constexpr):
    """A program's share of the list work: one chunk of the lists of ROWS beams of a sequence. ROWS is 1 or
    covers all beams."""
    GROUPS: tl.constexpr = K if ROWS == 1 else 1
    chunk = task % CHUNKS
    sequence = task // (CHUNKS * GROUPS)
    slot = task // CHUNKS % GROUPS + tl.arange(0, ROWS)
    nodes_left = at.length_of(table, sequence, True) - 1 - t  # after step t's merge
    return sequence, slot, chunk, nodes_left


@triton.jit
def splice(
    table, t, task,
    K: tl.constexpr, CHUNKS: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Make the lists after step t: a beam's list is that of the beam it continues, with the new node in place
    of the merged pair. The scores of the new pairs are stored later, in `choose_kernel`."""
    B, n = at.number(table, at.BATCH), at.number(table, at.LENGTH)
    sequence, slot, chunk, nodes_left = list_task(table, t, task, K, CHUNKS, ROWS)
    if nodes_left > chunk * CHUNK:
        record = (sequence * (n - 1) + t) * K + slot
        parent = tl.load(at.integers(table, at.PARENTS) + record, mask=slot < K, other=-1)
        position = tl.load(at.integers(table, at.POSITIONS) + record, mask=slot < K, other=0)
        alive = parent >= 0
        old = (((t & 1) * B + sequence) * K + tl.maximum(parent, 0)).to(tl.int64) * n
        new = ((((t + 1) & 1) * B + sequence) * K + slot).to(tl.int64) * n
        ids, pair_scores = at.integers(table, at.IDS), at.floats(table, at.PAIR_SCORES)
        index = chunk * CHUNK + tl.arange(0, CHUNK)[None, :]
        source = old[:, None] + index + (index > position[:, None])  # skip the right child
        moves = (index < nodes_left) & alive[:, None]
        node = tl.load(ids + source, mask=moves, other=0)
        score = tl.load(pair_scores + source, mask=moves & (index < nodes_left - 1), other=NONE)
        made = n + t * K + slot
        node = tl.where(index == position[:, None], made[:, None], node)
        tl.store(ids + new[:, None] + index, node, mask=moves)
        tl.store(pair_scores + new[:, None] + index, score, mask=moves)
        if chunk == 0:
            record_merge(table, sequence, slot, record, old, position, alive, nodes_left, K)


@triton.jit
def record_merge(table, sequence, slot, record, old, position, alive, nodes_left, K: tl.constexpr):
    """Write the history of a merge: left neighbour, children, right neighbour; the scores of the three pairs
    that end; the new node's height. And for the next step the new node's position and neighbours."""
    n = at.number(table, at.LENGTH)
    around = tl.arange(0, 4)[None, :]  # left neighbour, left child, right child, right neighbour
    index = position[:, None] - 1 + around
    place = old[:, None] + index
    exists = alive[:, None] & (index >= 0) & (index <= nodes_left)
    node = tl.load(at.integers(table, at.IDS) + place, mask=exists, other=-1)
    history = record[:, None].to(tl.int64) * 4 + around
    tl.store(at.integers(table, at.LINKS) + history, node, mask=alive[:, None])
    exists = alive[:, None] & (index >= 0) & (index < nodes_left) & (around < 3)
    energy = tl.load(at.floats(table, at.PAIR_SCORES) + place, mask=exists, other=NONE)
    tl.store(at.floats(table, at.ENERGIES) + history, energy, mask=alive[:, None] & (around < 3))
    fresh = at.integers(table, at.FRESH) + (sequence * K + slot) * 4
    tl.store(fresh, position, mask=slot < K)
    tl.store(fresh + 1, tl.max(tl.where(around == 0, node, -1), 1), mask=slot < K)
    tl.store(fresh + 2, tl.max(tl.where(around == 3, node, -1), 1), mask=slot < K)
    heights = at.integers(table, at.HEIGHTS)
    is_made = ((around == 1) | (around == 2)) & (node >= n)
    height = tl.load(heights + sequence * (n - 1) * K + node - n, mask=is_made, other=0)
    tl.store(heights + record, 1 + tl.max(height, 1), mask=alive)


@triton.jit
def old_pairs(table, t, sequence, slot, chunk, nodes_left, K: tl.constexpr, CHUNK: tl.constexpr):
    """A chunk of the lists after step t: where each list starts, the chunk's indices, which of them are old
    pairs, and the scores of those."""
    B, n = at.number(table, at.BATCH), at.number(table, at.LENGTH)
    row = sequence * K + slot
    position = tl.load(at.integers(table, at.FRESH) + row * 4, mask=slot < K, other=0)[:, None]
    start = (((t + 1) & 1) * B * K + row).to(tl.int64)[:, None] * n
    index = chunk * CHUNK + tl.arange(0, CHUNK)[None, :]
    is_old = (index < nodes_left - 1) & (index != position) & (index != position - 1) & (slot < K)[:, None]
    energy = tl.load(at.floats(table, at.PAIR_SCORES) + start + index, mask=is_old, other=NONE)
    return start, index, is_old, energy


@triton.jit
def add_up(
    table, t, task,
    K: tl.constexpr, CHUNKS: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Log-sum-exp of a chunk's old pairs, for the step after t."""
    sequence, slot, chunk, nodes_left = list_task(table, t, task, K, CHUNKS, ROWS)
    if nodes_left > chunk * CHUNK:
        _, _, _, energy = old_pairs(table, t, sequence, slot, chunk, nodes_left, K, CHUNK)
        top = tl.max(energy, 1)
        safe = tl.where(top == NONE, 0.0, top)
        log_sum = safe + tl.log(tl.sum(tl.exp(energy - safe[:, None]), 1))
        tl.store(
            at.floats(table, at.LOG_SUMS) + (sequence * K + slot) * CHUNKS + chunk, log_sum, mask=slot < K
        )


@triton.jit
def rank(
    table, t, task,
    K: tl.constexpr, NOISY: tl.constexpr, CHUNKS: tl.constexpr, CHUNK: tl.constexpr, BEAMS: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """The K best of a chunk's old pairs, with their noise, for the step after t."""
    B, n = at.number(table, at.BATCH), at.number(table, at.LENGTH)
    sequence, slot, chunk, nodes_left = list_task(table, t, task, K, CHUNKS, ROWS)
    if nodes_left > chunk * CHUNK:
        start, index, is_old, value = old_pairs(table, t, sequence, slot, chunk, nodes_left, K, CHUNK)
        row = sequence * K + slot
        if NOISY:
            noise_row = (((t + 1) & 1) * B * K + row)[:, None].to(tl.int64)
            value += tl.load(at.floats(table, at.FIRST_NOISE) + noise_row * n + index, mask=is_old, other=0.0)
        else:
            value = up_to_rounding(value)
        key = tl.where(is_old & (value == value), key_of(value, index), WORST)
        place = tl.arange(0, BEAMS)[None, :]
        winners = tl.full([ROWS, BEAMS], WORST, tl.int64)
        for i in range(K):  # take the best key out, K times
            best = tl.max(key, 1)
            key = tl.where(key == best[:, None], WORST, key)
            winners = tl.where(place == i, best[:, None], winners)
        mask = (slot < K)[:, None] & (place < K)
        found = (winners != WORST) & mask
        position = index_of(winners)
        tops = (row * CHUNKS + chunk)[:, None] * (5 * BEAMS) + place
        tl.store(at.floats(table, at.TOPS) + tops, tl.where(found, value_of(winners), NONE), mask=mask)
        ids, pair_scores = at.integers(table, at.IDS), at.floats(table, at.PAIR_SCORES)
        energy = tl.load(pair_scores + start + position, mask=found, other=NONE)
        left = tl.load(ids + start + position, mask=found, other=0)
        right = tl.load(ids + start + position + 1, mask=found, other=0)
        tl.store(at.floats(table, at.TOPS) + tops + BEAMS, energy, mask=found)
        tl.store(at.integers(table, at.TOPS) + tops + 2 * BEAMS, position, mask=found)
        tl.store(at.integers(table, at.TOPS) + tops + 3 * BEAMS, left, mask=found)
        tl.store(at.integers(table, at.TOPS) + tops + 4 * BEAMS, right, mask=found)


@triton.jit
def draw(
    table, t, task,
    K: tl.constexpr, UNITS: tl.constexpr, NOISY: tl.constexpr, DROPS: tl.constexpr,
    CHUNKS: tl.constexpr, CHUNK: tl.constexpr, BEAMS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Draw step t's noise for both selections and its dropout masks."""
    B, n = at.number(table, at.BATCH), at.number(table, at.LENGTH)
    sequence, slot, chunk, pairs = list_task(table, t, task, K, CHUNKS, ROWS)
    real = (slot < K)[:, None]
    row = (((t & 1) * B + sequence) * K + slot)[:, None]
    if pairs > chunk * CHUNK:
        seed = at.seed(table)
        if NOISY:
            index = chunk * CHUNK + tl.arange(0, CHUNK)[None, :]
            key = row_key(seed, FIRST_SELECTION, t, sequence, slot)[:, None]
            noise = at.floats(table, at.FIRST_NOISE) + row.to(tl.int64) * n + index
            tl.store(noise, gumbel(key, index), mask=real & (index < pairs))
            if chunk == 0:
                rank = tl.arange(0, BEAMS)[None, :]
                key = row_key(seed, SECOND_SELECTION, t, sequence, slot)[:, None]
                tl.store(
                    at.floats(table, at.SECOND_NOISE) + row * K + rank,
                    gumbel(key, rank),
                    mask=real & (rank < K),
                )
        if DROPS:  # noqa: SIM102 a constant, unlike the next condition
            if chunk == 0:
                key = row_key(seed, DROPOUT, t, sequence, slot)[:, None]
                keep = at.bytes(table, at.KEEP) + row.to(tl.int64) * UNITS
                for first in range(0, UNITS, 128):
                    unit = first + tl.arange(0, 128)[None, :]
                    survives = kept(key, unit, at.number(table, at.DROPPED))
                    tl.store(keep + unit, survives.to(tl.int8), mask=real & (unit < UNITS))
