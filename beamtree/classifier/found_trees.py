"""An encoder along the trees that another, trained model finds (`model.trees_from`).

In EBT-GRC one cell makes the nodes that are scored and those that are read. A high learning rate makes it
read better, but may spoil the trees. Here a second cell only reads, at a learning rate of its own: its
gradient does not reach the trees.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from beamtree.trees.beam_trees import BeamTrees
from beamtree.trees.forest import Forest

if TYPE_CHECKING:
    from beamtree.classifier.model import TreeClassifier


@torch.no_grad()
def find_trees(parser: "TreeClassifier", ids: Tensor, key_padding_mask: Tensor) -> BeamTrees:
    """Return the trees that a trained model finds."""
    trees: BeamTrees = parser(ids, key_padding_mask, need_trees=True)[1]
    return trees


def encode_along(encoder: Any, x: Tensor, key_padding_mask: Tensor, trees: BeamTrees) -> Tensor:
    """Encode x (B, n, e) as (B, d): in training along the best tree, which saves time, in evaluation along
    each, averaged by the trees' weights."""
    if encoder.training:
        root: Tensor = encoder(x, key_padding_mask=key_padding_mask, merges=trees.merges[:, 0])
        return root
    K = trees.merges.shape[1]
    x, padding = x.repeat_interleave(K, 0), key_padding_mask.repeat_interleave(K, 0)
    roots = encoder(x, key_padding_mask=padding, merges=_of_living_beams(trees).flatten(0, 1))
    weights = trees.weights.unsqueeze(-1)
    return (weights * roots.unflatten(0, (-1, K))).sum(1).to(roots.dtype)


def grow_forest(encoder: Any, x: Tensor, trees: BeamTrees) -> Forest:
    """Return the trees of one sentence, x (1, n, e), with the node vectors that the encoder makes."""
    merges = _of_living_beams(trees)[0]
    each = encoder.forest(x.expand(len(merges), -1, -1), merges=merges)
    return Forest(each.leaves[:1], each.nodes.transpose(0, 1), each.roots.transpose(0, 1), trees)


def _of_living_beams(trees: BeamTrees) -> Tensor:
    """Return merges (B, K, n−1), those of the best beam in place of dead ones, whose weight is 0."""
    return torch.where(trees.alive.unsqueeze(-1), trees.merges, trees.merges[:, :1])
