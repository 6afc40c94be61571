"""A given tree in place of a search, on a GPU: nodes level by level, then the tree's log-probability.

The operator `beamtree::fused_follow` leaves the tape of a search with one beam, so that the gradient is
`beamtree::fused_replay`.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from beamtree.kernels.fused_recursion import (
    SEEN,
    TAGS,
    Outputs,
    differentiate_tape,
    remember_tape,
    tape_shapes,
)
from beamtree.kernels.given.compose import compose_levels
from beamtree.kernels.runtime.products import float32_precision, product
from beamtree.kernels.runtime.random_bits import draw_keep
from beamtree.kernels.weights import SlicedScorerWeights, Weights
from beamtree.pytorch.launch import launch, power_of_two
from beamtree.pytorch.precision import without_autocast
from beamtree.pytorch.registry import register
from beamtree.trees.structure import Levels

WIDEST = 1024  # places of a list that a program moves at once


def follow_merges(
    leaves: Tensor,  # (B, n, d)
    lengths: Tensor,  # (B,)
    weights: Weights[SlicedScorerWeights],
    seed: Tensor | None,
    dropout: float,
    merges: Tensor,  # (B, n−1)
    product_dtype: torch.dtype,
    need_nodes: bool,
) -> tuple[Tensor, ...]:
    """As `fused_recursion` with one beam: roots, relative scores, inner nodes, offset, merges."""
    seed = lengths if seed is None else seed  # nobody reads it
    call = FollowCall(leaves, lengths, seed, merges, dropout, product_dtype, need_nodes, weights.flat())
    return torch.ops.beamtree.fused_follow(*call)[:SEEN]


class FollowCall(NamedTuple):
    """The arguments of `beamtree::fused_follow`."""

    leaves: Tensor
    lengths: Tensor
    seed: Tensor
    merges: Tensor
    dropout: float
    product_dtype: torch.dtype
    need_nodes: bool
    weights: list[Tensor]


def _follow(call: FollowCall) -> Outputs:
    from beamtree.kernels.given.trace_kernels import trace_kernel
    from beamtree.kernels.search.fused_search import Tape, inner_nodes

    leaves, lengths, seed, merges, dropout, product_dtype, need_nodes, weights = call
    B, n, d = leaves.shape
    steps, device = n - 1, leaves.device
    cell, scorer = Weights.of(weights)
    scorer_w1, scorer_b1, scorer_w2, scorer_b2 = (w.contiguous() for w in scorer)
    H, s = scorer_w1.shape[0], scorer_w1.shape[1] // 2
    with torch.cuda.device_of(leaves), without_autocast(leaves):
        levels = Levels.of(merges)
        step, sequence = levels.order % max(steps, 1), levels.order // max(steps, 1)
        keep = None
        if dropout > 0.0:
            units = cell.b1.shape[0]
            keep = draw_keep(seed, step, sequence, torch.zeros_like(step), units, dropout, leaves.dtype)
        nodes = compose_levels(leaves, *levels[:3], keep, product_dtype, cell)
        by_id = torch.cat((torch.arange(B * n, device=device).view(B, n), levels.made.clamp(min=0)), 1)
        made = B * steps
        tape = Tape(
            nodes=nodes[by_id],
            integers=torch.zeros(5 * made + (made + 3) // 4 * 4, dtype=torch.int32, device=device),
            floats=torch.zeros(5 * made, device=device),
        )
        links, slots, heights, energies, log_z = tape.parts(1)
        slots.fill_(-1)
        offset = torch.zeros(B, dtype=torch.float64, device=device)
        if made:
            heights.view(B, steps).copy_(levels.heights)
            by_role = torch.cat((scorer_w1[:, :s], scorer_w1[:, s:]))  # (2·H, s)
            projections = product(tape.nodes.view(-1, d)[:, :s], by_role.t(), float32_precision())
            live = torch.empty(B, n, dtype=torch.int32, device=device)
            scores = torch.empty(B, n, device=device)
            launch(trace_kernel, (B,),
                merges.contiguous(), lengths.contiguous(), projections, scorer_b1, scorer_w2, scorer_b2,
                live, scores, links, slots, energies, log_z, offset, n,
                H=H, UNITS=power_of_two(H), BLOCK=min(WIDEST, power_of_two(n)),
                ROWS=max(1, min(16, 4096 // power_of_two(H))), num_warps=4,
            )  # fmt: skip
        inner = inner_nodes(tape, 1, need_nodes)
        roots = nodes.index_select(0, levels.roots).unsqueeze(1)
    return roots, leaves.new_zeros(B, 1), inner, offset, merges.unsqueeze(1).clone(), *tape


def _shapes(call: FollowCall) -> Outputs:
    return tape_shapes(call.leaves, call.lengths, 1, call.need_nodes)


register("fused_follow", _follow, _shapes, differentiate_tape, remember_tape, TAGS)
