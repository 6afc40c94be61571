# mypy: allow-untyped-defs
"""The gated recursive cell after each of its products, row by row, and the score of the parent it makes.

u = keep·GELU(h)        parent = LayerNorm(σ(a)·l + σ(b)·r + σ(g)·c)        e = w·parent + b
"""

import triton
import triton.language as tl

from beamtree.kernels.runtime.math_kernels import gelu, gelu_slope


@triton.jit(do_not_specialize=["rows"])
def activate_kernel(
    before, keep, hidden, slope, rows,
    UNITS: tl.constexpr, SLOPES: tl.constexpr,
    DROPS: tl.constexpr, KEEP_STRIDE: tl.constexpr, KEEP_START: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """u = keep · GELU(h) and, with SLOPES, ∂u/∂h, a tile; either may take h's place."""
    row = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    unit = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = (row < rows)[:, None] & (unit < UNITS)[None, :]
    place = row[:, None] * UNITS + unit[None, :]
    h = tl.load(before + place, mask=mask, other=0.0)
    u, rate = gelu(h), gelu_slope(h)
    if DROPS:
        bits = tl.load(keep + row[:, None] * KEEP_STRIDE + KEEP_START + unit[None, :], mask=mask, other=0.0)
        u, rate = u * bits, rate * bits
    tl.store(hidden + place, u, mask=mask)
    if SLOPES:
        tl.store(slope + place, rate, mask=mask)


@triton.jit
def gated_mix(gates, pairs, row, feature, mask, D: tl.constexpr, STRIDE: tl.constexpr, EPS: tl.constexpr):
    """Of some rows: the children, [σ(a); σ(b); σ(g); c], the mix normalised, and 1 / its deviation."""
    corner = gates + row[:, None] * (4 * D) + feature[None, :]
    child = pairs + row[:, None] * STRIDE + feature[None, :]
    left = tl.load(child, mask=mask, other=0.0)
    right = tl.load(child + D, mask=mask, other=0.0)
    a = tl.sigmoid(tl.load(corner, mask=mask, other=0.0))
    b = tl.sigmoid(tl.load(corner + D, mask=mask, other=0.0))
    g = tl.sigmoid(tl.load(corner + 2 * D, mask=mask, other=0.0))
    c = tl.load(corner + 3 * D, mask=mask, other=0.0)
    mixed = tl.where(mask, a * left + b * right + g * c, 0.0)
    centred = tl.where(mask, mixed - (tl.sum(mixed, 1) / D)[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 1) / D + EPS)
    return left, right, a, b, g, c, centred * scale[:, None], scale


@triton.jit(do_not_specialize=["rows"])
def parent_kernel(
    gates, pairs, gamma, beta, weight, bias, parents, scores, rows,
    D: tl.constexpr, EPS: tl.constexpr, ALL_D: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    inside = row < rows
    feature = tl.arange(0, ALL_D)
    wanted = feature < D
    mask = inside[:, None] & wanted[None, :]
    _, _, _, _, _, _, normed, _ = gated_mix(gates, pairs, row, feature, mask, D, 2 * D, EPS)
    parent = normed * tl.load(gamma + feature, mask=wanted, other=0.0)[None, :]
    parent += tl.load(beta + feature, mask=wanted, other=0.0)[None, :]
    out = tl.load(weight + feature, mask=wanted, other=0.0)[None, :]
    tl.store(parents + row[:, None] * D + feature[None, :], parent, mask=mask)
    tl.store(scores + row, tl.sum(parent * out, 1) + tl.load(bias), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def parent_back_kernel(
    gates, pairs, gamma, beta, weight, d_parents, d_scores, d_gates, d_pairs, partial, rows,
    D: tl.constexpr, EPS: tl.constexpr, ALL_D: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """∂[a; b; g; c], ∂ of the children but through the products, these rows' part of ∂γ, ∂β, ∂w and ∂b."""
    row = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    inside = row < rows
    feature = tl.arange(0, ALL_D)
    wanted = feature < D
    mask = inside[:, None] & wanted[None, :]
    left, right, a, b, g, c, normed, scale = gated_mix(gates, pairs, row, feature, mask, D, 2 * D, EPS)
    gain = tl.load(gamma + feature, mask=wanted, other=0.0)[None, :]
    parent = normed * gain + tl.load(beta + feature, mask=wanted, other=0.0)[None, :]
    out = tl.load(weight + feature, mask=wanted, other=0.0)[None, :]
    to_score = tl.load(d_scores + row, mask=inside, other=0.0)
    into = tl.load(d_parents + row[:, None] * D + feature[None, :], mask=mask, other=0.0)
    into += to_score[:, None] * out
    into = tl.where(mask, into, 0.0)
    through = into * gain
    middle, slant = tl.sum(through, 1) / D, tl.sum(through * normed, 1) / D
    through = (through - middle[:, None] - normed * slant[:, None]) * scale[:, None]
    pair = d_pairs + row[:, None] * (2 * D) + feature[None, :]
    tl.store(pair, through * a, mask=mask)
    tl.store(pair + D, through * b, mask=mask)
    corner = d_gates + row[:, None] * (4 * D) + feature[None, :]
    tl.store(corner, through * left * a * (1 - a), mask=mask)
    tl.store(corner + D, through * right * b * (1 - b), mask=mask)
    tl.store(corner + 2 * D, through * c * g * (1 - g), mask=mask)
    tl.store(corner + 3 * D, through * g, mask=mask)
    share = partial + tl.program_id(0) * (3 * D + 1)
    tl.store(share + feature, tl.sum(into * normed, 0), mask=wanted)
    tl.store(share + D + feature, tl.sum(into, 0), mask=wanted)
    tl.store(share + 2 * D + feature, tl.sum(parent * to_score[:, None], 0), mask=wanted)
    tl.store(share + 3 * D, tl.sum(to_score, 0))
