# mypy: allow-untyped-defs
"""Decodes merges on a GPU, one program per tree, in a single launch instead of several per merge.

A program keeps the list of live nodes and closes the gap after each merge.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from beamtree.pytorch.launch import launch, power_of_two

WIDEST = 1024  # entries of the list that a program moves at once


def find_structure(merges: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return spans (R, n−1, 2), heights (R, n−1) and children (R, n−1, 2) of merges (R, n−1)."""
    R, steps = merges.shape
    merges = merges.contiguous()
    spans, heights = merges.new_empty(R, steps, 2), torch.empty_like(merges)
    children = torch.empty_like(spans)
    live = merges.new_empty(R, steps + 1, dtype=torch.int32)
    if merges.numel():
        block = min(WIDEST, power_of_two(steps + 1))
        launch(
            structure_kernel,
            (R,),
            merges,
            live,
            spans,
            heights,
            children,
            steps + 1,
            BLOCK=block,
            num_warps=max(1, block // 256),
        )
    return spans, heights, children


@triton.jit(do_not_specialize=["n"])
def structure_kernel(merges, live, spans, heights, children, n, BLOCK: tl.constexpr):
    tree = tl.program_id(0).to(tl.int64)
    live += tree * n
    first_step = tree * (n - 1)
    for first in range(0, n, BLOCK):
        place = first + tl.arange(0, BLOCK)
        tl.store(live + place, place, mask=place < n)
    side = tl.arange(0, 2)
    for step in range(0, n - 1):
        tl.debug_barrier()
        here = first_step + step
        position = tl.load(merges + here).to(tl.int32)
        exists = position + side >= side
        child = tl.load(live + position + side, mask=exists, other=0)
        is_leaf = child < n
        made = exists & (child >= n)
        below = first_step + child - n
        edge = tl.load(spans + below * 2 + side, mask=made, other=0)
        edge = tl.where(is_leaf, child + side, edge)  # the left child's start, the right one's end
        height = 1 + tl.max(tl.load(heights + below, mask=made, other=0), 0)
        tl.store(spans + here * 2 + side, tl.where(exists, edge, -1))
        tl.store(children + here * 2 + side, tl.where(exists, child, -1))
        tl.store(heights + here, tl.where(position >= 0, height, -1))
        if position >= 0:
            for first in range(position // BLOCK * BLOCK, n - 1, BLOCK):
                place = first + tl.arange(0, BLOCK)
                changes = (place >= position) & (place < n - 1)
                node = tl.load(live + place + 1, mask=changes, other=0)
                tl.debug_barrier()
                tl.store(live + place, tl.where(place == position, n + step, node), mask=changes)
