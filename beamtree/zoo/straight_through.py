"""A straight-through tree as one function of its leaves and weights: its dense gradient by a sweep backwards.

The gradient touches every live node at every step, but only through scalar products: one accumulator a live
node suffices, beside each step's probabilities q. That is O(n·d) memory and O(n²) scalars, where autograd
keeps O(n²·d).

    y = onehot(argmax) + q − stopgrad(q)        c = cumsum(y)
    h'_j = y_j·p_j + (1 − c_j)·h_j + (c_j − y_j)·h_{j+1}
    ∂L/∂y_i = ⟨D_i, p_i − h_{i+1}⟩ + Σ_{j≥i} ⟨D_j, h_{j+1} − h_j⟩        D = ∂L/∂h'
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from beamtree.engine.built_in_parts import GatedCell, weight_gradients
from beamtree.engine.operators import weights_of
from beamtree.graphs.whole_graphs import Outputs
from beamtree.kernels.weights import Weights
from beamtree.parts.cell import GatedRecursiveCell
from beamtree.parts.scorer import EntangledScorer, SlicedScorer
from beamtree.pytorch.derivatives import refuse_double_backward
from beamtree.pytorch.precision import product_dtype, without_autocast
from beamtree.zoo.straight_through_growth import Growth, Noise, PairScores, Timetable, grow, in_chunks
from beamtree.zoo.tree_encoder import running_sum, with_zero_gradients


def straight_through_tree(
    leaves: Tensor,  # (B, n, d)
    timetable: Timetable,
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
    merges = timetable.order.new_full((timetable.B, steps), -1)
    if timetable.made == 0:
        nodes = leaves.new_zeros(timetable.B, steps if need_nodes else 0, leaves.shape[2])
        return with_zero_gradients(leaves[:, 0], parameters), merges, nodes
    leaves = leaves[:, : timetable.n]
    with without_autocast(leaves):
        root, found, nodes = _StraightThroughTree.apply(
            leaves, timetable, keep, noise, product, need_nodes, *parameters
        )
    merges[:, : timetable.n - 1] = found
    if need_nodes:
        nodes = F.pad(nodes, (0, 0, 0, steps - nodes.shape[1]))
    return root, merges, nodes


class _StraightThroughTree(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        leaves: Tensor,
        timetable: Timetable,
        keep: Tensor | None,
        noise: Noise | None,
        product: torch.dtype,
        need_nodes: bool,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        cell, score = _parts(parameters, product)
        growth = grow(leaves, timetable, cell, score, keep=keep, noise=noise)
        ctx.timetable, ctx.product, ctx.count = timetable, product, len(parameters)
        ctx.save_for_backward(*parameters, keep, *growth[:-1], *growth.chances)
        merges = timetable.merges(growth.positions)
        ctx.mark_non_differentiable(merges)
        ctx.made = timetable.nodes() if need_nodes else None
        nodes = leaves[:, :0] if ctx.made is None else growth.nodes[ctx.made]
        return growth.roots(timetable), merges, nodes

    @staticmethod
    def backward(ctx: Any, grad_roots: Tensor, _: Tensor, grad_made: Tensor) -> tuple[Any, ...]:
        refuse_double_backward()
        saved = ctx.saved_tensors  # once: activation checkpointing gives them once
        parameters = saved[: ctx.count]
        keep, nodes, windows, positions, lists, candidates, *chances = saved[ctx.count :]
        growth = Growth(nodes, windows, positions, lists, candidates, chances)
        cell, score = _parts(parameters, ctx.product)
        wide = torch.promote_types(nodes.dtype, torch.float32)
        grad_nodes = None
        if ctx.made is not None:
            grad_nodes = torch.zeros_like(nodes, dtype=wide)
            grad_nodes[ctx.made.flatten()] = grad_made.flatten(0, 1).to(wide)
        found = sweep(
            growth,
            ctx.timetable,
            cell,
            score,
            keep=keep,
            grad_roots=grad_roots.to(wide),
            grad_nodes=grad_nodes,
        )
        for rows, some, mask in in_chunks(found.pairs, keep if score.makes_parents else None):
            score.pull_parameters(nodes[some], mask, found.scores[rows])
        gradients = weight_gradients(cell.parameter_gradients(found.merged), score.score)
        return found.leaves.to(nodes.dtype), None, None, None, None, None, *gradients


def _parts(parameters: tuple[Tensor, ...], product: torch.dtype) -> tuple[GatedCell, PairScores]:
    weights = Weights.of(parameters)
    return GatedCell(weights.cell, product), PairScores(weights, product)


class SweptGradients(NamedTuple):
    leaves: Tensor  # (B, n, d)
    merged: Tensor  # (made, d) of the nodes, for the cell's parameters
    pairs: Tensor  # (pairs, 2) node ids
    scores: Tensor  # (pairs,) summed over the steps a pair lives


@torch.no_grad()
def sweep(
    growth: Growth,
    timetable: Timetable,
    cell: GatedCell,
    score: PairScores,
    *,
    keep: Tensor | None,
    grad_roots: Tensor,  # (B, d)
    grad_nodes: Tensor | None = None,  # (1 + B·n + made, d) of nodes that are read beside the roots
) -> SweptGradients:
    nodes, windows, first = growth.nodes, growth.windows, timetable.first_node
    d, wide, n = nodes.shape[1], grad_roots.dtype, timetable.n
    pair_keep = keep if score.makes_parents else None
    merge_keep = pair_keep[windows[1, :, 1]] if pair_keep is not None else keep
    cell.recall(nodes[windows[0, :, 1:3]], merge_keep)
    pairs = torch.cat((timetable.leaf_pairs(), _new_pairs(windows[0], first)))
    slopes = torch.cat(
        [score.slopes(nodes[some], mask) for _, some, mask in in_chunks(pairs, pair_keep)]
    )  # (pairs, 2, s)
    s = slopes.shape[-1]

    totals = grad_roots.new_zeros(pairs.shape[0])
    merged = grad_roots.new_zeros(timetable.made, d)
    grad_leaves = grad_roots.new_zeros(timetable.B, n, d)
    ordered = grad_roots[timetable.order]
    initial, lists = timetable.lists(), growth.lists
    grads = F.pad(ordered[: lists.shape[1], None], (0, 0, 1, 1))  # (A, 3, d)
    grad_leaves[lists.shape[1] :, 0] = ordered[lists.shape[1] :]
    place = torch.arange(n + 2, device=nodes.device)
    previous, around = place - 1, place[:3] - 1
    row = torch.arange(timetable.B, device=nodes.device).unsqueeze(1)

    for t in range(n - 2, -1, -1):
        width, count = n - t, timetable.counts[t]
        merges = slice(timetable.starts[t], timetable.starts[t + 1])
        at = growth.positions[merges]  # (A, 1)
        after = grads[:, 1:width]  # (A, pairs, d)
        flat = grads.flatten(0, 1)
        base = row[:count] * (width + 1)
        to_parents = torch.index_select(flat, 0, (base + at).squeeze(1), out=merged[merges])
        if grad_nodes is not None:
            to_parents += grad_nodes[first + merges.start : first + merges.stop]
        active = timetable.active(t)
        if active is not None:
            to_parents.masked_fill_(~active, 0.0)
        to_children = cell.pull(merges, to_parents)  # (A, 2, d)

        kept = previous[: width + 2] + (place[: width + 2] <= at)  # (A, width+2)
        lists = lists.gather(2, kept.expand(2, count, width + 2))
        lists.scatter_(2, (at + around).expand(2, count, 3), windows[:, merges, :3])
        restored = flat.index_select(0, (base + kept).view(-1)).view(count, width + 2, d)
        restored.scatter_(1, (at + place[:2]).unsqueeze(-1).expand(count, 2, d), to_children)
        if active is not None:
            lists = torch.where(active, lists, initial[:, :, : width + 2])
            restored = torch.where(active.unsqueeze(-1), restored, F.pad(grads, (0, 0, 0, 1)))
        grads = restored

        if width > 2:
            alive = nodes[lists[0, :, 1 : width + 1]].to(wide)  # (A, width, d)
            pair = lists[1, :, 1:width]  # (A, pairs)
            to_left, to_right = (after.unsqueeze(-1) * alive.unfold(1, 2, 1)).sum(2).unbind(-1)
            if growth.candidates is None:
                parent = nodes[first + merges.start : first + merges.stop].to(wide).unsqueeze(-1)
                to_parent = (after @ parent).squeeze(-1)
                through_children = alive @ to_children.transpose(1, 2)  # (A, width, 2)
                to_parent += through_children[:, :-1, 0] + through_children[:, 1:, 1]
            else:
                to_parent = (after * growth.candidates[pair]).sum(-1)
            # The softmax ignores a constant, so the sum over j ≥ i may be taken as minus that over j < i.
            to_choice = to_parent - to_left - running_sum(to_right - to_left)
            to_score = torch.ops.aten._softmax_backward_data(to_choice, growth.chances[t], -1, wide)
            if active is not None:
                to_score = to_score.masked_fill(~active, 0.0)
            totals.index_add_(0, pair.reshape(-1), to_score.view(-1))
            to_pair = slopes[pair] * to_score[..., None, None]  # (A, pairs, 2, s)
            grads[:, 1:width, :s] += to_pair[:, :, 0]
            grads[:, 2 : width + 1, :s] += to_pair[:, :, 1]

        staying = timetable.counts[t - 1] if t > 0 else 0
        if staying < count:
            grad_leaves[staying:count, :width] = grads[staying:, 1:-1]
            grads, lists = grads[:staying], lists[:, :staying]

    grad_leaves = torch.empty_like(grad_leaves).index_copy_(0, timetable.order, grad_leaves)
    return SweptGradients(grad_leaves, merged, pairs, totals)


def _new_pairs(windows: Tensor, first: int) -> Tensor:
    """The two pairs that each merge made, as node ids (2·made, 2)."""
    made = torch.arange(first, first + windows.shape[0], device=windows.device)
    return torch.stack((windows[:, 0], made, made, windows[:, 3]), 1).view(-1, 2)
