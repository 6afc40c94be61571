"""Who is who in a straight-through tree: which rows its pairs, merges and root have, by one kernel."""

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from beamtree.kernels.replay.survivors import pieces
from beamtree.kernels.straight.place_kernels import places_kernel
from beamtree.pytorch.launch import blocks, launch


class Places(NamedTuple):
    """A sequence's pairs: n−1 of leaves, then two of each merge. Merges go by step, then sequence.

    A name is sequence, left and right: the counter of a dropout mask, as the search had it.
    """

    pairs: Tensor  # (B·3·(n−1), 2) node rows; one that is missing stands for another
    pair_names: Tensor  # (B·3·(n−1), 3)
    merged: Tensor  # ((n−1)·B, 2) node rows of the children
    merge_names: Tensor  # ((n−1)·B, 3)
    children: Tensor  # ((n−1)·B, 2) gradient rows, −1 where there is no merge
    roots: Tensor  # (B,) gradient rows


def find_places(links: Tensor, lengths: Tensor, n: int, *, entangled: bool) -> Places:
    """From the links (B, n−1, 4) of a tape, n > 1."""
    B = len(lengths)
    count = B * (n - 1)
    shapes = (3 * count, 2), (3 * count, 3), (count, 2), (count, 3), (count, 2), (B,)
    places = Places(*pieces(partial(torch.empty, dtype=torch.int64), lengths.device, *shapes))
    launch(places_kernel, (blocks(count, 128),),
        links, lengths, *places, B, n, ENTANGLED=entangled, BLOCK=128, num_warps=4,
    )  # fmt: skip
    return places
