# mypy: allow-untyped-defs
"""The choice of a search step: score the pairs of the newest nodes, then keep K candidates per sequence.

`project` normalises the newest nodes and applies the scorer's first layer to them. A pair's score is then
w₂·GELU(left's projection + right's projection + b₁) + b₂. `choose` scores the two new pairs of each beam,
merges them with its best old pairs, which `rank` has prepared, and makes both selections of the step: the
best K pairs of each beam, then the best K of all these candidates.
"""

import triton
import triton.language as tl

from beamtree.kernels.runtime import address_kernels as at
from beamtree.kernels.runtime.math_kernels import (
    WORST,
    gelu,
    index_of,
    key_of,
    product,
    up_to_rounding,
    value_of,
)

NONE = tl.constexpr(float("-inf"))


@triton.jit
def node_row(table, sequence, K: tl.constexpr):
    """The row of a sequence's first node in the node store."""
    n = tl.load(table + at.LENGTH)
    return sequence * (n + (n - 1) * K)


@triton.jit
def children_of(table, row, inside, K: tl.constexpr, ENTANGLED: tl.constexpr):
    """For flat rows of the pairs that a step composes: whether there is a pair, its sequence, its children's
    ids. Rows are (sequence, slot); with an entangled scorer, which composes both new pairs of each merge,
    (sequence, slot, side)."""
    place = at.integers(table, at.NEW_PAIRS if ENTANGLED else at.CHILDREN) + row * 2
    left = tl.load(place, mask=inside, other=-1)
    right = tl.load(place + 1, mask=inside, other=0)
    active = left >= 0
    sequence = row // (2 * K if ENTANGLED else K)
    return active, sequence, tl.where(active, left, 0), tl.where(active, right, 0)


@triton.jit
def project(
    table, t, row, active, first_column, last_column, store_nodes,
    D: tl.constexpr, K: tl.constexpr, S: tl.constexpr, H: tl.constexpr, LEAVES: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Some columns of [W_left·x[:s]; W_right·x[:s]], the scorer's first layer. Rows are leaves (sequence,
    position) or the newest nodes (sequence, slot), x their vectors; `store_nodes` puts x into the node
    store."""
    n = at.number(table, at.LENGTH)
    nodes, projections = at.floats(table, at.NODES), at.floats(table, at.PROJECTIONS)
    if LEAVES:
        target = node_row(table, row // n, K) + row % n
        source = at.floats(table, at.LEAVES) + row.to(tl.int64) * D
        mean, scale = 0.0, 1.0
    else:
        target = node_row(table, row // K, K) + n + (t - 1) * K + row % K
        source = at.floats(table, at.SUMS) + row.to(tl.int64) * D
        mean, scale = moments(source, active, D, BLOCK_M, BLOCK_D)
    if store_nodes:
        for first in range(0, D, BLOCK_D):
            feature = first + tl.arange(0, BLOCK_D)
            x = node_vectors(table, source, mean, scale, active, feature, D, LEAVES)
            inside = active[:, None] & (feature < D)[None, :]
            tl.store(nodes + target[:, None] * D + feature[None, :], x, mask=inside)

    weight = at.floats(table, at.SCORER_W1)
    for start in range(first_column, last_column, BLOCK_N):
        column = start + tl.arange(0, BLOCK_N)
        role = column // H  # 0: as a left child, 1: as a right one
        place = (column - role * H) * (2 * S) + role * S  # a row of W₁ has S weights for either role
        total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for first in range(0, S, BLOCK_K):
            feature = first + tl.arange(0, BLOCK_K)
            x = node_vectors(table, source, mean, scale, active, feature, S, LEAVES)
            real = (column < 2 * H)[None, :] & (feature < S)[:, None]
            w = tl.load(weight + place[None, :] + feature[:, None], mask=real, other=0.0)
            total = product(x, w, total, "tf32x3")
        mask = active[:, None] & (column < 2 * H)[None, :]
        tl.store(projections + target[:, None] * (2 * H) + column[None, :], total, mask=mask)


@triton.jit
def moments(source, active, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr):
    """Means and reciprocal standard deviations of rows."""
    total = tl.zeros([BLOCK_M], tl.float32)
    for first in range(0, D, BLOCK_D):
        feature = first + tl.arange(0, BLOCK_D)
        inside = active[:, None] & (feature < D)[None, :]
        total += tl.sum(tl.load(source[:, None] + feature[None, :], mask=inside, other=0.0), 1)
    mean = total / D
    square = tl.zeros([BLOCK_M], tl.float32)
    for first in range(0, D, BLOCK_D):
        feature = first + tl.arange(0, BLOCK_D)
        inside = active[:, None] & (feature < D)[None, :]
        x = tl.load(source[:, None] + feature[None, :], mask=inside, other=0.0) - mean[:, None]
        square += tl.sum(tl.where(inside, x * x, 0.0), 1)
    return mean, tl.rsqrt(square / D + 1e-5)


@triton.jit
def node_vectors(table, source, mean, scale, active, feature, SIZE: tl.constexpr, LEAVES: tl.constexpr):
    """Some features of rows, zero from SIZE on: leaves as they are, else the layer norm of `source`."""
    inside = active[:, None] & (feature < SIZE)[None, :]
    x = tl.load(source[:, None] + feature[None, :], mask=inside, other=0.0)
    if not LEAVES:
        real = (feature < SIZE)[None, :]
        gamma = tl.load(at.floats(table, at.GAMMA) + feature[None, :], mask=real, other=0.0)
        beta = tl.load(at.floats(table, at.BETA) + feature[None, :], mask=real, other=0.0)
        x = (x - mean[:, None]) * scale[:, None] * gamma + beta
    return x


@triton.jit
def pair_score(table, left, right, valid, H: tl.constexpr, ROWS: tl.constexpr, BLOCK_H: tl.constexpr):
    """Scores of pairs; `left` and `right` are rows of the projections. −inf where not valid."""
    projections = at.floats(table, at.PROJECTIONS)
    weight = at.floats(table, at.SCORER_W2)
    total = tl.zeros([ROWS], tl.float32)
    for first in range(0, H, BLOCK_H):
        unit = first + tl.arange(0, BLOCK_H)
        inside = valid[:, None] & (unit < H)[None, :]
        a = tl.load(projections + left[:, None] * (2 * H) + unit[None, :], mask=inside, other=0.0)
        b = tl.load(projections + right[:, None] * (2 * H) + H + unit[None, :], mask=inside, other=0.0)
        w = tl.load(weight + unit, mask=unit < H, other=0.0)[None, :]
        bias = tl.load(at.floats(table, at.SCORER_B1) + unit, mask=unit < H, other=0.0)[None, :]
        # A plain product would be fused with the sum's first addition, which then rounds only one of its two
        # sides. Threads that hold copies of a score would get different last bits, and contradictory ranks.
        total += tl.sum(tl.fma(gelu(a + b + bias), w, 0.0), 1)
    total += tl.load(at.floats(table, at.SCORER_B2))
    return tl.where(valid, total, NONE)


@triton.jit
def choose(
    table, t, sequence,
    K: tl.constexpr, H: tl.constexpr, NOISY: tl.constexpr, CHUNKS: tl.constexpr, CHUNK: tl.constexpr,
    BEAMS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """Keep K of a sequence's candidates. BEAMS and WIDTH are K and K + 2 rounded up to powers of two.

    Tiles are (BEAMS, WIDTH): columns 0 … K−1 of a beam are its best old pairs in order, column K is the pair
    of its left neighbour and its newest node, column K + 1 that of its newest node and its right neighbour.
    """
    B, n = at.number(table, at.BATCH), at.number(table, at.LENGTH)
    pairs = at.length_of(table, sequence, True) - 1 - t
    beam = tl.arange(0, BEAMS)
    column = tl.arange(0, WIDTH)[None, :]
    children = at.integers(table, at.CHILDREN) + sequence * K * 2
    if pairs == 0:  # the last merge has been made
        tl.store(children + 2 * beam, -1, mask=beam < K)
    if pairs >= 1:
        scores = at.floats(table, at.SCORES)
        last_scores = scores + ((t & 1) * B + sequence) * K
        score = tl.load(last_scores + beam, mask=beam < K, other=NONE)
        alive = score != NONE
        # Scores are kept relative to the best beam's. Without noise this is slot 0, as in engine/search.py.
        shift = tl.max(score, 0) if NOISY else tl.load(last_scores)
        shift = tl.where(shift == NONE, 0.0, shift)
        score -= shift
        tl.store(at.floats(table, at.SHIFTS) + sequence * (n - 1) + t, shift)
        fresh = at.integers(table, at.FRESH) + (sequence * K + beam) * 4
        position = tl.load(fresh, mask=alive, other=0)
        before = tl.load(fresh + 1, mask=alive, other=-1)
        behind = tl.load(fresh + 2, mask=alive, other=-1)
        left_noise, right_noise = 0.0, 0.0
        if NOISY:
            noise_row = ((t & 1) * B + sequence) * K + beam
            noise = at.floats(table, at.FIRST_NOISE) + noise_row.to(tl.int64) * n + position
            left_noise = tl.load(noise - 1, mask=before >= 0, other=0.0)
            right_noise = tl.load(noise, mask=behind >= 0, other=0.0)
        old_sum, value, energy, place, left, right = old_candidates(
            table, sequence, alive, pairs, K, CHUNKS, CHUNK, BEAMS, WIDTH
        )

        # Score the two new pairs and put the scores into the lists.
        row = node_row(table, sequence, K)
        newest = n + (t - 1) * K + beam
        here = (((t & 1) * B + sequence) * K + beam).to(tl.int64) * n + position
        pair_scores = at.floats(table, at.PAIR_SCORES) + here
        if H == 0:  # with an entangled scorer they are there already
            left_score = tl.load(pair_scores - 1, mask=before >= 0, other=NONE)
            right_score = tl.load(pair_scores, mask=behind >= 0, other=NONE)
        else:
            left_score = pair_score(table, row + before, row + newest, before >= 0, H, BEAMS, BLOCK_H)
            right_score = pair_score(table, row + newest, row + behind, behind >= 0, H, BEAMS, BLOCK_H)
            tl.store(pair_scores - 1, left_score, mask=before >= 0)
            tl.store(pair_scores, right_score, mask=behind >= 0)
        if NOISY:
            left_value, right_value = left_score + left_noise, right_score + right_noise
        else:
            left_value, right_value = up_to_rounding(left_score), up_to_rounding(right_score)
        left_value = tl.where(left_value == left_value, left_value, NONE)  # NaN is never chosen
        right_value = tl.where(right_value == right_value, right_value, NONE)

        # log Z over all pairs of a beam: the log-sum-exp of the old ones, plus the two new ones.
        top = tl.maximum(old_sum, tl.maximum(left_score, right_score))
        top = tl.where(top == NONE, 0.0, top)
        log_z = tl.exp(old_sum - top) + tl.exp(left_score - top) + tl.exp(right_score - top)
        log_z = top + tl.log(log_z)

        # First selection: each pair's rank in its beam. Old pairs are in order, so an old one's rank is its
        # column plus the number of new pairs that beat it; a new one's is the number of pairs that beat it.
        # Ties go to the lower position.
        left_beats = left_value[:, None] > value
        left_beats |= (left_value[:, None] == value) & (position[:, None] - 1 < place)
        right_beats = right_value[:, None] > value
        right_beats |= (right_value[:, None] == value) & (position[:, None] < place)
        is_old = (column < K) & (value != NONE)
        left_rank = tl.sum((is_old & ~left_beats).to(tl.int32), 1) + (right_value > left_value)
        right_rank = tl.sum((is_old & ~right_beats).to(tl.int32), 1) + (left_value >= right_value)
        rank = column + left_beats.to(tl.int32) + right_beats.to(tl.int32)
        is_left, is_right = column == K, column == K + 1
        rank = tl.where(is_left, left_rank[:, None], tl.where(is_right, right_rank[:, None], rank))
        value = tl.where(is_left, left_value[:, None], tl.where(is_right, right_value[:, None], value))
        energy = tl.where(is_left, left_score[:, None], tl.where(is_right, right_score[:, None], energy))
        place = tl.where(is_left, position[:, None] - 1, tl.where(is_right, position[:, None], place))
        left = tl.where(is_left, before[:, None], tl.where(is_right, newest[:, None], left))
        right = tl.where(is_left, newest[:, None], tl.where(is_right, behind[:, None], right))
        candidate = (value != NONE) & (rank < K) & (column < K + 2) & alive[:, None]

        # Second selection, by accumulated score.
        total = energy + (score - log_z)[:, None]
        total = tl.where(pairs == 1, score[:, None], total)  # the only pair: e = log Z, whatever the rounding
        if NOISY:
            by_rank = at.floats(table, at.SECOND_NOISE) + (((t & 1) * B + sequence) * K + beam) * K
            perturbed = total + tl.load(by_rank[:, None] + rank, mask=candidate, other=0.0)
        else:
            perturbed = up_to_rounding(total)
        # Entries without a candidate also get distinct keys, below those of all candidates. So if there are
        # fewer than K candidates, each slot left over goes to exactly one such entry and becomes a dead beam.
        nothing = (beam[:, None] * WIDTH + column).to(tl.int64) + (WORST + 1)
        key = tl.where(candidate, key_of(perturbed, beam[:, None] * K + rank), nothing)
        # Everything is flat from here on, as the ranks are: in another layout every store would go through
        # shared memory.
        ALL: tl.constexpr = BEAMS * WIDTH
        slot = final_ranks(tl.reshape(key, [ALL]), K, ALL)
        kept = slot < K
        left = tl.reshape(tl.where(candidate, left, -1), [ALL])
        parent = tl.reshape(tl.where(candidate, beam[:, None], -1), [ALL])
        total = tl.reshape(tl.where(candidate, total, NONE), [ALL])
        log_z = tl.reshape(log_z[:, None] + tl.zeros([BEAMS, WIDTH], tl.float32), [ALL])
        tl.store(children + 2 * slot, left, mask=kept)
        tl.store(children + 2 * slot + 1, tl.reshape(right, [ALL]), mask=kept)
        record = (sequence * (n - 1) + t) * K + slot
        tl.store(at.integers(table, at.PARENTS) + record, parent, mask=kept)
        tl.store(at.integers(table, at.POSITIONS) + record, tl.reshape(place, [ALL]), mask=kept)
        tl.store(at.floats(table, at.ENERGIES) + record.to(tl.int64) * 4 + 3, log_z, mask=kept)
        tl.store(scores + (((t + 1) & 1) * B + sequence) * K + slot, total, mask=kept)


@triton.jit
def old_candidates(
    table, sequence, alive, pairs,
    K: tl.constexpr, CHUNKS: tl.constexpr, CHUNK: tl.constexpr, BEAMS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Each beam's log-sum-exp over its old pairs, and the best K of them in order, (BEAMS, WIDTH): value,
    score, position, left, right. `rank` and `add_up` have left both for every chunk of a list."""
    beam = tl.arange(0, BEAMS)
    base = (sequence * K + beam) * CHUNKS
    log_sums = at.floats(table, at.LOG_SUMS) + base
    tops, top_integers = at.floats(table, at.TOPS), at.integers(table, at.TOPS)
    column = tl.arange(0, WIDTH)
    entry = base[:, None] * (5 * BEAMS) + column[None, :]
    inside = alive[:, None] & (column < K)[None, :]
    value = tl.load(tops + entry, mask=inside, other=NONE)
    log_sum = tl.load(log_sums, mask=alive, other=NONE)
    if CHUNKS > 1:  # noqa: SIM102 a constant, unlike the next condition
        if pairs > CHUNK:  # else all pairs are in the first chunk, whose best have been loaded
            chunk = tl.arange(0, CHUNKS)
            filled = alive[:, None] & (chunk * CHUNK < pairs)[None, :]
            sums = tl.load(log_sums[:, None] + chunk[None, :], mask=filled, other=NONE)
            top = tl.max(sums, 1)
            safe = tl.where(top == NONE, 0.0, top)
            log_sum = safe + tl.log(tl.sum(tl.exp(sums - safe[:, None]), 1))
            # The K best of all chunks' best; `entry` says where in `tops` each of them is.
            ALL: tl.constexpr = CHUNKS * BEAMS
            index = tl.arange(0, ALL)
            owner, rank = index // BEAMS, index % BEAMS
            ranked = alive[:, None] & ((rank < K) & (owner * CHUNK < pairs))[None, :]
            entries = (base[:, None] + owner[None, :]) * (5 * BEAMS) + rank[None, :]
            every = tl.load(tops + entries, mask=ranked, other=NONE)
            key = tl.where(every != NONE, key_of(every, index[None, :]), WORST)
            value = tl.full([BEAMS, WIDTH], NONE, tl.float32)
            for i in range(K):
                best = tl.max(key, 1)
                key = tl.where(key == best[:, None], WORST, key)
                found = (best != WORST)[:, None] & (column == i)[None, :]
                winner = index_of(best)
                value = tl.where(found, value_of(best)[:, None], value)
                place = (base + winner // BEAMS) * (5 * BEAMS) + winner % BEAMS
                entry = tl.where(found, place[:, None], entry)
    inside = value != NONE
    energy = tl.load(tops + entry + BEAMS, mask=inside, other=NONE)
    position = tl.load(top_integers + entry + 2 * BEAMS, mask=inside, other=0)
    left = tl.load(top_integers + entry + 3 * BEAMS, mask=inside, other=0)
    right = tl.load(top_integers + entry + 4 * BEAMS, mask=inside, other=0)
    return log_sum, value, energy, position, left, right


@triton.jit
def final_ranks(key, K: tl.constexpr, COUNT: tl.constexpr):
    """The rank of each key, the greatest first. Only ranks below K are exact; others are K or more."""
    if COUNT <= 128:
        return tl.sum((key[:, None] > key[None, :]).to(tl.int32), 0)
    else:
        rank = tl.full([COUNT], K, tl.int32)
        for i in range(K):
            best = tl.max(key, 0)
            rank = tl.where(key == best, i, rank)
            key = tl.where(key == best, WORST, key)
        return rank
