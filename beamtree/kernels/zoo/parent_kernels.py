# mypy: allow-untyped-defs
"""Parents of pairs and their scores by four kernels besides the products, with their derivative.

Autograd takes three to four times as many for the gated recursive cell and its entangled score, and keeps
more for their gradient.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from beamtree.kernels.cell_kernels import (
    activate_kernel,
    gated_mix,
    store_gate_slopes,
    through_norm,
)
from beamtree.kernels.runtime.math_kernels import row_tile
from beamtree.pytorch.derivatives import refuse_double_backward
from beamtree.pytorch.launch import blocks, launch, power_of_two
from beamtree.pytorch.precision import without_autocast


@triton.jit(do_not_specialize=["rows"])
def parent_kernel(
    gates, pairs, gamma, beta, weight, bias, parents, scores, rows,
    D: tl.constexpr, EPS: tl.constexpr, ALL_D: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    row, inside, feature, wanted, mask, place = row_tile(tl.program_id(0), rows, D, ALL_D, BLOCK_M)
    _, _, _, _, _, _, normed, _ = gated_mix(gates, pairs, row, feature, mask, D, 2 * D, EPS)
    parent = normed * tl.load(gamma + feature, mask=wanted, other=0.0)[None, :]
    parent += tl.load(beta + feature, mask=wanted, other=0.0)[None, :]
    out = tl.load(weight + feature, mask=wanted, other=0.0)[None, :]
    tl.store(parents + place, parent, mask=mask)
    tl.store(scores + row, tl.sum(parent * out, 1) + tl.load(bias), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def parent_back_kernel(
    gates, pairs, gamma, beta, weight, d_parents, d_scores, d_gates, d_pairs, partial, rows,
    D: tl.constexpr, EPS: tl.constexpr, ALL_D: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """∂[a; b; g; c], ∂ of the children but through the products, these rows' part of ∂γ, ∂β, ∂w and ∂b."""
    row, inside, feature, wanted, mask, place = row_tile(tl.program_id(0), rows, D, ALL_D, BLOCK_M)
    left, right, a, b, g, c, normed, scale = gated_mix(gates, pairs, row, feature, mask, D, 2 * D, EPS)
    gain = tl.load(gamma + feature, mask=wanted, other=0.0)[None, :]
    parent = normed * gain + tl.load(beta + feature, mask=wanted, other=0.0)[None, :]
    out = tl.load(weight + feature, mask=wanted, other=0.0)[None, :]
    to_score = tl.load(d_scores + row, mask=inside, other=0.0)
    into = tl.load(d_parents + place, mask=mask, other=0.0)
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


def flatten(parameters: list[Tensor]) -> Tensor:
    """W₁, b₁, W₂, b₂, γ, β of the cell and w, b of the score as one vector: its gradients, one for each call,
    are added up by one kernel."""
    return torch.cat([parameter.reshape(-1) for parameter in parameters])


def propose(
    left: Tensor, right: Tensor, keep: Tensor | None, weights: Tensor, hidden_size: int, eps: float
) -> tuple[Tensor, Tensor]:
    """Parents (…, d) and scores (…) of the pairs of left and right, (…, d) each; weights by `flatten`."""
    parents, scores = _Propose.apply(left, right, keep, weights, hidden_size, eps)
    return parents, scores


class _Propose(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        left: Tensor,
        right: Tensor,
        keep: Tensor | None,
        weights: Tensor,
        hidden_size: int,
        eps: float,
    ) -> tuple[Tensor, Tensor]:
        d = left.shape[-1]
        w1, b1, w2, b2, gamma, beta, weight, bias = _parts(weights, d, hidden_size)
        with torch.cuda.device_of(left):
            pairs = torch.cat((left, right), -1).view(-1, 2 * d)
            before = torch.addmm(b1, pairs, w1.t())
            gates = torch.addmm(b2, _activate(before, keep, slopes=False)[0], w2.t())
            parents, scores = pairs.new_empty(left.shape), pairs.new_empty(left.shape[:-1])
            options = _by_row(d, eps)
            launch(parent_kernel, (blocks(len(pairs), options["BLOCK_M"]),),
                gates, pairs, gamma, beta, weight, bias, parents, scores, len(pairs), **options, num_warps=4,
            )  # fmt: skip
        ctx.save_for_backward(pairs, before, gates, keep, weights)
        ctx.eps = eps
        return parents, scores

    @staticmethod
    def backward(ctx: Any, d_parents: Tensor, d_scores: Tensor) -> tuple[Tensor | None, ...]:
        refuse_double_backward()
        pairs, before, gates, keep, weights = ctx.saved_tensors
        (rows, units), d = before.shape, pairs.shape[1] // 2
        w1, _, w2, _, gamma, beta, weight, _ = _parts(weights, d, units)
        d_weights = torch.empty_like(weights)
        d_w1, d_b1, d_w2, d_b2, *_ = _parts(d_weights, d, units)
        options = _by_row(d, ctx.eps)
        programs = blocks(rows, options["BLOCK_M"])
        d_gates, d_pairs = torch.empty_like(gates), torch.empty_like(pairs)
        partial = pairs.new_empty(programs, 3 * d + 1)
        with torch.cuda.device_of(pairs), without_autocast(pairs):
            hidden, slope = _activate(before, keep, slopes=True)
            launch(parent_back_kernel, (programs,),
                gates, pairs, gamma, beta, weight, d_parents.contiguous(), d_scores.contiguous(),
                d_gates, d_pairs, partial, rows, **options, num_warps=4,
            )  # fmt: skip
            d_before = (d_gates @ w2).mul_(slope)
            d_pairs.addmm_(d_before, w1)
            torch.mm(d_before.t(), pairs, out=d_w1)
            torch.mm(d_gates.t(), hidden, out=d_w2)
            torch.sum(d_before, 0, out=d_b1)
            torch.sum(d_gates, 0, out=d_b2)
            torch.sum(partial, 0, out=d_weights[-partial.shape[1] :])
        d_left, d_right = d_pairs.view(*d_parents.shape[:-1], 2 * d).chunk(2, -1)
        return d_left, d_right, None, d_weights, None, None


def _activate(before: Tensor, keep: Tensor | None, *, slopes: bool) -> tuple[Tensor, Tensor]:
    """keep · GELU, and with `slopes` its derivative."""
    rows, units = before.shape
    hidden = torch.empty_like(before)
    slope = torch.empty_like(before) if slopes else hidden
    launch(activate_kernel, (blocks(rows, 16), blocks(units, 128)),
        before, before if keep is None else keep, hidden, slope, rows,
        UNITS=units, SLOPES=slopes, DROPS=keep is not None, KEEP_STRIDE=units, KEEP_START=0,
        BLOCK_M=16, BLOCK_N=128, num_warps=4,
    )  # fmt: skip
    return hidden, slope


def _parts(weights: Tensor, d: int, units: int) -> list[Tensor]:
    sizes = [units * 2 * d, units, 4 * d * units, 4 * d, d, d, d, 1]
    w1, b1, w2, b2, *vectors = weights.split(sizes)
    return [w1.view(units, 2 * d), b1, w2.view(4 * d, units), b2, *vectors]


def _by_row(d: int, eps: float) -> dict[str, Any]:
    all_d = max(16, power_of_two(d))
    return {"D": d, "EPS": eps, "ALL_D": all_d, "BLOCK_M": min(16, max(1, 1024 // all_d))}
