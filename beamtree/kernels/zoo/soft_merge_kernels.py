# mypy: allow-untyped-defs
"""An iteration of CRvNN and its derivative: the library's matrix products, with our kernels between them.

The formulas are those of zoo/crvnn_step.py. The kernels here work on rows; a row is a token of a sequence.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from beamtree.kernels.cell_kernels import (
    activate_tile,
    drawn_mask,
    gated_mix,
    store_gate_slopes,
    through_norm,
    unit_tile,
)
from beamtree.kernels.runtime.math_kernels import gelu, gelu_slope, row_tile
from beamtree.kernels.zoo.neighbour_kernels import (
    absorb_back_kernel,
    absorb_kernel,
    neighbours_back_kernel,
    neighbours_kernel,
)
from beamtree.pytorch.launch import blocks, launch, power_of_two


class SoftMerge:
    """One iteration and its activations: h is (B, T, d), existence (B, T). Dropout masks are drawn by seed
    and time."""

    def __init__(
        self,
        w: Any,
        h: Tensor,
        exists: Tensor,
        present: Tensor,
        absorbable: Tensor,
        seed: Tensor,
        time: Tensor,
        *,
        dropout: float,
        eps: float,
        slopes: bool,
    ) -> None:
        self.w, self.exists, self.present, self.absorbable = w, exists, present, absorbable
        self.B, self.T, self.d = B, T, d = h.shape
        self.h = h
        self.rows = B * T
        all_d, all_t = max(16, power_of_two(d)), max(16, power_of_two(T))
        block = min(16, max(1, 1024 // all_d))
        self.programs = blocks(self.rows, block)
        self.by_row = {"D": d, "ALL_D": all_d, "BLOCK_M": block}
        self.norm = {"D": d, "EPS": eps, "ALL_D": all_d, "BLOCK_M": block}
        self.by_token = {"ALL_T": all_t, "ROWS": min(16, max(4, 2048 // all_t))}
        self.both = h.new_empty(B, 2, T, T)
        launch(neighbours_kernel, (B, blocks(T, self.by_token["ROWS"])),
            exists, self.both, T, **self.by_token, num_warps=4,
        )  # fmt: skip
        self.first = (self.both.view(B, 2 * T, T) @ h).view(2 * B, T, d)
        second = (self.both.view(2 * B, T, T) @ self.first).view(B, 2, T, d)
        first = self.first.view(B, 2, T, d)
        self.window = torch.cat((second[:, 0], first[:, 0], h, first[:, 1], second[:, 1]), -1).view(-1, 5 * d)
        self.conv = torch.addmm(w.conv_bias, self.window, w.conv_weight.t())
        self.scores = torch.empty_like(exists)
        launch(token_score_kernel, (self.programs,),
            self.conv, w.scorer_weight, w.scorer_bias, present, self.scores, self.rows,
            **self.by_row, num_warps=4,
        )  # fmt: skip
        self.pair = self.window[:, d : 3 * d]
        before = torch.addmm(w.b1, self.pair, w.w1.t())
        self.slope = torch.empty_like(before) if slopes else before
        self.hidden = torch.empty_like(before) if slopes else before
        launch(activate_tokens_kernel, (blocks(self.rows, 16), blocks(4 * d, 128)),
            before, self.hidden, self.slope, seed, time, T, self.rows, round(dropout * 65536),
            UNITS=4 * d, SLOPES=slopes, DROPS=dropout > 0.0, BLOCK_M=16, BLOCK_N=128, num_warps=4,
        )  # fmt: skip
        self.gates = torch.addmm(w.b2, self.hidden, w.w2.t())

    def absorb(
        self, halted: Tensor, left: Tensor, lifetime: Tensor, still_exists: float
    ) -> tuple[Tensor, ...]:
        """How much each token grows into its parent; then existence, halted, iterations left and lifetime
        after the iteration."""
        after = tuple(torch.empty_like(part) for part in (self.exists, self.exists, halted, left, lifetime))
        launch(absorb_kernel, (self.B,),
            self.scores, self.both, self.exists, self.absorbable, self.present, halted, left, lifetime,
            *after, self.T, AGAIN=False, STILL_EXISTS=still_exists, **self.by_token, num_warps=4,
        )  # fmt: skip
        return after

    def grow(self, grows: Tensor, halted: Tensor) -> Tensor:
        """h after the iteration."""
        h_after = torch.empty_like(self.h)
        launch(grow_kernel, (self.programs,),
            self.gates, self.window, self.w.norm_weight, self.w.norm_bias, grows, halted, h_after,
            self.T, self.rows, **self.norm, num_warps=4,
        )  # fmt: skip
        return h_after

    def differentiate(
        self, halted: Tensor, d_h: Tensor, d_exists: Tensor, sums: Any
    ) -> tuple[Tensor, Tensor]:
        """Gradients of h and existence before the iteration, from those after it. Gradients of the weights
        are added to `sums`."""
        w, B, T, d, rows = self.w, self.B, self.T, self.d, self.rows
        programs, new = self.programs, self.h.new_empty
        partial, d_pair, ones = new(programs, 3 * d + 1), new(rows, 2 * d), self.h.new_ones(rows)
        grows, d_grows, alphas, absorbed, through, to_score, shared, d_direct, d_before = new(9, B, T)
        nothing = [grows] * 4
        launch(absorb_kernel, (B,),
            self.scores, self.both, self.exists, self.absorbable, self.present, halted, *nothing[:2],
            grows, *nothing, T, AGAIN=True, STILL_EXISTS=0.0, **self.by_token, num_warps=4,
        )  # fmt: skip
        launch(grow_back_kernel, (programs,),
            self.gates, self.window, w.norm_weight, w.norm_bias, grows, halted, d_h, d_grows, d_pair, partial,
            T, rows, **self.norm, num_warps=4,
        )  # fmt: skip
        d_hidden = (self.gates @ w.w2).mul_(self.slope)
        d_pair.addmm_(d_hidden, w.w1)
        launch(absorb_back_kernel, (B,),
            self.scores, self.both, self.exists, self.absorbable, self.present, halted, d_grows, d_exists,
            alphas, absorbed, through, to_score, shared, d_direct, T, **self.by_token, num_warps=4,
        )  # fmt: skip
        launch(token_score_back_kernel, (programs,),
            self.conv, w.scorer_weight, self.present, to_score, shared, partial, rows,
            **self.by_row, num_warps=4,
        )  # fmt: skip
        d_first, d_second = new(2, 2 * B, T, d)
        d_h = torch.empty_like(self.h)
        launch(spread_kernel, (programs,),
            self.conv @ w.conv_weight, d_pair, d_first, d_second, d_h, T, rows, **self.by_row, num_warps=4,
        )  # fmt: skip
        each, stacked = self.both.view(2 * B, T, T), self.both.view(B, 2 * T, T)
        d_first.baddbmm_(each.transpose(1, 2), d_second)
        d_both = d_second @ self.first.transpose(1, 2)
        d_first = d_first.view(B, 2 * T, d)
        d_both.view(B, 2 * T, T).baddbmm_(d_first, self.h.transpose(1, 2))
        d_h.baddbmm_(stacked.transpose(1, 2), d_first)
        launch(neighbours_back_kernel, (B,),
            self.exists, self.present, d_both, d_grows, alphas, absorbed, through, d_direct, d_before, T,
            **self.by_token, num_warps=4,
        )  # fmt: skip
        for gradient, source, weight, bias in (
            (self.conv, self.window, sums.conv_weight, sums.conv_bias),
            (d_hidden, self.pair, sums.w1, sums.b1),
            (self.gates, self.hidden, sums.w2, sums.b2),
        ):
            weight.addmm_(gradient.t(), source)
            bias.addmv_(gradient.t(), ones)
        _add([sums.norm_weight, sums.norm_bias, sums.scorer_weight, sums.scorer_bias], partial.sum(0))
        return d_h, d_before


def _add(sums: Sequence[Tensor], gradients: Tensor) -> None:
    parts = gradients.split([total.numel() for total in sums])
    torch._foreach_add_(list(sums), [part.view_as(total) for part, total in zip(parts, sums, strict=True)])


@triton.jit(do_not_specialize=["rows"])
def token_score_kernel(
    conv, weight, bias, present, scores, rows,
    D: tl.constexpr, ALL_D: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """The score of each token, w · GELU(conv) + b; zero at padding."""
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
    """conv becomes its gradient; and these rows' part of ∂w and ∂b."""
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
    """u = keep · GELU(h) and, with SLOPES, ∂u/∂h. Each token has a mask of its own at each time."""
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
    """h ← λ · parent + (1−λ) · h, unless the sequence has halted."""
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
    """∂λ; the gradients of both children, except the share that comes through the products; the gates become
    their gradients; and these rows' part of ∂γ and ∂β."""
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
    """From the gradients of the window and of the children to those of h, of its neighbours (`d_first`) and
    of the neighbours' neighbours (`d_second`), (B, 2, T, d) each."""
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
