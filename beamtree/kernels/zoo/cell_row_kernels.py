# mypy: allow-untyped-defs
"""The gated recursive cell after each of its products, row by row, and the score of the parent it makes.

u = keep·GELU(h)        parent = LayerNorm(σ(a)·l + σ(b)·r + σ(g)·c)        e = w·parent + b
"""

import triton
import triton.language as tl

from beamtree.kernels.cell_kernels import activate_tile, open_gates, store_gate_slopes, through_norm


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
    bits = 1.0
    if DROPS:
        bits = tl.load(keep + row[:, None] * KEEP_STRIDE + KEEP_START + unit[None, :], mask=mask, other=0.0)
    activate_tile(before, bits, hidden, slope, place, mask, SLOPES, DROPS)


@triton.jit
def gated_mix(gates, pairs, row, feature, mask, D: tl.constexpr, STRIDE: tl.constexpr, EPS: tl.constexpr):
    """`open_gates` of some rows of pairs, STRIDE apart."""
    child = pairs + row[:, None] * STRIDE + feature[None, :]
    return open_gates(gates + row[:, None] * (4 * D) + feature[None, :], child, child + D, mask, D, EPS)


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
    through = through_norm(into * gain, normed, scale, D)
    pair = d_pairs + row[:, None] * (2 * D) + feature[None, :]
    tl.store(pair, through * a, mask=mask)
    tl.store(pair + D, through * b, mask=mask)
    corner = d_gates + row[:, None] * (4 * D) + feature[None, :]
    store_gate_slopes(corner, left, right, a, b, g, c, through, mask, D)
    share = partial + tl.program_id(0) * (3 * D + 1)
    tl.store(share + feature, tl.sum(into * normed, 0), mask=wanted)
    tl.store(share + D + feature, tl.sum(into, 0), mask=wanted)
    tl.store(share + 2 * D + feature, tl.sum(parent * to_score[:, None], 0), mask=wanted)
    tl.store(share + 3 * D, tl.sum(to_score, 0))
