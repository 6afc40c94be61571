# mypy: allow-untyped-defs
"""The attention of Ordered Memory over its slots, and its derivative.

    β_j = (w · (keep · GELU(q + LayerNorm(k_j))) + b) / √d      p_j ∝ exp(β_j) · reach_j

The reach of a slot is Σ_{i≤j+1} p⁻_i, where p⁻ is the attention at the token before. Below UNREACHED it
counts as zero, which closes the slot; for the last slot it is 1. `cp` and `rcp` are the sums of p up to a
slot and from a slot on, both included.
"""

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from beamtree.kernels.cell_kernels import through_norm
from beamtree.kernels.runtime.math_kernels import gelu, gelu_slope, normalised, row_tile
from beamtree.pytorch.launch import blocks, launch, power_of_two

LEAST_MASS = tl.constexpr(1e-12)


class Attention:
    """The attention of a query (B, d) over the candidates (S, B, d), and the memory into which the candidates
    are written by `rcp`: M (1 − rcp) + M̂ rcp.

    `weights` are weight and bias of the keys, of their norm and of the score. `keep` (S, B, 2d), or None, has
    dropout masks for the candidates that the keys read, and for the hidden layer of the scores.
    """

    def __init__(
        self,
        weights: Sequence[Tensor],
        query: Tensor,
        memory: Tensor,
        candidates: Tensor,
        p_before: Tensor,
        keep: Tensor | None,
        *,
        eps: float,
        unreached: float,
    ) -> None:
        self.weights, self.query, self.keep = weights, query, keep
        self.memory, self.candidates, self.p_before = memory, candidates, p_before
        S, B, d = candidates.shape
        key_weight, key_bias, gamma, beta, out, out_bias = weights
        self.asked = (candidates if keep is None else candidates * keep[..., :d]).view(-1, d)
        self.keys = torch.addmm(key_bias, self.asked, key_weight.t())
        self.scores, self.p, self.cp, self.rcp = query.new_empty(4, S, B)
        self.rows = {"D": d, "EPS": eps, "ROOT": math.sqrt(d), "DROPS": keep is not None}
        self.rows |= {"ALL_D": max(16, power_of_two(d)), "BLOCK_M": 4}
        self.columns = {"UNREACHED": unreached, "SLOTS": power_of_two(S), "BLOCK_B": 8}
        launch(score_kernel, (blocks(S * B, 4),),
            self.keys, query, query if keep is None else keep, gamma, beta, out, out_bias, self.scores,
            B, S * B, **self.rows, num_warps=4,
        )  # fmt: skip
        launch(attention_kernel, (blocks(B, 8),),
            self.scores, p_before, self.p, self.cp, self.rcp, B, S, **self.columns, num_warps=4,
        )  # fmt: skip
        self.written = torch.lerp(memory, candidates, self.rcp.unsqueeze(-1))

    def differentiate(
        self,
        d_p: Tensor,
        d_cp: Tensor,
        d_written: Sequence[Tensor],
        cell_keep: Tensor | None,
        sums: Sequence[Tensor],
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Gradients of query, memory, candidates and p⁻; those of the weights are added to `sums`.

        `d_written` are the parts of the gradient of the written memory: what comes from later tokens; from
        the cells what comes through their gates, as two factors, and what comes through their products, which
        `cell_keep` (S, B, 6d) still has to mask.
        """
        key_weight, _, gamma, beta, out, _ = self.weights
        S, B, d = self.candidates.shape
        d_rcp, d_scores, d_before = self.query.new_empty(3, S, B)
        d_memory, d_candidates, d_keys = self.query.new_empty(3, S, B, d)
        d_query, programs = torch.empty_like(self.query), blocks(B, 4)
        partial = self.query.new_empty(programs, 3 * d + 1)
        launch(write_back_kernel, (blocks(S * B, 4),),
            *d_written, d_before if cell_keep is None else cell_keep, self.memory, self.candidates,
            self.rcp, d_memory, d_candidates, d_rcp, S * B,
            D=d, DROPS=cell_keep is not None, ALL_D=self.rows["ALL_D"], BLOCK_M=4, num_warps=4,
        )  # fmt: skip
        launch(attention_back_kernel, (blocks(B, 8),),
            self.scores, self.p_before, d_p, d_cp, d_rcp, d_scores, d_before, B, S,
            **self.columns, num_warps=4,
        )  # fmt: skip
        launch(score_back_kernel, (programs,),
            self.keys, self.query, self.query if self.keep is None else self.keep, gamma, beta, out, d_scores,
            d_keys, d_query, partial, B, S, **self.rows, num_warps=4,
        )  # fmt: skip
        d_keys = d_keys.view(-1, d)
        sums[0].addmm_(d_keys.t(), self.asked)
        sums[1].addmv_(d_keys.t(), d_keys.new_ones(len(d_keys)))
        gradients = partial.sum(0).split([d, d, d, 1])
        torch._foreach_add_(list(sums[2:]), [g.view_as(s) for g, s in zip(gradients, sums[2:], strict=True)])
        if self.keep is None:
            d_candidates.view(-1, d).addmm_(d_keys, key_weight)
        else:
            d_candidates.addcmul_((d_keys @ key_weight).view(S, B, d), self.keep[..., :d])
        return d_query, d_memory, d_candidates, d_before


@triton.jit(do_not_specialize=["B", "rows"])
def score_kernel(
    keys, query, keep, gamma, beta, weight, bias, scores, B, rows,
    D: tl.constexpr, EPS: tl.constexpr, ROOT: tl.constexpr, DROPS: tl.constexpr,
    ALL_D: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """β for some rows (slot, sequence)."""
    row, inside, feature, real, mask, place = row_tile(tl.program_id(0), rows, D, ALL_D, BLOCK_M)
    normed, _ = normalised(tl.load(keys + place, mask=mask, other=0.0), mask, D, EPS)
    normed *= tl.load(gamma + feature, mask=real, other=0.0)[None, :]
    normed += tl.load(beta + feature, mask=real, other=0.0)[None, :]
    asked = tl.load(query + (row % B)[:, None] * D + feature[None, :], mask=mask, other=0.0)
    hidden = gelu(asked + normed)
    if DROPS:
        hidden *= tl.load(keep + row[:, None] * (2 * D) + D + feature[None, :], mask=mask, other=0.0)
    out = tl.load(weight + feature, mask=real, other=0.0)[None, :]
    tl.store(scores + row, (tl.sum(hidden * out, 1) + tl.load(bias)) / ROOT, mask=inside)


@triton.jit
def reached(p_before, place, inside, slot, slots, B, UNREACHED: tl.constexpr):
    """The reach of each slot: Σ_{i≤j+1} p⁻_i, zero if below UNREACHED, and one for the last slot."""
    next_one = inside & (slot < slots - 1)
    head = tl.load(p_before + place - slot.to(tl.int64) * B, mask=inside, other=0.0).to(tl.float64)
    later = tl.load(p_before + place + B, mask=next_one, other=0.0).to(tl.float64)
    sums = (head + tl.cumsum(later, 0)).to(tl.float32)
    return tl.where(next_one, tl.where(sums < UNREACHED, 0.0, sums), 1.0)


@triton.jit(do_not_specialize=["B", "slots"])
def attention_kernel(
    scores, p_before, p, cp, rcp, B, slots,
    UNREACHED: tl.constexpr, SLOTS: tl.constexpr, BLOCK_B: tl.constexpr,
):  # fmt: skip
    """p, cp and rcp of some sequences, all slots at once."""
    slot = tl.arange(0, SLOTS)[:, None]
    sequence = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)[None, :]
    inside = (slot < slots) & (sequence < B)
    place = slot.to(tl.int64) * B + sequence
    score = tl.load(scores + place, mask=inside, other=-1e30)
    strength = tl.where(inside, tl.exp(score - tl.max(score, 0)[None, :]), 0.0)
    share = strength * reached(p_before, place, inside, slot, slots, B, UNREACHED)
    now = share / tl.maximum(tl.sum(share, 0), LEAST_MASS)[None, :]
    upto = tl.cumsum(now.to(tl.float64), 0)
    whole = tl.sum(now.to(tl.float64), 0)[None, :]
    tl.store(p + place, now, mask=inside)
    tl.store(cp + place, upto.to(tl.float32), mask=inside)
    tl.store(rcp + place, (whole - upto + now).to(tl.float32), mask=inside)


@triton.jit(do_not_specialize=["B", "slots"])
def attention_back_kernel(
    scores, p_before, d_p, d_cp, d_rcp, d_scores, d_before, B, slots,
    UNREACHED: tl.constexpr, SLOTS: tl.constexpr, BLOCK_B: tl.constexpr,
):  # fmt: skip
    """∂β and ∂p⁻ of some sequences, from ∂p, ∂cp and ∂rcp."""
    slot = tl.arange(0, SLOTS)[:, None]
    sequence = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)[None, :]
    inside = (slot < slots) & (sequence < B)
    place = slot.to(tl.int64) * B + sequence
    score = tl.load(scores + place, mask=inside, other=-1e30)
    strength = tl.where(inside, tl.exp(score - tl.max(score, 0)[None, :]), 0.0)
    reach = reached(p_before, place, inside, slot, slots, B, UNREACHED)
    share = strength * reach
    mass = tl.sum(share, 0)[None, :]
    # Everything that reaches p_i: ∂p_i, ∂cp_j for j ≥ i, ∂rcp_j for j ≤ i.
    into_cp = tl.load(d_cp + place, mask=inside, other=0.0).to(tl.float64)
    later = tl.sum(into_cp, 0)[None, :] - tl.cumsum(into_cp, 0) + into_cp
    earlier = tl.cumsum(tl.load(d_rcp + place, mask=inside, other=0.0).to(tl.float64), 0)
    into = tl.load(d_p + place, mask=inside, other=0.0) + (later + earlier).to(tl.float32)
    # Through p = share / max(mass, LEAST_MASS).
    bounded = tl.maximum(mass, LEAST_MASS)
    common = tl.where(mass >= LEAST_MASS, tl.sum(into * share, 0)[None, :] / bounded, 0.0)
    to_share = (into - common) / bounded
    tl.store(d_scores + place, to_share * share, mask=inside)
    # Slot j's reach is the sum up to p⁻_{j+1}, so ∂p⁻_i sums over all j ≥ i − 1, and ∂p⁻_0 over all j.
    counts = inside & (slot < slots - 1) & (reach > 0)
    to_reach = tl.where(counts, to_share * strength, 0.0).to(tl.float64)
    everything = tl.sum(to_reach, 0)[None, :]
    from_here_on = everything - tl.cumsum(to_reach, 0) + to_reach
    tl.store(d_before + place + B, from_here_on.to(tl.float32), mask=inside & (slot < slots - 1))
    first = d_before + sequence
    tl.store(first, everything.to(tl.float32), mask=sequence < B)


@triton.jit(do_not_specialize=["rows"])
def write_back_kernel(
    d_after, to_mixed, gate, passed, keep, memory, candidates, rcp, d_memory, d_candidates, d_rcp, rows,
    D: tl.constexpr, DROPS: tl.constexpr, ALL_D: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Add up the gradient of the written memory, M (1 − rcp) + M̂ rcp: from later tokens, through the gate of
    the cell and through its product. Then ∂M, ∂M̂ as far as it comes this way, and ∂rcp."""
    row, inside, feature, _, mask, place = row_tile(tl.program_id(0), rows, D, ALL_D, BLOCK_M)
    into = tl.load(passed + place, mask=mask, other=0.0)
    if DROPS:
        into *= tl.load(keep + row[:, None] * (6 * D) + D + feature[None, :], mask=mask, other=0.0)
    into += tl.load(to_mixed + place, mask=mask, other=0.0) * tl.load(gate + place, mask=mask, other=0.0)
    into += tl.load(d_after + place, mask=mask, other=0.0)
    part = tl.load(rcp + row, mask=inside, other=0.0)[:, None]
    change = tl.load(candidates + place, mask=mask, other=0.0) - tl.load(memory + place, mask=mask, other=0.0)
    tl.store(d_rcp + row, tl.sum(into * change, 1), mask=inside)
    tl.store(d_memory + place, into * (1 - part), mask=mask)
    tl.store(d_candidates + place, into * part, mask=mask)


@triton.jit(do_not_specialize=["B", "slots"])
def score_back_kernel(
    keys, query, keep, gamma, beta, weight, d_scores, d_keys, d_query, partial, B, slots,
    D: tl.constexpr, EPS: tl.constexpr, ROOT: tl.constexpr, DROPS: tl.constexpr,
    ALL_D: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """∂k and ∂q of some sequences, and their part of the gradients of the norm's γ and β, of w and of b."""
    sequence = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = sequence < B
    feature = tl.arange(0, ALL_D)
    real = feature < D
    mask = inside[:, None] & real[None, :]
    gain = tl.load(gamma + feature, mask=real, other=0.0)[None, :]
    shift = tl.load(beta + feature, mask=real, other=0.0)[None, :]
    out = tl.load(weight + feature, mask=real, other=0.0)[None, :]
    asked = tl.load(query + sequence[:, None].to(tl.int64) * D + feature[None, :], mask=mask, other=0.0)
    to_query, to_gain = tl.zeros([BLOCK_M, ALL_D], tl.float32), tl.zeros([BLOCK_M, ALL_D], tl.float32)
    to_out, to_bias = tl.zeros([BLOCK_M, ALL_D], tl.float32), tl.zeros([BLOCK_M], tl.float32)
    for slot in range(slots):
        row = (slot * B + sequence).to(tl.int64)
        place = row[:, None] * D + feature[None, :]
        normed, scale = normalised(tl.load(keys + place, mask=mask, other=0.0), mask, D, EPS)
        before = asked + normed * gain + shift
        into = tl.load(d_scores + row, mask=inside, other=0.0) / ROOT
        hidden, slope = gelu(before), gelu_slope(before)
        if DROPS:
            bits = tl.load(keep + row[:, None] * (2 * D) + D + feature[None, :], mask=mask, other=0.0)
            hidden, slope = hidden * bits, slope * bits
        through = tl.where(mask, into[:, None] * out * slope, 0.0)
        to_query += through
        to_gain += through * normed
        to_out += into[:, None] * hidden
        to_bias += into
        tl.store(d_keys + place, through_norm(through * gain, normed, scale, D), mask=mask)
    tl.store(d_query + sequence[:, None].to(tl.int64) * D + feature[None, :], to_query, mask=mask)
    corner = partial + tl.program_id(0) * (3 * D + 1)
    tl.store(corner + feature, tl.sum(to_gain, 0), mask=real)
    tl.store(corner + D + feature, tl.sum(to_query, 0), mask=real)
    tl.store(corner + 2 * D + feature, tl.sum(to_out, 0), mask=real)
    tl.store(corner + 3 * D, tl.sum(to_bias, 0))
