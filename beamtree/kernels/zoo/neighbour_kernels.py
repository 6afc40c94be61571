# mypy: allow-untyped-defs
"""CRvNN's neighbour matrices L and R, and which tokens are absorbed, with their derivatives.

The formulas and symbols are those of zoo/crvnn_step.py. L and R of a sequence are stored one after the other,
(B, 2, T, T). Kernels that sum over rows and columns of them take a whole sequence per program and go through
it by blocks of rows, so that no program reads back what it or another one has written.
"""

import triton
import triton.language as tl

EPSILON = tl.constexpr(4e-8)


@triton.jit
def between_tile(exists, row, T, ALL_T: tl.constexpr):
    """For a block of tokens i and all tokens j: the existence strictly between them, (ROWS, T); e_j; whether
    j is to the left; whether it is to the right."""
    token = tl.arange(0, ALL_T)
    e = tl.load(exists + token, mask=token < T, other=0.0)
    mine = tl.load(exists + row, mask=row < T, other=0.0)
    upto = tl.cumsum(e.to(tl.float64), 0)
    before = token[None, :] <= row[:, None]
    upto_mine = tl.sum(tl.where(before, e.to(tl.float64)[None, :], 0.0), 1)
    both = (row < T)[:, None] & (token < T)[None, :]
    is_left, is_right = both & (token[None, :] < row[:, None]), both & (token[None, :] > row[:, None])
    to_left = (upto_mine - mine)[:, None] - upto[None, :]
    to_right = (upto - e)[None, :] - upto_mine[:, None]
    return tl.where(is_left, to_left, to_right).to(tl.float32), e, is_left, is_right


@triton.jit(do_not_specialize=["T"])
def neighbours_kernel(exists, both, T, ALL_T: tl.constexpr, ROWS: tl.constexpr):
    """Some rows of a sequence's L and R: min(1, between + e_j) − min(1, between) on either side."""
    sequence = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    between, e, is_left, is_right = between_tile(exists + sequence * T, row, T, ALL_T)
    near = tl.minimum(between + e[None, :], 1.0) - tl.minimum(between, 1.0)
    place = both + sequence * 2 * T * T + row[:, None] * T + tl.arange(0, ALL_T)[None, :]
    mask = (row < T)[:, None] & (tl.arange(0, ALL_T) < T)[None, :]
    tl.store(place, tl.where(is_left, near, 0.0), mask=mask)
    tl.store(place + T * T, tl.where(is_right, near, 0.0), mask=mask)


@triton.jit
def strengths(scores, absorbable, T, ALL_T: tl.constexpr):
    """α of all tokens, ν, and μ = max(0, the largest score)."""
    token = tl.arange(0, ALL_T)
    score = tl.load(scores + token, mask=token < T, other=0.0)
    top = tl.maximum(tl.max(score, 0), 0.0)
    may = tl.load(absorbable + token, mask=token < T, other=0.0)
    return tl.exp(score - top) * may, tl.exp(-top), top


@triton.jit
def absorptions(scores, absorbable, alpha, rest, top, row, tile, T):
    """For a block of rows and their rows of L + R: α, π, the denominator of π, and A, whether each may be
    absorbed."""
    score = tl.load(scores + row, mask=row < T, other=0.0)
    may = tl.load(absorbable + row, mask=row < T, other=0.0)
    mine = tl.exp(score - top) * may
    under = mine + rest + tl.sum(tile * alpha[None, :], 1) + EPSILON
    return mine, may * mine / under, under, may


@triton.jit(do_not_specialize=["T"])
def absorb_kernel(
    scores, both, exists, absorbable, present, halted, left, lifetime,
    grows, exists_after, halted_after, left_after, lifetime_after, T,
    AGAIN: tl.constexpr, STILL_EXISTS: tl.constexpr, ALL_T: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """λ = Lπ of a sequence, and its state after the iteration: existence, halted, iterations left, lifetime.
    Existence and lifetime in a halted sequence do not change. AGAIN computes λ only, for the backward
    pass."""
    sequence = tl.program_id(0).to(tl.int64)
    first, both = sequence * T, both + sequence * 2 * T * T
    frozen = tl.load(halted + sequence) != 0
    token = tl.arange(0, ALL_T)
    alpha, rest, top = strengths(scores + first, absorbable + first, T, ALL_T)
    growth = tl.zeros([ALL_T], tl.float32)
    tokens = tl.zeros([ROWS], tl.int32)
    for start in range(0, T, ROWS):
        row = start + tl.arange(0, ROWS)
        inside = row < T
        mask = inside[:, None] & (token < T)[None, :]
        place = both + row[:, None] * T + token[None, :]
        tile = tl.load(place, mask=mask, other=0.0) + tl.load(place + T * T, mask=mask, other=0.0)
        _, absorbed, _, _ = absorptions(scores + first, absorbable + first, alpha, rest, top, row, tile, T)
        column = tl.load(both + token[None, :] * T + row[:, None], mask=mask, other=0.0)  # of L
        growth += tl.sum(column * absorbed[:, None], 0)
        if not AGAIN:
            e = tl.load(exists + first + row, mask=inside, other=0.0)
            after = tl.where(frozen, e, e * (1 - absorbed))
            tokens += (after > STILL_EXISTS).to(tl.int32)
            tl.store(exists_after + first + row, after, mask=inside)
            lived = tl.load(lifetime + first + row, mask=inside, other=0.0)
            tl.store(lifetime_after + first + row, lived + tl.where(frozen, 0.0, after), mask=inside)
    real = tl.load(present + first + token, mask=token < T, other=0) != 0
    tl.store(grows + first + token, tl.where(real, growth, 0.0), mask=token < T)
    if not AGAIN:
        remaining = tl.load(left + sequence) - 1
        tl.store(left_after + sequence, remaining)
        # START and END always exist and do not count.
        tl.store(halted_after + sequence, frozen | (tl.sum(tokens, 0) - 2 <= 1) | (remaining <= 0))


@triton.jit(do_not_specialize=["T"])
def absorb_back_kernel(
    scores, both, exists, absorbable, present, halted, d_grows, d_after,
    alphas, absorbed, through, to_score, shared, d_direct, T,
    ALL_T: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """From ∂λ and the gradient of the existence after: α, π, the gradient of π's denominator, ∂s in two
    parts, and the gradient of the existence before, as far as it comes through the factor e in e (1 − π).

    At padding ∂λ counts as zero. ∂μ is ε times the sum of the gradients of the denominators; it goes to the
    largest score, in equal parts if several are largest.
    """
    sequence = tl.program_id(0).to(tl.int64)
    first, both = sequence * T, both + sequence * 2 * T * T
    frozen = tl.load(halted + sequence) != 0
    token = tl.arange(0, ALL_T)
    alpha, rest, top = strengths(scores + first, absorbable + first, T, ALL_T)
    real = tl.load(present + first + token, mask=token < T, other=0) != 0
    growth = tl.where(real, tl.load(d_grows + first + token, mask=token < T, other=0.0), 0.0)
    accumulated = tl.zeros([ALL_T], tl.float32)
    to_top = tl.zeros([ROWS], tl.float32)
    for start in range(0, T, ROWS):
        row = start + tl.arange(0, ROWS)
        inside = row < T
        mask = inside[:, None] & (token < T)[None, :]
        place = both + row[:, None] * T + token[None, :]
        tile = tl.load(place, mask=mask, other=0.0) + tl.load(place + T * T, mask=mask, other=0.0)
        mine, pi, under, may = absorptions(scores + first, absorbable + first, alpha, rest, top, row, tile, T)
        column = tl.load(both + token[None, :] * T + row[:, None], mask=mask, other=0.0)
        e = tl.load(exists + first + row, mask=inside, other=0.0)
        into = tl.load(d_after + first + row, mask=inside, other=0.0)
        active = tl.where(frozen, 0.0, into)
        to_pi = tl.sum(column * growth[None, :], 1) - e * active  # from λ = Lπ, and from e (1 − π)
        to_under = -to_pi * pi / under
        accumulated += tl.sum(tile * to_under[:, None], 0)
        to_top += EPSILON * to_under
        tl.store(alphas + first + row, mine, mask=inside)
        tl.store(absorbed + first + row, pi, mask=inside)
        tl.store(through + first + row, to_under, mask=inside)
        tl.store(to_score + first + row, (to_pi * may / under + to_under) * mine, mask=inside)
        tl.store(d_direct + first + row, tl.where(frozen, into, into * (1 - pi)), mask=inside)
    score = tl.load(scores + first + token, mask=token < T, other=0.0)
    is_top = ((score == top) & (score > 0.0)).to(tl.float32)
    part = tl.sum(to_top, 0) / tl.maximum(tl.sum(is_top, 0), 1.0)
    tl.store(shared + first + token, accumulated * alpha + is_top * part, mask=token < T)


@triton.jit(do_not_specialize=["T"])
def neighbours_back_kernel(
    exists, present, d_both, d_grows, alphas, absorbed, through, d_direct, d_exists, T,
    ALL_T: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """∂e of a sequence, from ∂L and ∂R. The parts of these that come from (L + R)α and Lπ are added here;
    `d_both` has the rest."""
    sequence = tl.program_id(0).to(tl.int64)
    first, d_both = sequence * T, d_both + sequence * 2 * T * T
    token = tl.arange(0, ALL_T)
    alpha = tl.load(alphas + first + token, mask=token < T, other=0.0)
    pi = tl.load(absorbed + first + token, mask=token < T, other=0.0)
    total = tl.load(d_direct + first + token, mask=token < T, other=0.0).to(tl.float64)
    to_upto = tl.zeros([ALL_T], tl.float64)
    for start in range(0, T, ROWS):
        row = start + tl.arange(0, ROWS)
        inside = row < T
        between, e, is_left, is_right = between_tile(exists + first, row, T, ALL_T)
        real = tl.load(present + first + row, mask=inside, other=0) != 0
        growth = tl.where(real, tl.load(d_grows + first + row, mask=inside, other=0.0), 0.0)
        under = tl.load(through + first + row, mask=inside, other=0.0)
        place = d_both + row[:, None] * T + token[None, :]
        to_near = tl.load(place, mask=is_left, other=0.0) + tl.load(place + T * T, mask=is_right, other=0.0)
        to_near += under[:, None] * alpha[None, :]
        to_near += tl.where(is_left, growth[:, None] * pi[None, :], 0.0)
        to_near = tl.where(is_left | is_right, to_near, 0.0)
        # Through min(1, between + e_j) − min(1, between).
        to_sum = tl.where(between + e[None, :] <= 1.0, to_near, 0.0)
        to_between = (to_sum - tl.where(between <= 1.0, to_near, 0.0)).to(tl.float64)
        from_left, from_right = tl.where(is_left, to_between, 0.0), tl.where(is_right, to_between, 0.0)
        by_left = tl.sum(from_left, 1)
        # The existence between i and j in cumulative sums: upto_i − e_i − upto_j if j is left of i, upto_j −
        # e_j − upto_i if it is right. ∂upto_i goes to all e up to i at once; ∂upto_j is collected and summed
        # at the end.
        earlier = token[None, :] <= row[:, None]
        total += tl.sum(tl.where(earlier, (by_left - tl.sum(from_right, 1))[:, None], 0.0), 0)
        total -= tl.sum(tl.where(token[None, :] == row[:, None], by_left[:, None], 0.0), 0)
        total += tl.sum(to_sum.to(tl.float64) - from_right, 0)
        to_upto += tl.sum(from_right - from_left, 0)
    total += tl.sum(to_upto, 0) - tl.cumsum(to_upto, 0) + to_upto
    tl.store(d_exists + first + token, total.to(tl.float32), mask=token < T)
