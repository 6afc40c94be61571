# mypy: allow-untyped-defs
"""What the derivative of Ordered Memory's cells does row by row, for all slots at once: it needs no order."""

import triton
import triton.language as tl

from beamtree.kernels.cell_kernels import open_gates, store_gate_slopes


@triton.jit(do_not_specialize=["rows"])
def recall_kernel(
    gates, left, right, share, normed, scales, left_gate, right_gate, rows,
    D: tl.constexpr, EPS: tl.constexpr, ALL_D: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """From [a; b; g; c]: t normalised, 1/σ of t, cp σ(a) and cp σ(b); cp ∂t/∂[a; b; g; c] in their place."""
    row = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    inside = row < rows
    feature = tl.arange(0, ALL_D)
    mask = inside[:, None] & (feature < D)[None, :]
    place = row[:, None] * D + feature[None, :]
    corner = gates + row[:, None] * (4 * D) + feature[None, :]
    part = tl.load(share + row, mask=inside, other=0.0)[:, None]
    here, there, a, b, g, c, y, scale = open_gates(corner, left + place, right + place, mask, D, EPS)
    tl.store(normed + place, y, mask=mask)
    tl.store(scales + row, scale, mask=inside)
    tl.store(left_gate + place, a * part, mask=mask)
    tl.store(right_gate + place, b * part, mask=mask)
    store_gate_slopes(corner, here, there, a, b, g, c, part, mask, D)


@triton.jit(do_not_specialize=["B", "slots"])
def close_kernel(
    to_values, to_first, normed, x, share, gamma, beta, to_mixed, slopes, to_x, to_share, partial, B, slots,
    D: tl.constexpr, ALL_D: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Of some sequences, over all slots: ∂x, ∂cp, these sequences' part of ∂γ and ∂β; the slopes of the
    gates become their gradients."""
    sequence = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = sequence < B
    feature = tl.arange(0, ALL_D)
    real = feature < D
    mask = inside[:, None] & real[None, :]
    place = sequence[:, None].to(tl.int64) * D + feature[None, :]
    token = tl.load(x + place, mask=mask, other=0.0)
    gain = tl.load(gamma + feature, mask=real, other=0.0)[None, :]
    shift = tl.load(beta + feature, mask=real, other=0.0)[None, :]
    to_token = tl.load(to_first + place, mask=mask, other=0.0)
    to_gain, to_shift = tl.zeros([BLOCK_M, ALL_D], tl.float32), tl.zeros([BLOCK_M, ALL_D], tl.float32)
    for slot in range(slots):
        row = (slot * B + sequence).to(tl.int64)
        place = row[:, None] * D + feature[None, :]
        part = tl.load(share + row, mask=inside, other=0.0)
        into = tl.load(to_values + place, mask=mask, other=0.0)
        along = tl.load(normed + place, mask=mask, other=0.0)
        change = tl.where(mask, along * gain + shift - token, 0.0)
        tl.store(to_share + row, tl.sum(into * change, 1), mask=inside)
        to_token += into * (1 - part[:, None])
        to_gain += into * along * part[:, None]
        to_shift += into * part[:, None]
        through = tl.load(to_mixed + place, mask=mask, other=0.0)
        for gate in tl.static_range(4):
            slope = slopes + row[:, None] * (4 * D) + gate * D + feature[None, :]
            tl.store(slope, tl.load(slope, mask=mask, other=0.0) * through, mask=mask)
    tl.store(to_x + sequence[:, None].to(tl.int64) * D + feature[None, :], to_token, mask=mask)
    tl.store(partial + tl.program_id(0) * (2 * D) + feature, tl.sum(to_gain, 0), mask=real)
    tl.store(partial + tl.program_id(0) * (2 * D) + D + feature, tl.sum(to_shift, 0), mask=real)
