"""Composing trees that are known beforehand: level by level, not step by step, in O(n·d) memory.

A node waits for its children only, so all nodes of one height are one batch, in a whole batch of trees.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from beamtree.engine.gated_cell import GatedCell
from beamtree.kernels.fused_recursion import supports
from beamtree.kernels.given.compose import compose_levels
from beamtree.kernels.weights import CellWeights
from beamtree.parts.cell import GatedRecursiveCell
from beamtree.pytorch.derivatives import refuse_double_backward, refuse_forward_mode
from beamtree.pytorch.loops import follow_merges
from beamtree.pytorch.precision import product_dtype, without_autocast
from beamtree.pytorch.tracing import is_exporting, untraced
from beamtree.trees.structure import Levels


class Followed(NamedTuple):
    """Given trees with all their nodes."""

    nodes: Tensor  # (rows, d) leaves first, then merges, lowest first
    made: Tensor  # (B, n−1) the row of the node made at each step, −1 where there is none
    roots: Tensor  # (B,) rows

    def root_vectors(self) -> Tensor:  # (B, d)
        return self.nodes.index_select(0, self.roots)


def follow(leaves: Tensor, merges: Tensor, cell: GatedRecursiveCell) -> Followed:
    """Compose leaves (B, n, d) as merges (B, n−1) say, −1 where there is none; every merge has a dropout mask
    of its own."""
    if is_exporting():
        return _follow_in_a_loop(leaves, merges, cell)
    refuse_forward_mode(leaves, *cell.weights())
    if has_levels(leaves, cell):
        levels = Levels.of(merges)
        keep = cell.draw_keep(len(levels.children))
        nodes = compose_levels(leaves, *levels[:3], keep, product_dtype(leaves), CellWeights(*cell.weights()))
        return Followed(nodes, levels.made, levels.roots)
    return _follow_plan(leaves, merges, cell)


def _follow_in_a_loop(leaves: Tensor, merges: Tensor, cell: GatedRecursiveCell) -> Followed:
    B, n, _ = leaves.shape
    _, nodes = follow_merges(leaves, merges, lambda t, left, right: cell(left, right))
    sequence, merged = torch.arange(B, device=merges.device), (merges >= 0).sum(1)
    first = B * n + sequence * (n - 1)  # (B,) the rows that the first steps make
    step = torch.arange(n - 1, device=merges.device)
    made = torch.where(merges >= 0, first.unsqueeze(1) + step, -1)
    roots = torch.where(merged > 0, first + merged - 1, sequence * n)
    return Followed(torch.cat((leaves.flatten(0, 1), nodes.flatten(0, 1))), made, roots)


@untraced
def _follow_plan(leaves: Tensor, merges: Tensor, cell: GatedRecursiveCell) -> Followed:
    plan = Plan.of(merges)
    nodes = compose_nodes(leaves, plan, cell, cell.draw_keep(len(plan.children)))
    return Followed(nodes, plan.made, plan.roots)


def has_levels(leaves: Tensor, cell: GatedRecursiveCell) -> bool:
    """Whether kernels take all levels in one launch, so that any tree is best followed so."""
    return type(cell) is GatedRecursiveCell and supports(leaves, cell.weights(), beam_size=1)


class Plan(NamedTuple):
    """Levels for the host, which composes one after another."""

    children: Tensor  # (merges, 2) rows
    roots: Tensor
    made: Tensor
    ends: list[int]  # how many merges up to each height

    @classmethod
    def of(cls, merges: Tensor) -> "Plan":
        """From merges (B, n−1), −1 where there is none. Planning is done on the host."""
        if merges.is_meta:  # no heights to look at: as if all merges were of one
            levels = Levels.of(merges)
            return cls(levels.children, levels.roots, levels.made, [len(levels.children)])
        device, levels = merges.device, Levels.of(merges.cpu())
        ends = levels.starts[1 : int(levels.height) + 1].tolist()
        children = levels.children[: ends[-1] if ends else 0]
        return cls(children.to(device), levels.roots.to(device), levels.made.to(device), ends)

    def levels(self) -> list[slice]:
        return [slice(start, end) for start, end in zip([0, *self.ends], self.ends, strict=False)]


def compose_nodes(leaves: Tensor, plan: Plan, cell: GatedRecursiveCell, keep: Tensor | None) -> Tensor:
    """All nodes of the planned trees, by the rows of the plan; `keep`: a dropout mask for every merge."""
    product = product_dtype(leaves)
    with without_autocast(leaves):
        nodes: Tensor = _GivenTree.apply(leaves, plan, keep, product, *cell.weights())
    return nodes


class _GivenTree(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, leaves: Tensor, plan: Plan, keep: Tensor | None, product: torch.dtype, *parameters: Tensor
    ) -> Tensor:
        B, n, d = leaves.shape
        cell = GatedCell(CellWeights(*parameters), product)
        nodes = leaves.new_empty(B * n + len(plan.children), d)
        nodes[: B * n] = leaves.reshape(-1, d)
        for level in plan.levels():
            mask = None if keep is None else keep[level]
            nodes[B * n + level.start : B * n + level.stop] = cell(nodes[plan.children[level]], mask)
        ctx.plan, ctx.product, ctx.shape = plan, product, leaves.shape
        ctx.save_for_backward(nodes, keep, *parameters)
        return nodes

    @staticmethod
    def backward(ctx: Any, grad_nodes: Tensor) -> tuple[Any, ...]:
        refuse_double_backward()
        nodes, keep, *parameters = ctx.saved_tensors
        plan, (B, n, d) = ctx.plan, ctx.shape
        cell = GatedCell(CellWeights(*parameters), ctx.product)
        cell.recall(nodes[plan.children], keep)
        grad = grad_nodes.to(torch.promote_types(nodes.dtype, torch.float32), copy=True)
        merged = grad[B * n :]
        for level in reversed(plan.levels()):
            # Every node has one parent, so no two of these rows are the same.
            grad[plan.children[level]] += cell.pull(level, merged[level])
        grad_leaves = grad[: B * n].view(B, n, d).to(nodes.dtype)
        return grad_leaves, None, None, None, *cell.parameter_gradients(merged)
