"""Trees with their inner nodes: what an encoder hands to those who look inside its trees.

A tree source is an encoder with `forest(x, key_padding_mask, merges=None) -> Forest` and a `d_model`.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from beamtree.pytorch.precision import without_autocast
from beamtree.trees.beam_trees import BeamTrees


class Forest(NamedTuple):
    """Trees with the vectors of their nodes; `leaves`, `nodes`, `roots` and `trees.weights` carry gradient.

    Fields:
        leaves: (B, n, d), the leaves of all trees of a sequence.
        nodes: (B, K, n−1, d), the node made at each step, zero where there is none.
        roots: (B, K, d).
        trees: the trees themselves.
    """

    leaves: Tensor
    nodes: Tensor
    roots: Tensor
    trees: BeamTrees

    def average(self, of_beams: Tensor) -> Tensor:
        """From (B, K, …) to (B, …), by the weights of the trees."""
        wide = torch.promote_types(of_beams.dtype, torch.float32)
        with without_autocast(of_beams):
            average = torch.einsum("bk,bk...->b...", self.trees.weights.to(wide), of_beams.to(wide))
        return average.to(of_beams.dtype)


class TreeSource(Protocol):
    d_model: int
    input_size: int

    def forest(
        self, x: Tensor, key_padding_mask: Tensor | None = None, *, merges: Tensor | None = None
    ) -> Forest: ...


def refuse_merges(merges: Tensor | None) -> None:
    if merges is not None:
        raise ValueError("merges must be left out: this encoder has its own trees and follows no others")
