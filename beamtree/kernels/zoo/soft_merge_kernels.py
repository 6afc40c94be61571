# mypy: allow-untyped-defs
"""What an iteration of CRvNN and its derivative do row by row, a row being a token of a sequence."""

import triton
import triton.language as tl

from beamtree.kernels.cell_kernels import (
    activate_tile,
    drawn_mask,
    gated_mix,
    store_gate_slopes,
    through_norm,
    unit_tile,
)
from beamtree.kernels.runtime.math_kernels import gelu, gelu_slope, row_tile


@triton.jit(do_not_specialize=["rows"])
def token_score_kernel(
    conv, weight, bias, present, scores, rows,
    D: tl.constexpr, ALL_D: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """w · GELU(conv) + b, zero at padding."""
    row, inside, feature, wanted, mask, place = row_tile(tl.program_id(0), rows, D, ALL_D, BLOCK_M)
    hidden = gelu(tl.load(conv + place, mask=mask, other=0.0))
    out = tl.load(weight + feature, mask=wanted, other=0.0)[None, :]
    real = tl.load(present + row, mask=inside, other=0) != 0
    tl.store(scores + row, tl.where(real, tl.sum(hidden * out, 1) + tl.load(bias), 0.0), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def token_score_back_kernel(
    conv, weight, present, to_score, shared, partial, rows,
    D: tl.constexpr, ALL_D: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """∂ before GELU in place of conv, and these rows' part of ∂w and ∂b."""
    row, inside, feature, wanted, mask, place = row_tile(tl.program_id(0), rows, D, ALL_D, BLOCK_M)
    into = tl.load(to_score + row, mask=inside, other=0.0) + tl.load(shared + row, mask=inside, other=0.0)
    into = tl.where(tl.load(present + row, mask=inside, other=0) != 0, into, 0.0)
    before = tl.load(conv + place, mask=mask, other=0.0)
    out = tl.load(weight + feature, mask=wanted, other=0.0)[None, :]
    tl.store(conv + place, into[:, None] * out * gelu_slope(before), mask=mask)
    corner = partial + tl.program_id(0) * (3 * D + 1)
    tl.store(corner + 2 * D + feature, tl.sum(gelu(before) * into[:, None], 0), mask=wanted)
    tl.store(corner + 3 * D, tl.sum(into, 0))


@triton.jit(do_not_specialize=["T", "rows", "dropped"])
def activate_tokens_kernel(
    before, hidden, slope, seed, time, T, rows, dropped,
    UNITS: tl.constexpr, SLOPES: tl.constexpr, DROPS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """u = keep · GELU(h) and, with SLOPES, ∂u/∂h; a mask belongs to a token at a time."""
    row, unit, mask, place = unit_tile(tl.program_id(0), tl.program_id(1), rows, UNITS, BLOCK_M, BLOCK_N)
    bits = 1.0
    if DROPS:
        bits = drawn_mask(tl.load(seed), tl.load(time), row // T, row % T, unit, dropped)
    activate_tile(before, bits, hidden, slope, place, mask, SLOPES, DROPS)


@triton.jit(do_not_specialize=["T", "rows"])
def grow_kernel(
    gates, window, gamma, beta, grows, halted, h_after, T, rows,
    D: tl.constexpr, EPS: tl.constexpr, ALL_D: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """h ← λ parent + (1−λ) h, unless the sequence has halted."""
    row, inside, feature, wanted, mask, place = row_tile(tl.program_id(0), rows, D, ALL_D, BLOCK_M)
    _, right, _, _, _, _, normed, _ = gated_mix(gates, window + D, row, feature, mask, D, 5 * D, EPS)
    parent = normed * tl.load(gamma + feature, mask=wanted, other=0.0)[None, :]
    parent += tl.load(beta + feature, mask=wanted, other=0.0)[None, :]
    frozen = tl.load(halted + row // T, mask=inside, other=1) != 0
    part = tl.where(frozen, 0.0, tl.load(grows + row, mask=inside, other=0.0))[:, None]
    tl.store(h_after + place, right + part * (parent - right), mask=mask)


@triton.jit(do_not_specialize=["T", "rows"])
def grow_back_kernel(
    gates, window, gamma, beta, grows, halted, d_after, d_grows, d_pair, partial, T, rows,
    D: tl.constexpr, EPS: tl.constexpr, ALL_D: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """∂λ; ∂ of both children but through the products; ∂[a; b; g; c] in their place; these rows' part of
    ∂γ and ∂β."""
    row, inside, feature, wanted, mask, place = row_tile(tl.program_id(0), rows, D, ALL_D, BLOCK_M)
    left, right, a, b, g, c, normed, scale = gated_mix(gates, window + D, row, feature, mask, D, 5 * D, EPS)
    gain = tl.load(gamma + feature, mask=wanted, other=0.0)[None, :]
    parent = normed * gain + tl.load(beta + feature, mask=wanted, other=0.0)[None, :]
    into = tl.load(d_after + place, mask=mask, other=0.0)
    frozen = tl.load(halted + row // T, mask=inside, other=1) != 0
    part = tl.where(frozen, 0.0, tl.load(grows + row, mask=inside, other=0.0))[:, None]
    to_growth = tl.sum(into * tl.where(mask, parent - right, 0.0), 1)
    tl.store(d_grows + row, tl.where(frozen, 0.0, to_growth), mask=inside)
    to_parent = into * part
    through = through_norm(to_parent * gain, normed, scale, D)
    pair = d_pair + row[:, None] * (2 * D) + feature[None, :]
    tl.store(pair, through * a, mask=mask)
    tl.store(pair + D, through * b + into - to_parent, mask=mask)
    corner = gates + row[:, None] * (4 * D) + feature[None, :]
    store_gate_slopes(corner, left, right, a, b, g, c, through, mask, D)
    share = partial + tl.program_id(0) * (3 * D + 1)
    tl.store(share + feature, tl.sum(to_parent * normed, 0), mask=wanted)
    tl.store(share + D + feature, tl.sum(to_parent, 0), mask=wanted)


@triton.jit(do_not_specialize=["T", "rows"])
def spread_kernel(
    d_window, d_pair, d_first, d_second, d_h, T, rows,
    D: tl.constexpr, ALL_D: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """∂ of the window and the children to ∂ of h, of its neighbours (B, 2, T, d) and of theirs."""
    row, _, feature, _, mask, place = row_tile(tl.program_id(0), rows, D, ALL_D, BLOCK_M)
    window = d_window + row[:, None] * (5 * D) + feature[None, :]
    pair = d_pair + row[:, None] * (2 * D) + feature[None, :]
    to_left = (2 * (row // T) * T + row % T)[:, None] * D + feature[None, :]
    to_right = to_left + T * D
    left = tl.load(window + D, mask=mask, other=0.0) + tl.load(pair, mask=mask, other=0.0)
    here = tl.load(window + 2 * D, mask=mask, other=0.0) + tl.load(pair + D, mask=mask, other=0.0)
    tl.store(d_second + to_left, tl.load(window, mask=mask, other=0.0), mask=mask)
    tl.store(d_first + to_left, left, mask=mask)
    tl.store(d_h + place, here, mask=mask)
    tl.store(d_first + to_right, tl.load(window + 3 * D, mask=mask, other=0.0), mask=mask)
    tl.store(d_second + to_right, tl.load(window + 4 * D, mask=mask, other=0.0), mask=mask)
