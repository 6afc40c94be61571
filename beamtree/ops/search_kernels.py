# mypy: allow-untyped-defs
"""One step of the search on a GPU: project, choose, hidden beside lists, gates.

`project` normalises the nodes made last and takes the scorer's first layer of them; `choose` scores each
beam's two new pairs, merges them with the best old ones and keeps K candidates; `hidden` and `gates` are the
cell's two products for the survivors; `lists` splices the survivors' lists and prepares the next choice over
the old pairs, which needs neither product and so runs beside the first.
"""

import triton
import triton.language as tl

from beamtree.ops import board as at
from beamtree.ops.draw_kernels import DROPOUT, FIRST_LEVEL, SECOND_LEVEL, gumbel, kept, row_key
from beamtree.ops.math_kernels import WORST, gelu, index_of, key_of, product, value_of

NONE = tl.constexpr(float("-inf"))


@triton.jit
def clock(board, step):
    return at.number(board, at.BASE) + step


@triton.jit
def node_row(board, sequence, K: tl.constexpr):
    n = at.number(board, at.LENGTH)
    return sequence.to(tl.int64) * (n + (n - 1) * K)


@triton.jit
def project(
    board, t, tile, block,
    D: tl.constexpr, K: tl.constexpr, S: tl.constexpr, H: tl.constexpr, LEAVES: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of rows × 2·H: W_left·x[:s] and W_right·x[:s] + b for the leaves, or for the newest nodes."""
    B, n = at.number(board, at.BATCH), at.number(board, at.LENGTH)
    nodes, projections = at.floats(board, at.NODES), at.floats(board, at.PROJECTIONS)
    row = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    if LEAVES:
        sequence = row // n
        active = row < B * n
        target = node_row(board, sequence, K) + row % n
        source = nodes + target * D
    else:
        sequence = row // K
        active = row < tl.where(t > 0, B * K, 0)
        active = active & (t < at.length_of(board, sequence, active) - 1)
        target = node_row(board, sequence, K) + n + (t - 1) * K + row % K
        source = at.floats(board, at.SUMS) + row.to(tl.int64) * D
        mean, scale = moments(source, active, D, BLOCK_M, BLOCK_K)
        if block == 0:
            for first in range(0, D, BLOCK_K):
                feature = first + tl.arange(0, BLOCK_K)
                x = normalised(board, source, mean, scale, active, feature, D)
                inside = active[:, None] & (feature < D)[None, :]
                tl.store(nodes + target[:, None] * D + feature[None, :], x, mask=inside)

    weight, bias = at.floats(board, at.SCORER_W1), at.floats(board, at.SCORER_B1)
    column = block * BLOCK_N + tl.arange(0, BLOCK_N)
    role = column // H
    place = (column - role * H) * (2 * S) + role * S
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for first in range(0, S, BLOCK_K):
        feature = first + tl.arange(0, BLOCK_K)
        if LEAVES:
            inside = active[:, None] & (feature < S)[None, :]
            x = tl.load(source[:, None] + feature[None, :], mask=inside, other=0.0)
        else:
            x = normalised(board, source, mean, scale, active, feature, S)
        real = (column < 2 * H)[None, :] & (feature < S)[:, None]
        w = tl.load(weight + place[None, :] + feature[:, None], mask=real, other=0.0)
        total = product(x, w, total, PRECISION)
    is_right = role == 1
    total += tl.load(bias + column - H, mask=is_right, other=0.0)[None, :]
    inside = active[:, None] & (column < 2 * H)[None, :]
    tl.store(projections + target[:, None] * (2 * H) + column[None, :], total, mask=inside)


@triton.jit
def moments(source, active, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr):
    """Mean and reciprocal standard deviation of rows."""
    total = tl.zeros([BLOCK_M], tl.float32)
    for first in range(0, D, BLOCK_K):
        feature = first + tl.arange(0, BLOCK_K)
        inside = active[:, None] & (feature < D)[None, :]
        total += tl.sum(tl.load(source[:, None] + feature[None, :], mask=inside, other=0.0), 1)
    mean = total / D
    square = tl.zeros([BLOCK_M], tl.float32)
    for first in range(0, D, BLOCK_K):
        feature = first + tl.arange(0, BLOCK_K)
        inside = active[:, None] & (feature < D)[None, :]
        x = tl.load(source[:, None] + feature[None, :], mask=inside, other=0.0) - mean[:, None]
        square += tl.sum(tl.where(inside, x * x, 0.0), 1)
    return mean, tl.rsqrt(square / D + 1e-5)


@triton.jit
def normalised(board, source, mean, scale, active, feature, SIZE: tl.constexpr):
    """Layer norm of rows at some features, zero from SIZE on."""
    inside = active[:, None] & (feature < SIZE)[None, :]
    x = (tl.load(source[:, None] + feature[None, :], mask=inside, other=0.0) - mean[:, None]) * scale[:, None]
    gamma = tl.load(at.floats(board, at.GAMMA) + feature, mask=feature < SIZE, other=0.0)
    beta = tl.load(at.floats(board, at.BETA) + feature, mask=feature < SIZE, other=0.0)
    return x * gamma[None, :] + beta[None, :]


@triton.jit
def pair_score(board, left, right, valid, H: tl.constexpr, ROWS: tl.constexpr, BLOCK_H: tl.constexpr):
    """w₂·GELU(projection of left + projection of right) + b₂ for rows of the projections; −inf where not valid."""
    projections = at.floats(board, at.PROJECTIONS)
    weight = at.floats(board, at.SCORER_W2)
    total = tl.zeros([ROWS], tl.float32)
    for first in range(0, H, BLOCK_H):
        unit = first + tl.arange(0, BLOCK_H)
        inside = valid[:, None] & (unit < H)[None, :]
        a = tl.load(projections + left[:, None] * (2 * H) + unit[None, :], mask=inside, other=0.0)
        b = tl.load(projections + right[:, None] * (2 * H) + H + unit[None, :], mask=inside, other=0.0)
        w = tl.load(weight + unit, mask=unit < H, other=0.0)
        total += tl.sum(gelu(a + b) * w[None, :], 1)
    total += tl.load(at.floats(board, at.SCORER_B2))
    return tl.where(valid, total, NONE)


@triton.jit
def choose(
    board, t, sequence,
    K: tl.constexpr, H: tl.constexpr, NOISY: tl.constexpr, CHUNKS: tl.constexpr, CHUNK: tl.constexpr,
    BEAMS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """Keep K of a sequence's candidates. BEAMS and WIDTH are K and K + 2 rounded up to powers of two."""
    B, n = at.number(board, at.BATCH), at.number(board, at.LENGTH)
    pairs = at.length_of(board, sequence, True) - 1 - t
    if pairs >= 1:
        beam = tl.arange(0, BEAMS)
        scores = at.floats(board, at.SCORES)
        score = tl.load(scores + ((t & 1) * B + sequence) * K + beam, mask=beam < K, other=NONE)
        alive = score != NONE
        seed = tl.load(board + at.SEED)

        record = (sequence * (n - 1) + t - 1) * K + beam
        fresh = alive & (beam < tl.where(t > 0, K, 0))
        position = tl.load(at.integers(board, at.POSITIONS) + record, mask=fresh, other=0)
        links = at.integers(board, at.LINKS) + record.to(tl.int64) * 4
        before = tl.load(links, mask=fresh, other=-1)
        behind = tl.load(links + 3, mask=fresh, other=-1)
        row = node_row(board, sequence, K)
        newest = row + n + (t - 1) * K + beam
        left_score = pair_score(board, row + before, newest, before >= 0, H, BEAMS, BLOCK_H)
        right_score = pair_score(board, newest, row + behind, behind >= 0, H, BEAMS, BLOCK_H)
        place = (((t & 1) * B + sequence) * K + beam).to(tl.int64) * n + position
        pair_scores = at.floats(board, at.PAIR_SCORES) + place
        tl.store(pair_scores - 1, left_score, mask=before >= 0)
        tl.store(pair_scores, right_score, mask=behind >= 0)
        left_value, right_value = left_score, right_score
        if NOISY:
            key = row_key(seed, FIRST_LEVEL, t, sequence, beam)
            left_value += gumbel(key, position - 1)
            right_value += gumbel(key, position)
        left_value = tl.where(left_value == left_value, left_value, NONE)  # NaN is never chosen
        right_value = tl.where(right_value == right_value, right_value, NONE)

        old_sum, value, place, energy = old_candidates(
            board, sequence, alive, pairs, K, CHUNKS, CHUNK, BEAMS, WIDTH
        )
        top = tl.maximum(old_sum, tl.maximum(left_score, right_score))
        top = tl.where(top == NONE, 0.0, top)
        log_z = tl.exp(old_sum - top) + tl.exp(left_score - top) + tl.exp(right_score - top)
        log_z = top + tl.log(log_z)

        column = tl.arange(0, WIDTH)[None, :]
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
        candidate = (value != NONE) & (rank < K) & (column < K + 2) & alive[:, None]

        total = energy + (score - log_z)[:, None]
        total = tl.where(pairs == 1, score[:, None], total)
        perturbed = total
        if NOISY:
            key = row_key(seed, SECOND_LEVEL, t, sequence, beam)
            perturbed += gumbel(key[:, None], rank)
        key = tl.where(candidate, key_of(perturbed, beam[:, None] * K + rank), WORST)
        slot = final_ranks(key, K, BEAMS, WIDTH)
        survives = candidate & (slot < K)

        shift = tl.max(tl.max(tl.where(survives, total, NONE), 1), 0)
        record = (sequence * (n - 1) + t) * K
        next_scores = scores + (((t + 1) & 1) * B + sequence) * K
        parents = at.integers(board, at.PARENTS) + record
        tl.store(parents + slot, beam[:, None] + tl.zeros_like(slot), mask=survives)
        tl.store(at.integers(board, at.POSITIONS) + record + slot, place, mask=survives)
        log_zs = at.floats(board, at.ENERGIES) + (record + slot).to(tl.int64) * 4 + 3
        tl.store(log_zs, log_z[:, None] + tl.zeros_like(total), mask=survives)
        tl.store(next_scores + slot, total - shift, mask=survives)
        tl.store(at.floats(board, at.SHIFTS) + sequence * (n - 1) + t, shift)
        count = tl.sum(tl.sum(survives.to(tl.int32), 1), 0)
        dead = (beam >= count) & (beam < K)
        tl.store(parents + beam, -1, mask=dead)
        tl.store(at.integers(board, at.POSITIONS) + record + beam, 0, mask=dead)
        tl.store(next_scores + beam, NONE, mask=dead)


@triton.jit
def old_candidates(
    board, sequence, alive, pairs,
    K: tl.constexpr, CHUNKS: tl.constexpr, CHUNK: tl.constexpr, BEAMS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Each beam's log-sum-exp over its old pairs, and the best K of them in order (BEAMS, WIDTH)."""
    beam = tl.arange(0, BEAMS)
    base = (sequence * K + beam) * CHUNKS
    log_sums = at.floats(board, at.LOG_SUMS) + base
    values, energies = at.floats(board, at.TOP_VALUES), at.floats(board, at.TOP_SCORES)
    places = at.integers(board, at.TOP_POSITIONS)
    column = tl.arange(0, WIDTH)
    if CHUNKS == 1:
        log_sum = tl.load(log_sums, mask=alive, other=NONE)
        entry = base[:, None] * K + column[None, :]
        inside = alive[:, None] & (column < K)[None, :]
        value = tl.load(values + entry, mask=inside, other=NONE)
    else:
        chunk = tl.arange(0, CHUNKS)
        inside = alive[:, None] & (chunk * CHUNK < pairs)[None, :]
        sums = tl.load(log_sums[:, None] + chunk[None, :], mask=inside, other=NONE)
        top = tl.max(sums, 1)
        safe = tl.where(top == NONE, 0.0, top)
        log_sum = safe + tl.log(tl.sum(tl.exp(sums - safe[:, None]), 1))
        ALL: tl.constexpr = CHUNKS * BEAMS
        index = tl.arange(0, ALL)
        chunk, rank = index // BEAMS, index % BEAMS
        inside = alive[:, None] & ((rank < K) & (chunk * CHUNK < pairs))[None, :]
        every = tl.load(
            values + (base[:, None] + chunk[None, :]) * K + rank[None, :], mask=inside, other=NONE
        )
        key = tl.where(every != NONE, key_of(every, index[None, :]), WORST)
        value = tl.full([BEAMS, WIDTH], NONE, tl.float32)
        entry = tl.zeros([BEAMS, WIDTH], tl.int32)
        for i in range(K):
            best = tl.max(key, 1)
            key = tl.where(key == best[:, None], WORST, key)
            found = (best != WORST)[:, None] & (column == i)[None, :]
            winner = index_of(best)
            value = tl.where(found, value_of(best)[:, None], value)
            entry = tl.where(found, ((base + winner // BEAMS) * K + winner % BEAMS)[:, None], entry)
        inside = value != NONE
    return (
        log_sum,
        value,
        tl.load(places + entry, mask=inside, other=0),
        tl.load(energies + entry, mask=inside, other=NONE),
    )


@triton.jit
def final_ranks(key, K: tl.constexpr, BEAMS: tl.constexpr, WIDTH: tl.constexpr):
    """Each candidate's rank among all of a sequence's, (BEAMS, WIDTH); only those below K are exact."""
    if BEAMS * WIDTH <= 128:
        flat = tl.reshape(key, [BEAMS * WIDTH])
        ahead = (flat[None, :] > flat[:, None]).to(tl.int32)
        return tl.reshape(tl.sum(ahead, 1), [BEAMS, WIDTH])
    else:
        rank = tl.full([BEAMS, WIDTH], K, tl.int32)
        for i in range(K):
            best = tl.max(tl.max(key, 1), 0)
            rank = tl.where((key == best) & (best != WORST), i, rank)
            key = tl.where(key == best, WORST, key)
        return rank


@triton.jit
def children(board, t, row, K: tl.constexpr):
    """For flat (sequence, slot) rows: whether their sequence still merges, and the rows of the two children.

    A dead slot takes its sequence's first pair: what it makes is never read.
    """
    B, n = at.number(board, at.BATCH), at.number(board, at.LENGTH)
    sequence = row // K
    merging = row < B * K
    merging = merging & (t < at.length_of(board, sequence, merging) - 1)
    record = (sequence * (n - 1) + t) * K + row % K
    parent = tl.load(at.integers(board, at.PARENTS) + record, mask=merging, other=0)
    position = tl.load(at.integers(board, at.POSITIONS) + record, mask=merging, other=0)
    beam = ((t & 1) * B + sequence) * K + tl.maximum(parent, 0)
    ids = at.integers(board, at.IDS) + beam.to(tl.int64) * n + position
    base = node_row(board, sequence, K)
    # Where every beam is dead, which only NaN brings about, the lists hold anything.
    last = n + (n - 1) * K - 1
    left = tl.minimum(tl.maximum(tl.load(ids, mask=merging, other=0), 0), last)
    right = tl.minimum(tl.maximum(tl.load(ids + 1, mask=merging, other=0), 0), last)
    return merging, base + left, base + right


@triton.jit
def hidden(
    board, t, tile, block,
    D: tl.constexpr, K: tl.constexpr, UNITS: tl.constexpr, DROPS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of u = keep · GELU(W₁ [l; r] + b₁)."""
    row = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    active, left, right = children(board, t, row, K)
    nodes, weight = at.floats(board, at.NODES), at.floats(board, at.W1)
    column = block * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for side in tl.static_range(2):
        source = nodes + (left if side == 0 else right) * D
        for first in range(0, D, BLOCK_K):
            feature = first + tl.arange(0, BLOCK_K)
            inside = active[:, None] & (feature < D)[None, :]
            x = tl.load(source[:, None] + feature[None, :], mask=inside, other=0.0)
            inside = (column < UNITS)[None, :] & (feature < D)[:, None]
            w = weight + column[None, :] * (2 * D) + side * D + feature[:, None]
            total = product(x, tl.load(w, mask=inside, other=0.0), total, PRECISION)
    total += tl.load(at.floats(board, at.B1) + column, mask=column < UNITS, other=0.0)[None, :]
    u = gelu(total)
    if DROPS:
        dropped = at.number(board, at.DROPPED)
        key = row_key(tl.load(board + at.SEED), DROPOUT, t, row // K, row % K)
        u = tl.where(kept(key[:, None], column[None, :], dropped), u * (65536.0 / (65536 - dropped)), 0.0)
    inside = active[:, None] & (column < UNITS)[None, :]
    target = at.floats(board, at.HIDDEN) + row[:, None].to(tl.int64) * UNITS + column[None, :]
    tl.store(target, u, mask=inside)


@triton.jit
def gates(
    board, t, tile, block,
    D: tl.constexpr, K: tl.constexpr, UNITS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_F: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of σ(a)·l + σ(b)·r + σ(g)·c: one program holds all four gates of its features."""
    row = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    active, left, right = children(board, t, row, K)
    column = tl.arange(0, 4 * BLOCK_F)  # 4·feature + gate
    unit_row = (column % 4) * D + block * BLOCK_F + column // 4
    real = block * BLOCK_F + column // 4 < D
    source = at.floats(board, at.HIDDEN) + row.to(tl.int64) * UNITS
    weight = at.floats(board, at.W2)
    total = tl.zeros([BLOCK_M, 4 * BLOCK_F], tl.float32)
    for first in range(0, UNITS, BLOCK_K):
        unit = first + tl.arange(0, BLOCK_K)
        inside = active[:, None] & (unit < UNITS)[None, :]
        u = tl.load(source[:, None] + unit[None, :], mask=inside, other=0.0)
        inside_w = real[None, :] & (unit < UNITS)[:, None]
        w = tl.load(weight + unit_row[None, :] * UNITS + unit[:, None], mask=inside_w, other=0.0)
        total = product(u, w, total, PRECISION)
    total += tl.load(at.floats(board, at.B2) + unit_row, mask=real, other=0.0)[None, :]
    even, odd = tl.split(tl.reshape(total, [BLOCK_M, BLOCK_F, 2, 2]))
    to_left, to_content = tl.split(even)
    to_right, content = tl.split(odd)
    feature = block * BLOCK_F + tl.arange(0, BLOCK_F)
    nodes = at.floats(board, at.NODES) + feature[None, :]
    inside = active[:, None] & (feature < D)[None, :]
    total = tl.sigmoid(to_left) * tl.load(nodes + left[:, None] * D, mask=inside, other=0.0)
    total += tl.sigmoid(to_right) * tl.load(nodes + right[:, None] * D, mask=inside, other=0.0)
    total += tl.sigmoid(to_content) * content
    target = at.floats(board, at.SUMS) + row[:, None].to(tl.int64) * D + feature[None, :]
    tl.store(target, total, mask=inside)


@triton.jit
def lists(
    board, t, task,
    K: tl.constexpr, NOISY: tl.constexpr, CHUNKS: tl.constexpr, CHUNK: tl.constexpr, BEAMS: tl.constexpr,
):  # fmt: skip
    """Splice one chunk of a survivor's lists; sum and rank its old pairs with the next step's noise.

    At t = −1 there is nothing to splice: the leaves' lists are only summed and ranked.
    """
    B, n = at.number(board, at.BATCH), at.number(board, at.LENGTH)
    chunk, row = task % CHUNKS, task // CHUNKS
    sequence, slot = row // K, row % K
    count = at.length_of(board, sequence, True) - 1 - t  # nodes left after this step's merge
    record = (sequence * (n - 1) + t) * K + slot
    merges = t >= 0
    parent = tl.load(at.integers(board, at.PARENTS) + record, mask=merges & (count >= 1), other=-1)
    ready = (parent >= 0) | ((t < 0) & (slot == 0))
    if ready & (count > chunk * CHUNK):
        position = tl.load(at.integers(board, at.POSITIONS) + record, mask=merges, other=n)
        parent = tl.maximum(parent, 0)
        old = (((t & 1) * B + sequence) * K + parent).to(tl.int64) * n
        new = ((((t + 1) & 1) * B + sequence) * K + slot).to(tl.int64) * n
        old = tl.where(merges, old, new)
        ids, pair_scores = at.integers(board, at.IDS), at.floats(board, at.PAIR_SCORES)
        index = chunk * CHUNK + tl.arange(0, CHUNK)
        source = old + index + (index > position)
        is_new_pair = (index == position) | (index == position - 1)
        is_old_pair = (index < count - 1) & ~is_new_pair
        energy = tl.load(pair_scores + source, mask=is_old_pair, other=NONE)
        if merges:
            node = tl.load(ids + source, mask=index < count, other=0)
            node = tl.where(index == position, n + t * K + slot, node)
            tl.store(ids + new + index, node, mask=index < count)
            tl.store(pair_scores + new + index, energy, mask=is_old_pair)
            if chunk == 0:
                record_merge(
                    board, t, sequence, slot, record, ids + old, pair_scores + old, position, count, K
                )

        entry = row * CHUNKS + chunk
        top = tl.max(energy, 0)
        safe = tl.where(top == NONE, 0.0, top)
        tl.store(at.floats(board, at.LOG_SUMS) + entry, safe + tl.log(tl.sum(tl.exp(energy - safe), 0)))
        value = energy
        if NOISY:
            value += gumbel(row_key(tl.load(board + at.SEED), FIRST_LEVEL, t + 1, sequence, slot), index)
        key = tl.where(is_old_pair & (value == value), key_of(value, index), WORST)
        rank = tl.arange(0, BEAMS)
        winners = tl.full([BEAMS], WORST, tl.int64)
        for i in range(K):
            best = tl.max(key, 0)
            key = tl.where(key == best, WORST, key)
            winners = tl.where(rank == i, best, winners)
        found = winners != WORST
        place = index_of(winners)
        entry = entry * K + rank
        energy = tl.load(pair_scores + old + place + (place > position), mask=found, other=NONE)
        tl.store(
            at.floats(board, at.TOP_VALUES) + entry, tl.where(found, value_of(winners), NONE), mask=rank < K
        )
        tl.store(at.integers(board, at.TOP_POSITIONS) + entry, place, mask=found)
        tl.store(at.floats(board, at.TOP_SCORES) + entry, energy, mask=found)


@triton.jit
def record_merge(board, t, sequence, slot, record, ids, pair_scores, position, count, K: tl.constexpr):
    """History: the children between their neighbours, the scores of the pairs that end, the height."""
    n = at.number(board, at.LENGTH)
    around = tl.arange(0, 4)
    index = position - 1 + around
    node = tl.load(ids + index, mask=(index >= 0) & (index <= count), other=-1)
    tl.store(at.integers(board, at.LINKS) + record.to(tl.int64) * 4 + around, node)
    energy = tl.load(pair_scores + index, mask=(index >= 0) & (index < count) & (around < 3), other=NONE)
    tl.store(at.floats(board, at.ENERGIES) + record.to(tl.int64) * 4 + around, energy, mask=around < 3)
    heights = at.integers(board, at.HEIGHTS)
    is_child = (around == 1) | (around == 2)
    made = sequence * (n - 1) * K + node - n
    height = tl.load(heights + made, mask=is_child & (node >= n), other=0)
    tl.store(heights + record, 1 + tl.max(height, 0))
