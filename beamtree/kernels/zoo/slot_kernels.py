# mypy: allow-untyped-defs
"""The cells of Ordered Memory, slot after slot, with two kernels per slot forward and two backward.

    u_j = keep · GELU(W₁ˡ v_{j−1} + m_j)      m_j = W₁ʳ M_j + b₁
    t_j = σ(a)·v_{j−1} + σ(b)·M_j + σ(g)·c    [a; b; g; c] = W₂ u_j + b₂
    v_j = x (1−cp_j) + LayerNorm(t_j) cp_j

M is the written memory, x the token, v_0 = x. The layer norm needs whole rows of t_j, so v_j is computed by
the first kernel of the next slot: by each of its tiles, of which the first stores it.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from beamtree.kernels.cell_kernels import (
    activate_kernel,
    mixed_tile,
    open_gates,
    rows_times,
    store_gate_slopes,
)
from beamtree.kernels.runtime.math_kernels import gelu, product, row_tile
from beamtree.kernels.runtime.products import float32_precision
from beamtree.pytorch.launch import blocks, launch, power_of_two

ROWS = 16  # of a tile: the fewest for a tensor core


class Slots:
    """Composes x (B, d) with the memory (S, B, d) by the cell, slot by slot; cp is (S, B).

    `keep` (S, B, 6d), or None, has the dropout masks of left child, right child and hidden layer.
    """

    def __init__(
        self, w: Any, x: Tensor, memory: Tensor, cp: Tensor, keep: Tensor | None, eps: float
    ) -> None:
        self.w, self.x, self.memory, self.cp, self.keep, self.eps = w, x, memory, cp, keep, eps
        d = x.shape[-1]
        self.w1_left = w.w1_left.contiguous()
        self.right = memory if keep is None else memory * keep[..., d : 2 * d]
        wide = max(16, power_of_two(d))
        rounding = float32_precision()
        drops = {"DROPS": keep is not None, "KEEP_STRIDE": 6 * d}
        self.norm = {"D": d, "EPS": eps, "ALL_D": wide}
        self.tile = {"BLOCK_M": ROWS, "BLOCK_N": 64, "BLOCK_K": min(64, wide), "PRECISION": rounding}
        self.narrow_tile = self.tile | {"BLOCK_N": 32, "BLOCK_K": 64}
        self.sizes, self.drops = {"D": d, "UNITS": 4 * d}, drops

    def compose(self) -> Tensor:
        """v of all slots, (S, B, d)."""
        w, x = self.w, self.x
        S, B, d = self.memory.shape
        from_memory = torch.addmm(w.b1, self.right.view(-1, d), w.w1_right.t()).view(S, B, 4 * d)
        values, mixed, hidden = (
            torch.empty_like(self.memory),
            torch.empty_like(x),
            torch.empty_like(from_memory[0]),
        )
        tiles = blocks(B, ROWS)
        for j in range(S):
            left = values[j - 1] if j else x
            launch(hidden_kernel, (tiles, blocks(4 * d, 64)),
                x, mixed, self.cp[j - 1], w.norm_weight, w.norm_bias, self.w1_left, from_memory[j],
                self._keep(j), left, hidden, B,
                **self.sizes, EPS=self.eps, FIRST=j == 0, **self.drops, ALL_D=self.norm["ALL_D"], **self.tile,
                num_warps=4, num_stages=2,
            )  # fmt: skip
            launch(mix_kernel, (tiles, blocks(d, 16)),
                left, self.memory[j], hidden, w.w2, w.b2, mixed, B,
                **self.sizes, BLOCK_M=ROWS, BLOCK_F=16, BLOCK_K=64, PRECISION=self.tile["PRECISION"],
                num_warps=4, num_stages=3,
            )  # fmt: skip
        launch(value_kernel, (tiles,),
            x, mixed, self.cp[-1], w.norm_weight, w.norm_bias, values[-1], B,
            **self.norm, BLOCK_M=ROWS, num_warps=4,
        )  # fmt: skip
        return values

    def differentiate(
        self, values: Tensor, d_values: Tensor, sums: Any
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Gradients of x (B, d) and cp (S, B), and three parts of the memory's, (S, B, d) each: ∂t and the
        gate it is multiplied by, and what comes through the product, still without its mask. Gradients of the
        weights are added to `sums`."""
        w, (S, B, d) = self.w, self.memory.shape
        rows, tiles, ones = S * B, blocks(B, ROWS), self.x.new_ones(S * B)
        left = torch.cat((self.x.unsqueeze(0), values[:-1])).view(rows, d)
        dropped = left if self.keep is None else left * self.keep[..., :d].view(rows, d)
        right = self.right.view(rows, d)
        before = torch.addmm(w.b1, right, w.w1_right.t()).addmm_(dropped, w.w1_left.t())
        hidden, slope = torch.empty_like(before), torch.empty_like(before)
        launch(activate_kernel, (blocks(rows, 16), blocks(4 * d, 128)),
            before, self._keep(slice(None)), hidden, slope, rows,
            UNITS=4 * d, SLOPES=True, **self.drops, KEEP_START=2 * d, BLOCK_M=16, BLOCK_N=128, num_warps=4,
        )  # fmt: skip
        gates = torch.addmm(w.b2, hidden, w.w2.t())
        normed, left_gate, right_gate, to_mixed, d_outs = (torch.empty_like(values) for _ in range(5))
        scales, d_cp = torch.empty_like(self.cp), torch.empty_like(self.cp)
        launch(recall_kernel, (blocks(rows, 4),),
            gates, left, self.memory, self.cp, normed, scales, left_gate, right_gate, rows,
            **self.norm, BLOCK_M=4, num_warps=4,
        )  # fmt: skip
        slopes, slope, to_before = gates.view(S, B, 4 * d), slope.view(S, B, 4 * d), before.view(S, B, 4 * d)
        d_x = torch.empty_like(self.x)
        d_outs[-1] = d_values[-1]
        for j in reversed(range(S)):
            launch(to_hidden_kernel, (tiles, blocks(4 * d, 64)),
                d_outs[j], normed[j], scales[j], w.norm_weight, slopes[j], w.w2, slope[j],
                to_mixed[j], to_before[j], B,
                **self.sizes, ALL_D=self.norm["ALL_D"], **self.tile, num_warps=4, num_stages=2,
            )  # fmt: skip
            launch(to_left_kernel, (tiles, blocks(d, 32)),
                to_before[j], self.w1_left, self._keep(j), to_mixed[j], left_gate[j],
                d_values[j - 1], d_outs[j - 1] if j else d_x, B,
                **self.sizes, FIRST=j == 0, **self.drops, **self.narrow_tile, num_warps=4, num_stages=3,
            )  # fmt: skip
        to_x, programs = torch.empty_like(self.x), blocks(B, 4)
        partial = self.x.new_empty(programs, 2 * d)
        launch(close_kernel, (programs,),
            d_outs, d_x, normed, self.x, self.cp, w.norm_weight, w.norm_bias, to_mixed, slopes,
            to_x, d_cp, partial, B, S,
            D=d, ALL_D=self.norm["ALL_D"], BLOCK_M=4, num_warps=4,
        )  # fmt: skip
        before = to_before.view(rows, 4 * d)
        sums.w2.addmm_(gates.t(), hidden)
        sums.b2.addmv_(gates.t(), ones)
        sums.w1_left.addmm_(before.t(), dropped)
        sums.w1_right.addmm_(before.t(), right)
        sums.b1.addmv_(before.t(), ones)
        torch._foreach_add_([sums.norm_weight, sums.norm_bias], list(partial.sum(0).chunk(2)))
        return to_x, d_cp, to_mixed, right_gate, (before @ w.w1_right).view(S, B, d)

    def _keep(self, j: int | slice) -> Tensor:
        return self.x if self.keep is None else self.keep[j]


@triton.jit
def statistics(mixed, row, inside, D: tl.constexpr, ALL_D: tl.constexpr, EPS: tl.constexpr):
    """Means and reciprocal standard deviations of rows."""
    feature = tl.arange(0, ALL_D)
    mask = inside[:, None] & (feature < D)[None, :]
    all_of_it = tl.load(mixed + row[:, None] * D + feature[None, :], mask=mask, other=0.0)
    middle = tl.sum(all_of_it, 1) / D
    centred = tl.where(mask, all_of_it - middle[:, None], 0.0)
    return middle, tl.rsqrt(tl.sum(centred * centred, 1) / D + EPS)


@triton.jit
def slot_value(x, mixed, gamma, beta, part, middle, scale, row, inside, feature, D: tl.constexpr):
    """Some features of v = x (1−cp) + LayerNorm(t) cp."""
    real = feature < D
    place = row[:, None] * D + feature[None, :]
    mask = inside[:, None] & real[None, :]
    token = tl.load(x + place, mask=mask, other=0.0)
    normed = (tl.load(mixed + place, mask=mask, other=0.0) - middle[:, None]) * scale[:, None]
    normed *= tl.load(gamma + feature, mask=real, other=0.0)[None, :]
    normed += tl.load(beta + feature, mask=real, other=0.0)[None, :]
    return token + part[:, None] * (normed - token)


@triton.jit(do_not_specialize=["B"])
def hidden_kernel(
    x, mixed, share, gamma, beta, w1, from_memory, keep, value, hidden, B,
    D: tl.constexpr, UNITS: tl.constexpr, EPS: tl.constexpr, FIRST: tl.constexpr, DROPS: tl.constexpr,
    KEEP_STRIDE: tl.constexpr, ALL_D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """u of this slot, a tile of sequences × hidden units; and v of the slot before, from its t and cp."""
    row = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    inside = row < B
    unit = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    if not FIRST:
        middle, scale = statistics(mixed, row, inside, D, ALL_D, EPS)
        part = tl.load(share + row, mask=inside, other=0.0)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for first in range(0, D, BLOCK_K):
        feature = first + tl.arange(0, BLOCK_K)
        mask = inside[:, None] & (feature < D)[None, :]
        place = row[:, None] * D + feature[None, :]
        if FIRST:
            v = tl.load(x + place, mask=mask, other=0.0)
        else:
            v = slot_value(x, mixed, gamma, beta, part, middle, scale, row, inside, feature, D)
            if tl.program_id(1) == 0:
                tl.store(value + place, v, mask=mask)
        if DROPS:
            v *= tl.load(keep + row[:, None] * KEEP_STRIDE + feature[None, :], mask=mask, other=0.0)
        w = w1 + unit[None, :] * D + feature[:, None]
        w = tl.load(w, mask=(unit < UNITS)[None, :] & (feature < D)[:, None], other=0.0)
        total = product(v, w, total, PRECISION)
    mask = inside[:, None] & (unit < UNITS)[None, :]
    place = row[:, None] * UNITS + unit[None, :]
    u = gelu(total + tl.load(from_memory + place, mask=mask, other=0.0))
    if DROPS:
        bits = keep + row[:, None] * KEEP_STRIDE + 2 * D + unit[None, :]
        u *= tl.load(bits, mask=mask, other=0.0)
    tl.store(hidden + place, u, mask=mask)


@triton.jit(do_not_specialize=["B"])
def mix_kernel(
    left, right, hidden, w2, b2, mixed, B,
    D: tl.constexpr, UNITS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_F: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """t of this slot, a tile of sequences × features, with all four gates of each feature."""
    row = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    inside = row < B
    first_feature = tl.program_id(1) * BLOCK_F
    t = mixed_tile(
        hidden + row * UNITS, left + row * D, right + row * D, inside, w2, b2, first_feature,
        D, UNITS, BLOCK_F, BLOCK_K, PRECISION, "",
    )  # fmt: skip
    feature = first_feature + tl.arange(0, BLOCK_F)
    place = row[:, None] * D + feature[None, :]
    tl.store(mixed + place, t, mask=inside[:, None] & (feature < D)[None, :])


@triton.jit(do_not_specialize=["B"])
def value_kernel(
    x, mixed, share, gamma, beta, value, B,
    D: tl.constexpr, EPS: tl.constexpr, ALL_D: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """v of the last slot."""
    row = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    inside = row < B
    middle, scale = statistics(mixed, row, inside, D, ALL_D, EPS)
    part = tl.load(share + row, mask=inside, other=0.0)
    feature = tl.arange(0, ALL_D)
    v = slot_value(x, mixed, gamma, beta, part, middle, scale, row, inside, feature, D)
    tl.store(value + row[:, None] * D + feature[None, :], v, mask=inside[:, None] & (feature < D)[None, :])


@triton.jit
def tangents(to_value, normed, gamma, row, inside, D: tl.constexpr, ALL_D: tl.constexpr):
    """Two means over features that the gradient of a layer norm subtracts: of ∂v·γ, and of its product with
    the normalised row."""
    feature = tl.arange(0, ALL_D)
    mask = inside[:, None] & (feature < D)[None, :]
    place = row[:, None] * D + feature[None, :]
    gain = tl.load(gamma + feature, mask=feature < D, other=0.0)[None, :]
    into = tl.load(to_value + place, mask=mask, other=0.0) * gain
    along = tl.load(normed + place, mask=mask, other=0.0)
    return tl.sum(into, 1) / D, tl.sum(into * along, 1) / D


@triton.jit(do_not_specialize=["B"])
def to_hidden_kernel(
    to_value, normed, scales, gamma, gate_slope, w2, hidden_slope, to_mixed, to_before, B,
    D: tl.constexpr, UNITS: tl.constexpr, ALL_D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """∂v → ∂t, without the factor cp, which the slopes include; and a tile of the gradient before GELU."""
    row = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    inside = row < B
    unit = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    middle, slant = tangents(to_value, normed, gamma, row, inside, D, ALL_D)
    scale = tl.load(scales + row, mask=inside, other=0.0)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for first in range(0, D, BLOCK_K):
        feature = first + tl.arange(0, BLOCK_K)
        real = feature < D
        mask = inside[:, None] & real[None, :]
        place = row[:, None] * D + feature[None, :]
        gain = tl.load(gamma + feature, mask=real, other=0.0)[None, :]
        into = tl.load(to_value + place, mask=mask, other=0.0) * gain
        along = tl.load(normed + place, mask=mask, other=0.0)
        through = (into - middle[:, None] - along * slant[:, None]) * scale[:, None]
        if tl.program_id(1) == 0:
            tl.store(to_mixed + place, through, mask=mask)
        for gate in tl.static_range(4):
            slope = gate_slope + row[:, None] * (4 * D) + gate * D + feature[None, :]
            slope = tl.load(slope, mask=mask, other=0.0)
            w = w2 + (gate * D + feature)[:, None] * UNITS + unit[None, :]
            w = tl.load(w, mask=real[:, None] & (unit < UNITS)[None, :], other=0.0)
            total = product(through * slope, w, total, PRECISION)
    mask = inside[:, None] & (unit < UNITS)[None, :]
    place = row[:, None] * UNITS + unit[None, :]
    tl.store(to_before + place, total * tl.load(hidden_slope + place, mask=mask, other=0.0), mask=mask)


@triton.jit(do_not_specialize=["B"])
def to_left_kernel(
    to_before, w1, keep, to_mixed, left_gate, to_slot, to_value, B,
    D: tl.constexpr, UNITS: tl.constexpr, FIRST: tl.constexpr, DROPS: tl.constexpr, KEEP_STRIDE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of ∂v of the slot before; in the first slot of ∂x, as far as it comes through v_0 = x."""
    row = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    inside = row < B
    feature = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    rows = to_before + row * UNITS
    total = rows_times(rows, inside, w1 + feature, feature < D, total, UNITS, D, BLOCK_K, PRECISION, "")
    mask = inside[:, None] & (feature < D)[None, :]
    place = row[:, None] * D + feature[None, :]
    if DROPS:
        total *= tl.load(keep + row[:, None] * KEEP_STRIDE + feature[None, :], mask=mask, other=0.0)
    through = tl.load(to_mixed + place, mask=mask, other=0.0)
    total += through * tl.load(left_gate + place, mask=mask, other=0.0)
    if not FIRST:
        total += tl.load(to_slot + place, mask=mask, other=0.0)
    tl.store(to_value + place, total, mask=mask)


@triton.jit(do_not_specialize=["rows"])
def recall_kernel(
    gates, left, right, share, normed, scales, left_gate, right_gate, rows,
    D: tl.constexpr, EPS: tl.constexpr, ALL_D: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """For all slots at once, from [a; b; g; c]: t normalised and its scale, cp·σ(a) and cp·σ(b). The gates
    become cp·∂t/∂[a; b; g; c]."""
    row, inside, feature, _, mask, place = row_tile(tl.program_id(0), rows, D, ALL_D, BLOCK_M)
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
    """For some sequences, over all slots: ∂x, ∂cp, and their part of ∂γ and ∂β. The slopes of the gates
    become the gradients of the gates."""
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
