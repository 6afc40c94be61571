# mypy: allow-untyped-defs
"""The gated recursive cell as tiles, forward and backward, for every kernel that composes two children.

    h = W₁ [l; r] + b₁      u = keep · GELU(h)      [a; b; g; c] = W₂ u + b₂
    p = σ(a)·l + σ(b)·r + σ(g)·c      parent = LayerNorm(p)

Here p is called the sum. Rows may come from a step, a level or a list, and dropout masks may be stored or
drawn: that is up to the caller, which passes pointers and factors.
"""

import triton
import triton.language as tl

from beamtree.kernels.runtime.math_kernels import gelu, gelu_slope, normalised, product
from beamtree.kernels.runtime.random_kernels import DROPOUT, kept, row_key


@triton.jit
def rows_times(
    rows, inside, weights, wanted, total,
    SIZE: tl.constexpr, STRIDE: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
    CACHE: tl.constexpr,
):  # fmt: skip
    """total + x·W. `rows` (M,) point to vectors of SIZE numbers, `weights` (N,) to the first number of each
    column; the numbers of a column are STRIDE apart. CACHE is ".cg" for rows that other programs write in the
    same launch: such reads must bypass the first-level cache."""
    for first in range(0, SIZE, BLOCK_K):
        index = first + tl.arange(0, BLOCK_K)
        mask = inside[:, None] & (index < SIZE)[None, :]
        x = tl.load(rows[:, None] + index[None, :], mask=mask, other=0.0, cache_modifier=CACHE)
        mask_w = wanted[None, :] & (index < SIZE)[:, None]
        w = tl.load(weights[None, :] + index[:, None] * STRIDE, mask=mask_w, other=0.0)
        total = product(x, w, total, PRECISION)
    return total


@triton.jit
def hidden_tile(
    left, right, inside, w1, b1, unit,
    D: tl.constexpr, UNITS: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr, CACHE: tl.constexpr,
):  # fmt: skip
    """GELU(W₁ [l; r] + b₁), rows × hidden units; `left` and `right` point to the children's vectors."""
    wanted = unit < UNITS
    weights = w1 + unit * (2 * D)
    total = tl.zeros([inside.shape[0], unit.shape[0]], tl.float32)
    # A row of W₁ has d weights for the left child, then d for the right one.
    total = rows_times(left, inside, weights, wanted, total, D, 1, BLOCK_K, PRECISION, CACHE)
    total = rows_times(right, inside, weights + D, wanted, total, D, 1, BLOCK_K, PRECISION, CACHE)
    return gelu(total + tl.load(b1 + unit, mask=wanted, other=0.0)[None, :])


@triton.jit
def mixed_tile(
    hidden, left, right, inside, w2, b2, first_feature,
    D: tl.constexpr, UNITS: tl.constexpr, BLOCK_F: tl.constexpr, BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr, CACHE: tl.constexpr,
):  # fmt: skip
    """The sum σ(a)·l + σ(b)·r + σ(g)·c, rows × BLOCK_F features. One program computes all four gates of its
    features. `hidden`, `left` and `right` point to rows."""
    # The gates of a feature are adjacent columns of the tile, 4·feature + gate, so that splits can separate
    # them; in W₂ they are D rows apart.
    column = tl.arange(0, 4 * BLOCK_F)
    weight_row = (column % 4) * D + first_feature + column // 4
    wanted = first_feature + column // 4 < D
    total = tl.zeros([inside.shape[0], 4 * BLOCK_F], tl.float32)
    weights = w2 + weight_row * UNITS
    total = rows_times(hidden, inside, weights, wanted, total, UNITS, 1, BLOCK_K, PRECISION, CACHE)
    total += tl.load(b2 + weight_row, mask=wanted, other=0.0)[None, :]
    even, odd = tl.split(tl.reshape(total, [inside.shape[0], BLOCK_F, 2, 2]))  # a and g; b and c
    to_left, to_content = tl.split(even)
    to_right, content = tl.split(odd)
    feature = first_feature + tl.arange(0, BLOCK_F)
    mask = inside[:, None] & (feature < D)[None, :]
    left, right = left[:, None] + feature[None, :], right[:, None] + feature[None, :]
    mixed = tl.sigmoid(to_left) * tl.load(left, mask=mask, other=0.0, cache_modifier=CACHE)
    mixed += tl.sigmoid(to_right) * tl.load(right, mask=mask, other=0.0, cache_modifier=CACHE)
    return mixed + tl.sigmoid(to_content) * content


@triton.jit
def unit_tile(tile, block, rows, UNITS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """A tile of rows × a block of hidden units: indices of both, which entries exist, and their offsets."""
    row = (tile * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    unit = block * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (row < rows)[:, None] & (unit < UNITS)[None, :]
    return row, unit, inside, row[:, None] * UNITS + unit[None, :]


@triton.jit
def drawn_mask(seed, step, sequence, slot, unit, dropped):
    """Rows of dropout masks, drawn as in engine/randomness.py: 0, or 1 / (1 − rate)."""
    keep = kept(row_key(seed, DROPOUT, step, sequence, slot)[:, None], unit[None, :], dropped)
    return tl.where(keep, 65536.0 / (65536 - dropped), 0.0)


@triton.jit
def activate_tile(
    before, keep, hidden, slopes, place, inside, SLOPES: tl.constexpr, DROPS: tl.constexpr, bias=0.0
):
    """u = keep · GELU(h) and, with SLOPES, ∂u/∂h, which may overwrite h. `before` holds h without `bias`."""
    h = tl.load(before + place, mask=inside, other=0.0) + bias
    u, slope = gelu(h), gelu_slope(h)
    if DROPS:
        u, slope = u * keep, slope * keep
    tl.store(hidden + place, u, mask=inside)
    if SLOPES:
        tl.store(slopes + place, slope, mask=inside)


@triton.jit
def gate_tile(gates, biases, mask, which: tl.constexpr, D: tl.constexpr):
    """One of the four parts of [a; b; g; c]; `biases` is None where they are included in `gates`."""
    x = tl.load(gates + which * D, mask=mask, other=0.0)
    return x if biases is None else x + tl.load(biases + which * D, mask=mask, other=0.0)


@triton.jit
def open_gates(gates, left_place, right_place, mask, D: tl.constexpr, EPS: tl.constexpr, biases=None):
    """l, r, σ(a), σ(b), σ(g), c, the normalised sum and its scale 1/σ, for rows × all features; all arguments
    are pointers. `biases` points to b₂ if the gates are W₂ u without it."""
    left = tl.load(left_place, mask=mask, other=0.0)
    right = tl.load(right_place, mask=mask, other=0.0)
    a = tl.sigmoid(gate_tile(gates, biases, mask, 0, D))
    b = tl.sigmoid(gate_tile(gates, biases, mask, 1, D))
    g = tl.sigmoid(gate_tile(gates, biases, mask, 2, D))
    c = gate_tile(gates, biases, mask, 3, D)
    normed, scale = normalised(tl.where(mask, a * left + b * right + g * c, 0.0), mask, D, EPS)
    return left, right, a, b, g, c, normed, scale


@triton.jit
def store_gate_slopes(gates, left, right, a, b, g, c, factor, mask, D: tl.constexpr):
    """Store ∂(sum)/∂[a; b; g; c] times a factor; `gates` points to rows × all features."""
    tl.store(gates, left * a * (1.0 - a) * factor, mask=mask)
    tl.store(gates + D, right * b * (1.0 - b) * factor, mask=mask)
    tl.store(gates + 2 * D, c * g * (1.0 - g) * factor, mask=mask)
    tl.store(gates + 3 * D, g * factor, mask=mask)


@triton.jit
def through_norm(grad, normed, scale, D: tl.constexpr):
    """The gradient of rows before the layer norm, from `grad`: that of its output times γ."""
    mean, along = tl.sum(grad, 1) / D, tl.sum(grad * normed, 1) / D
    return (grad - mean[:, None] - normed * along[:, None]) * scale[:, None]


@triton.jit
def to_hidden_tile(
    sums, gates, hidden, w2, start, end, tile, block,
    D: tl.constexpr, UNITS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of rows × hidden units: `hidden` holds ∂u/∂h and becomes ∂L/∂h = ∂u/∂h · (∂L/∂gates · W₂).
    ∂L/∂gates is ∂p/∂gates, from `gates`, times ∂L/∂p, from `sums`."""
    row = (start + tile * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    inside = row < end
    unit = block * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for gate in tl.static_range(4):
        for first in range(0, D, BLOCK_K):
            feature = first + tl.arange(0, BLOCK_K)
            mask = inside[:, None] & (feature < D)[None, :]
            grad = sums + row[:, None] * D + feature[None, :]
            grad = tl.load(grad, mask=mask, other=0.0, cache_modifier=".cg")
            place = row[:, None] * (4 * D) + gate * D + feature[None, :]
            grad *= tl.load(gates + place, mask=mask, other=0.0)
            mask_w = (feature < D)[:, None] & (unit < UNITS)[None, :]
            w = tl.load(w2 + (gate * D + feature[:, None]) * UNITS + unit[None, :], mask=mask_w, other=0.0)
            total = product(grad, w, total, PRECISION)
    mask = inside[:, None] & (unit < UNITS)[None, :]
    target = hidden + row[:, None] * UNITS + unit[None, :]
    tl.store(target, tl.load(target, mask=mask, other=0.0) * total, mask=mask)


@triton.jit
def to_children_tile(
    hidden, child_grads, w1, row, inside, column,
    D: tl.constexpr, UNITS: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of [l; r], a tile of rows × 2·d: their share by σ(a)·l + σ(b)·r, in `child_grads`, plus
    ∂L/∂h·W₁."""
    wanted = column < 2 * D
    total = tl.zeros([inside.shape[0], column.shape[0]], tl.float32)
    rows = hidden + row * UNITS
    total = rows_times(rows, inside, w1 + column, wanted, total, UNITS, 2 * D, BLOCK_K, PRECISION, ".cg")
    share = child_grads + row[:, None] * (2 * D) + column[None, :]
    return tl.load(share, mask=inside[:, None] & wanted[None, :], other=0.0, cache_modifier=".cg") + total


@triton.jit(do_not_specialize=["rows"])
def activate_kernel(
    before, keep, hidden, slope, rows,
    UNITS: tl.constexpr, SLOPES: tl.constexpr,
    DROPS: tl.constexpr, KEEP_STRIDE: tl.constexpr, KEEP_START: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """u = keep · GELU(h) and, with SLOPES, ∂u/∂h; either may overwrite h. Masks are read from `keep`."""
    row, unit, mask, place = unit_tile(tl.program_id(0), tl.program_id(1), rows, UNITS, BLOCK_M, BLOCK_N)
    bits = 1.0
    if DROPS:
        bits = tl.load(keep + row[:, None] * KEEP_STRIDE + KEEP_START + unit[None, :], mask=mask, other=0.0)
    activate_tile(before, bits, hidden, slope, place, mask, SLOPES, DROPS)


@triton.jit
def gated_mix(gates, pairs, row, feature, mask, D: tl.constexpr, STRIDE: tl.constexpr, EPS: tl.constexpr):
    """`open_gates` of some rows of `pairs`, which are STRIDE apart."""
    child = pairs + row[:, None] * STRIDE + feature[None, :]
    return open_gates(gates + row[:, None] * (4 * D) + feature[None, :], child, child + D, mask, D, EPS)
