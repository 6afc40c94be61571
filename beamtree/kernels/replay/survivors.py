"""The nodes that surviving beams own: each once, highest first."""

from collections.abc import Callable, Iterator
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from beamtree.kernels.replay import survivor_kernels
from beamtree.pytorch.launch import blocks, launch, power_of_two


class Survivors(NamedTuple):
    """Every surviving node once, highest first."""

    order: Tensor  # entries (beam, step), the survivors' first
    weights: Tensor  # (B, K, n−1): ∂L/∂S summed over the final beams that inherit the entry's node
    rows: Tensor  # (B, n−1, K) int32: node -> survivor
    starts: Tensor  # (n,) int32: how many survivors are higher than this
    height: Tensor  # int32, its first number: the greatest height
    number: int
    highest: int
    bounds: list[int]  # `starts` for the host, if it asked


def find_survivors(
    slots: Tensor,
    heights: Tensor,
    relative: Tensor,
    grad_relative: Tensor,
    n: int,
    deterministic: bool,
    need_bounds: bool = False,
) -> Survivors:
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
    # The only synchronisation: everything that follows is as large as the number of survivors.
    first, last = starts.storage_offset(), totals.storage_offset() + 2
    wanted = starts.as_strided((last - first,), (1,)) if need_bounds else totals
    *bounds, highest, number = wanted.tolist()
    return Survivors(order, weights, rows, starts, totals, number, highest, bounds)


def pieces(make: Callable[..., Tensor], device: torch.device, *shapes: tuple[int, ...]) -> Iterator[Tensor]:
    """Tensors of one allocation. Each starts at a multiple of 16 bytes: for another alignment a kernel
    would be compiled anew."""
    sizes = [(prod(shape) + 3) // 4 * 4 for shape in shapes]
    whole, start = make(sum(sizes), device=device), 0
    for shape, size in zip(shapes, sizes, strict=True):
        yield whole.as_strided(shape, (*shape[1:], 1), start)
        start += size
