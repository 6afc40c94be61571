"""Trees as levels: merges sorted by height, so that all nodes of one height are one batch.

A node row stands for a leaf, B·n of them, or for a merge, after the leaves, lowest first. Everything is as
large as the longest sequence makes it, so that nothing asks the device for a number.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from beamtree.trees.structure import find_structure


class Levels(NamedTuple):
    children: Tensor  # (B·(n−1), 2) node rows, −1 where there is no merge: those come last
    starts: Tensor  # (n,) int32: the first merge of each level, and the end of the last
    height: Tensor  # () int32: how many levels have merges
    made: Tensor  # (B, n−1) the row of the node made at each step, −1 where there is none
    roots: Tensor  # (B,) rows
    heights: Tensor  # (B, n−1) of the nodes made, −1 where there is none
    order: Tensor  # (B·(n−1),) sequence·(n−1) + step of each merge

    @classmethod
    def of(cls, merges: Tensor) -> "Levels":
        """From merges (B, n−1), −1 where there is none; never synchronises."""
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
