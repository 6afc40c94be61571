"""Decodes merges into the span, the height and the children of the node that each merge makes.

A merge at position p joins the live nodes p and p+1, that is, it removes the (p+1)-th of the boundaries that
are left between tokens. So the merges are the Lehmer code of the order in which boundaries are removed.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from beamtree.pytorch.launch import HAS_TRITON
from beamtree.pytorch.registry import register
from beamtree.pytorch.tracing import follow_merges, is_compiling, is_exporting


class Structure(NamedTuple):
    """The nodes of R trees, by the step that makes them; -1 for steps without a merge."""

    spans: Tensor  # (R, n-1, 2) half-open [start, end)
    heights: Tensor  # (R, n-1)
    children: Tensor  # (R, n-1, 2) leaf i is i, the node made at step t is n + t


@torch.no_grad()
def find_structure(merges: Tensor) -> Structure:
    """Decode merges (R, n-1), padded with -1, without synchronising with the device."""
    # A compiler would unroll the steps and compile them again for every length.
    if is_exporting():
        return _in_a_loop(merges)
    if is_compiling() or (merges.is_cuda and HAS_TRITON):
        return Structure(*torch.ops.beamtree.structure(merges))
    return _step_by_step(merges)


def _step_by_step(merges: Tensor) -> Structure:
    R, steps = merges.shape
    n = steps + 1
    exists = merges.T >= 0  # (n-1, R)
    nowhere = n + 1  # a dummy slot for steps without a merge, so that no branch is needed
    boundaries = torch.where(exists, _fallen_boundaries(merges) + 1, nowhere)  # (n-1, R)

    places = torch.arange(n + 2, device=merges.device)[:, None].repeat(1, R)  # (n+2, R)
    start_by_end, end_by_start = places - 1, places + 1
    start_by_end[nowhere] = end_by_start[nowhere] = nowhere
    node_by_start, height_by_start = places.clone(), torch.zeros_like(places)

    spans = torch.empty(steps, 2, R, dtype=torch.int64, device=merges.device)
    children, heights = torch.empty_like(spans), torch.empty_like(spans[:, 0])
    for step in range(steps):
        middle = boundaries[step : step + 1]  # (1, R)
        start, end = start_by_end.gather(0, middle), end_by_start.gather(0, middle)
        both = torch.cat([start, middle])  # (2, R) where the two children start
        height = height_by_start.gather(0, both).amax(0, keepdim=True) + 1
        torch.cat([start, end], out=spans[step])
        torch.gather(node_by_start, 0, both, out=children[step])
        heights[step] = height[0]
        start_by_end.scatter_(0, end, start)
        end_by_start.scatter_(0, start, end)
        node_by_start.scatter_(0, start, n + step)
        height_by_start.scatter_(0, start, height)

    missing = ~exists
    spans.masked_fill_(missing[:, None], -1)
    children.masked_fill_(missing[:, None], -1)
    heights.masked_fill_(missing, -1)
    return Structure(
        spans.permute(2, 0, 1).contiguous(), heights.T.contiguous(), children.permute(2, 0, 1).contiguous()
    )


def _in_a_loop(merges: Tensor) -> Structure:
    R, steps = merges.shape
    n = steps + 1
    token = torch.arange(n, device=merges.device)
    nothing = torch.zeros_like(token)
    leaves = torch.stack((token, token + 1, nothing, token, nothing, nothing), -1).repeat(R, 1, 1)

    def join(t: Tensor, left: Tensor, right: Tensor) -> Tensor:
        height = torch.maximum(left[:, 2], right[:, 2]) + 1
        number = torch.full_like(height, n) + t
        return torch.stack((left[:, 0], right[:, 1], height, number, left[:, 3], right[:, 3]), -1)

    made = follow_merges(leaves, merges, join)
    start, end, height, _, left, right = made.masked_fill((merges < 0).unsqueeze(-1), -1).unbind(-1)
    return Structure(torch.stack((start, end), -1), height, torch.stack((left, right), -1))


def _fallen_boundaries(merges: Tensor) -> Tensor:
    """Return which of the n-1 boundaries, numbered from 0, is removed at each step: (n-1, R)."""
    fallen = merges.T.to(torch.int32).contiguous()
    for step in range(len(fallen) - 2, -1, -1):
        later = fallen[step + 1 :]
        later += later >= fallen[step]
    return fallen.long()


class _StructureCall(NamedTuple):
    """The arguments of `beamtree::structure`."""

    merges: Tensor  # (R, n-1)


def _as_a_unit(call: _StructureCall) -> tuple[Tensor, Tensor, Tensor]:
    (merges,) = call
    if not (merges.is_cuda and HAS_TRITON):
        return _step_by_step(merges)
    from beamtree.trees.structure_kernels import find_structure

    with torch.cuda.device_of(merges):
        return find_structure(merges)


def _shapes(call: _StructureCall) -> tuple[Tensor, Tensor, Tensor]:
    (merges,) = call
    R, steps = merges.shape
    spans = merges.new_empty(R, steps, 2)
    return spans, torch.empty_like(merges), torch.empty_like(spans)


register("structure", _as_a_unit, _shapes)


class Levels(NamedTuple):
    """Trees as levels: merges sorted by height, so that all nodes of one height form a batch.

    Nodes are rows of one table: first the B·n leaves, then the merges, lowest first. All sizes depend only on
    the padded length, so that nothing has to wait for the device.
    """

    children: Tensor  # (B·(n−1), 2) node rows; steps without a merge come last, as −1
    starts: Tensor  # (n,) int32: the first merge of each level, and the end of the last
    height: Tensor  # () int32: how many levels have merges
    made: Tensor  # (B, n−1) the row of the node made at each step, or −1
    roots: Tensor  # (B,) rows
    heights: Tensor  # (B, n−1) the height of the node made at each step, or −1
    order: Tensor  # (B·(n−1),) sequence·(n−1) + step of each merge

    @classmethod
    def of(cls, merges: Tensor) -> "Levels":
        """Sort merges (B, n−1), padded with −1, into levels, without synchronising with the device."""
        merges, (B, steps), device = merges.contiguous(), merges.shape, merges.device
        n = steps + 1
        _, heights, children = find_structure(merges)
        exists = merges >= 0
        level, order = torch.where(exists, heights, n).view(-1).sort(stable=True)
        starts = torch.searchsorted(level, torch.arange(1, n + 1, device=device), out_int32=True)
        rank = torch.empty_like(order).scatter_(0, order, torch.arange(B * steps, device=device))
        made = torch.where(exists, B * n + rank.view(B, steps), -1)
        rows = torch.cat((torch.arange(B * n, device=device).view(B, n), made), 1)  # (B, 2n−1)
        pairs = rows.gather(1, children.clamp(min=0).view(B, 2 * steps)).view(B, steps, 2)
        pairs = torch.where(exists.unsqueeze(-1), pairs, -1).view(B * steps, 2)[order]
        merged = exists.sum(1)
        root = torch.where(merged > 0, n - 1 + merged, 0)  # the last node made, or the only leaf
        height = (starts[1:] > starts[:-1]).sum(dtype=torch.int32)
        return cls(pairs, starts, height, made, rows.gather(1, root.unsqueeze(1)).squeeze(1), heights, order)
