"""A straight-through tree as one function of its leaves and weights, with the gradient of gumbel_sweep.py."""

from typing import Any

import torch
from torch import Tensor, nn

from beamtree.engine.gated_cell import GatedCell
from beamtree.engine.operators import weights_of
from beamtree.engine.scores import weight_gradients
from beamtree.graphs.whole_graphs import Outputs
from beamtree.kernels.weights import Weights
from beamtree.parts.cell import GatedRecursiveCell
from beamtree.parts.scorer import EntangledScorer, SlicedScorer
from beamtree.pytorch.derivatives import refuse_double_backward
from beamtree.pytorch.precision import product_dtype, without_autocast
from beamtree.zoo.gumbel_scores import EntangledJudge, Judge, SlicedJudge
from beamtree.zoo.gumbel_sweep import Growth, Noise, Schedule, grow, in_chunks, sweep
from beamtree.zoo.tree_encoder import with_zero_gradients


def straight_through_tree(
    leaves: Tensor,  # (B, n, d)
    schedule: Schedule,
    cell: GatedRecursiveCell,
    scorer: SlicedScorer | EntangledScorer,
    keep: Tensor | None = None,
    noise: Noise | None = None,
    need_nodes: bool = False,
) -> Outputs:
    """Roots (B, d), merges (B, n−1) and nodes (B, n−1 or 0, d), each by the step that made it.

    `keep`: a dropout mask a merge (sliced) or pair (entangled).
    """
    product = product_dtype(leaves)
    parameters = weights_of(cell, scorer).flat()
    steps = leaves.shape[1] - 1
    merges = schedule.order.new_full((schedule.B, steps), -1)
    if schedule.made == 0:
        nodes = leaves.new_zeros(schedule.B, steps if need_nodes else 0, leaves.shape[2])
        return with_zero_gradients(leaves[:, 0], parameters), merges, nodes
    leaves = leaves[:, : schedule.n]
    with without_autocast(leaves):
        root, found, nodes = _StraightThroughTree.apply(
            leaves, schedule, keep, noise, product, need_nodes, *parameters
        )
    merges[:, : schedule.n - 1] = found
    if need_nodes:
        nodes = nn.functional.pad(nodes, (0, 0, 0, steps - nodes.shape[1]))
    return root, merges, nodes


class _StraightThroughTree(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        leaves: Tensor,
        schedule: Schedule,
        keep: Tensor | None,
        noise: Noise | None,
        product: torch.dtype,
        need_nodes: bool,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        cell, judge = _parts(parameters, product)
        growth = grow(leaves, schedule, cell, judge, keep=keep, noise=noise)
        ctx.schedule, ctx.product, ctx.count = schedule, product, len(parameters)
        ctx.save_for_backward(*parameters, keep, *growth[:-1], *growth.chances)
        merges = schedule.merges(growth.positions)
        ctx.mark_non_differentiable(merges)
        ctx.made = schedule.nodes() if need_nodes else None
        nodes = leaves[:, :0] if ctx.made is None else growth.nodes[ctx.made]
        return growth.roots(schedule), merges, nodes

    @staticmethod
    def backward(ctx: Any, grad_roots: Tensor, _: Tensor, grad_made: Tensor) -> tuple[Any, ...]:
        refuse_double_backward()
        saved = ctx.saved_tensors  # once: activation checkpointing gives them once
        parameters = saved[: ctx.count]
        keep, nodes, windows, positions, lists, candidates, *chances = saved[ctx.count :]
        growth = Growth(nodes, windows, positions, lists, candidates, chances)
        cell, judge = _parts(parameters, ctx.product)
        wide = torch.promote_types(nodes.dtype, torch.float32)
        grad_nodes = None
        if ctx.made is not None:
            grad_nodes = torch.zeros_like(nodes, dtype=wide)
            grad_nodes[ctx.made.flatten()] = grad_made.flatten(0, 1).to(wide)
        found = sweep(
            growth,
            ctx.schedule,
            cell,
            judge,
            keep=keep,
            grad_roots=grad_roots.to(wide),
            grad_nodes=grad_nodes,
        )
        for rows, some, mask in in_chunks(found.pairs, keep if judge.makes_parents else None):
            judge.pull_parameters(nodes[some], mask, found.scores[rows])
        gradients = weight_gradients(cell.parameter_gradients(found.merged), judge.score)
        return found.leaves.to(nodes.dtype), None, None, None, None, None, *gradients


def _parts(parameters: tuple[Tensor, ...], product: torch.dtype) -> tuple[GatedCell, Judge]:
    weights = Weights.of(parameters)
    cell = GatedCell(weights.cell, product)
    if weights.entangled:
        return cell, EntangledJudge(weights, product)
    return cell, SlicedJudge(weights.scorer)
