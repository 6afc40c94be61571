"""Dropout masks that can be drawn again: one for each node made, or one for each pair that is scored."""

import torch
from torch import Tensor

from beamtree.noise import Randomness, draw_keep
from beamtree.timeline import Timeline


def node_masks(randomness: Randomness, timeline: Timeline, merges: Tensor, dtype: torch.dtype) -> Tensor:
    """The masks (m, hidden) of nodes made, each its own: two beams that merge the same pair draw two."""
    step, sequence, slot = timeline.step(merges), timeline.sequence(merges), timeline.slot(merges)
    return draw_keep(randomness.seed, step, sequence, slot, randomness.hidden_size, randomness.dropout, dtype)


def pair_masks(randomness: Randomness, timeline: Timeline, pairs: Tensor, dtype: torch.dtype) -> Tensor:
    """The masks (m, hidden) of pairs of ids (m, 2): the same for its score and for the node it becomes."""
    left, right = timeline.names(pairs).unbind(-1)
    sequence = timeline.owner(pairs.amax(-1))
    return draw_keep(
        randomness.seed, left, sequence, right, randomness.hidden_size, randomness.dropout, dtype
    )
