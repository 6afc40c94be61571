"""Composing trees that are known beforehand: level by level, not step by step, in O(n·d) memory.

A node waits for its children only, so all nodes of one height are one batch, in a whole batch of trees.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from beamtree.generic import refuse_double_backward
from beamtree.ops.gated_cell import GatedCell
from beamtree.structure import find_structure


class Plan(NamedTuple):
    """Where nodes come from: the B·n leaves first, then the merges, lowest first."""

    children: Tensor  # (merges, 2) rows
    roots: Tensor  # (B,) rows
    made: Tensor  # (B, n−1) the row of the node made at each step, −1 where there is none
    ends: list[int]  # how many merges up to each height

    @classmethod
    def of(cls, merges: Tensor) -> "Plan":
        """From merges (B, n−1), −1 where there is none. Planning is done on the host."""
        device, merges = merges.device, merges.cpu()
        B, n = merges.shape[0], merges.shape[1] + 1
        _, heights, children = find_structure(merges)
        exists = merges >= 0
        order = heights[exists].argsort(stable=True)
        rows = torch.full((B, n - 1), -1)
        rows[exists] = B * n + torch.empty_like(order).index_copy_(0, order, torch.arange(len(order)))
        leaves = torch.arange(B)[:, None] * n + torch.arange(n)
        rows = torch.cat((leaves, rows), 1)  # (B, 2n−1), by the ids of `Structure.children`
        made = exists.sum(1)
        root = torch.where(made > 0, n - 1 + made, 0)  # the last node made, or the only leaf
        sequence = torch.arange(B)[:, None, None].expand_as(children)[exists]
        return cls(
            rows[sequence, children[exists]][order].to(device),
            rows.gather(1, root[:, None]).squeeze(1).to(device),
            rows[:, n:].to(device),
            torch.bincount(heights[exists])[1:].cumsum(0).tolist(),
        )

    def levels(self) -> list[slice]:
        return [slice(start, end) for start, end in zip([0, *self.ends], self.ends, strict=False)]


def compose_tree(leaves: Tensor, plan: Plan, cell: nn.Module, keep: Tensor | None) -> Tensor:
    """Roots (B, d) of the planned trees over leaves (B, n, d); `keep`: a dropout mask for every merge."""
    return compose_nodes(leaves, plan, cell, keep)[plan.roots]


def compose_nodes(leaves: Tensor, plan: Plan, cell: nn.Module, keep: Tensor | None) -> Tensor:
    """All nodes of the planned trees, leaves first, by the rows of the plan."""
    kind = leaves.device.type
    product = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else leaves.dtype
    with torch.autocast(kind, enabled=False):
        nodes: Tensor = _GivenTree.apply(leaves, plan, keep, product, *cell.parameters())
    return nodes


class _GivenTree(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, leaves: Tensor, plan: Plan, keep: Tensor | None, product: torch.dtype, *parameters: Tensor
    ) -> Tensor:
        B, n, d = leaves.shape
        cell = GatedCell(list(parameters), product)
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
        cell = GatedCell(parameters, ctx.product)
        cell.recall(nodes[plan.children], keep)
        grad = grad_nodes.to(torch.promote_types(nodes.dtype, torch.float32), copy=True)
        merged = grad[B * n :]
        for level in reversed(plan.levels()):
            # Every node has one parent, so no two of these rows are the same.
            grad[plan.children[level]] += cell.pull(level, merged[level])
        grad_leaves = grad[: B * n].view(B, n, d).to(nodes.dtype)
        return grad_leaves, None, None, None, *cell.parameter_gradients(merged)
