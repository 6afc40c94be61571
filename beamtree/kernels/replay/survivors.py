"""Finds the survivors, the nodes in the trees of the final beams: each once, highest first."""

from typing import NamedTuple

import torch
from torch import Tensor

from beamtree.kernels.replay import survivor_kernels
from beamtree.pytorch.launch import blocks, launch, pieces, power_of_two


class Survivors(NamedTuple):
    """Every surviving node once, highest first."""

    order: Tensor  # entries (beam, step); those of survivors come first
    weights: Tensor  # (B, K, n−1): ∂L/∂S summed over the final beams that have the entry's node
    rows: Tensor  # (B, n−1, K) int32: node -> its row among the survivors
    starts: Tensor  # (n,) int32: how many survivors are higher than each height
    height: Tensor  # int32; the first number is the greatest height
    number: int  # of survivors
    highest: int  # the greatest height
    bounds: list[int]  # `starts` on the host; empty unless asked for


def find_survivors(
    slots: Tensor,
    heights: Tensor,
    relative: Tensor,
    grad_relative: Tensor,
    n: int,
    deterministic: bool,
    need_bounds: bool = False,
) -> Survivors:
    """Sort the survivors by height: a counting sort in any order within a level, or if `deterministic` a
    stable one."""
    B, K = relative.shape
    T = n - 1
    count = B * K * T
    levels, rows = torch.empty_like(slots), torch.empty_like(slots)
    weights = relative.new_empty(count)
    counts, cursors, starts, totals = (
        piece.view(torch.int32)
        for piece in pieces(torch.zeros, slots.device, (T + 1,), (T + 1,), (T + 1,), (2,))
    )
    if T == 0:
        return Survivors(slots, weights, rows, starts, totals, 0, 0, [])
    beams = max(2, power_of_two(K))
    launch(survivor_kernels.mark_kernel, (B, blocks(T, 16)),
        slots, heights, relative, grad_relative, levels, weights, counts, T,
        K=K, BEAMS=beams, BLOCK=16, num_warps=4,
    )  # fmt: skip
    launch(survivor_kernels.scan_kernel, (1,), counts, starts, totals, T, BLOCK=1024, num_warps=4)
    if deterministic:
        order = levels.sort(descending=True, stable=True).indices
    else:
        order = torch.empty(count, dtype=torch.int64, device=slots.device)
    launch(survivor_kernels.place_kernel, (blocks(count, 256),),
        levels, slots, starts, cursors, order, rows, count, T,
        K=K, SORTED=deterministic, BLOCK=256, num_warps=4,
    )  # fmt: skip
    # The only synchronisation: the sizes of all buffers that follow depend on the number of survivors.
    first, last = starts.storage_offset(), totals.storage_offset() + 2
    wanted = starts.as_strided((last - first,), (1,)) if need_bounds else totals
    *bounds, highest, number = wanted.tolist()
    return Survivors(order, weights, rows, starts, totals, number, highest, bounds)
