"""One search with its books open: every slot of every step, and every pair's score, once, when it comes up.

A pair's score never changes, so n−1 scores of leaves and two for each merge tell all candidates of all steps:
2·K·(n−1) numbers for K·n²/2 candidates.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from beamtree.engine.operators import search_parts
from beamtree.engine.record import (
    BEFORE,
    LEFT_NEIGHBOUR,
    NONE,
    POSITION,
    RIGHT_NEIGHBOUR,
    Beams,
    find_lineages,
    merge_positions,
)
from beamtree.engine.search import search
from beamtree.nn.encoder import BeamTreeEncoder
from beamtree.zoo.beam_tree_grc import BeamTreeGRC

_CHOSEN, _LOG_Z = 1, 3  # columns of Tape.energies


class SearchRecord(NamedTuple):
    """Slots (n−1, K) are the beams after each step, best first; an empty one's other entries mean nothing."""

    beams: Beams
    leaf_scores: Tensor  # (n−1,)
    parent: Tensor  # (n−1, K) the slot of the step before, −1 for an empty slot
    position: Tensor  # (n−1, K)
    log_score: Tensor  # (n−1, K) float64, accumulated
    log_z: Tensor  # (n−1, K) of the parent's candidates
    new_scores: Tensor  # (n−1, K, 2) of the pairs the merge makes with its neighbours, −inf without one
    chosen_score: Tensor  # (K, n−1) of the pair merged at each step of each beam
    chosen_log_probability: Tensor  # (K, n−1)
    final: Tensor  # (K,) the slot after the last step of each beam


@torch.no_grad()
def record_search(encoder: BeamTreeEncoder | BeamTreeGRC, x: Tensor, beam_size: int) -> SearchRecord:
    """The search of one sequence (1, n, input_size), as the encoder does it in evaluation."""
    leaves, lengths = encoder.read(x, None)
    n, K, first = x.shape[1], beam_size, 1 + x.shape[1]
    compose, score = search_parts(encoder.cell, encoder.scorer, leaves)  # type: ignore[arg-type]
    scored = [leaves.new_empty(0)]

    def score_and_keep(pairs: Tensor) -> Tensor:
        scores = score(pairs)
        scored.append(scores[: len(pairs)])  # for no pairs the scorer returns its bias
        return scores

    tape = search(leaves, lengths, compose, score_and_keep, beam_size=K)
    scores = torch.cat(scored)
    links = tape.links.view(n - 1, K, tape.links.shape[1])
    lineages = find_lineages(tape.links, tape.roots, lengths, n)
    gain = (tape.energies[:, _CHOSEN].double() - tape.energies[:, _LOG_Z]).view(n - 1, K)
    chosen = tape.energies[lineages[0]]  # (K, n−1, 4)
    parent = (links[..., BEFORE] - first).clamp(min=0) % K
    position = links[..., POSITION]
    # Living slots differ in where they come from or what they merge; an empty one repeats the first.
    empty = (parent == parent[:, :1]) & (position == position[:, :1])
    empty[:, :1] = False
    log_score = torch.zeros_like(gain)
    before = gain.new_zeros(K)
    for step in range(n - 1):
        before = log_score[step] = before[parent[step]] + gain[step]
    has_neighbour = links[..., [LEFT_NEIGHBOUR, RIGHT_NEIGHBOUR]] != NONE
    return SearchRecord(
        Beams(
            tape.nodes[tape.roots],
            tape.relative,
            leaves.new_empty(1, K, 0, leaves.shape[-1]),
            tape.offset,
            merge_positions(tape.links, lineages),
            lengths,
        ),
        scores[: n - 1],
        parent.masked_fill(empty, -1),
        position,
        log_score,
        tape.energies[:, _LOG_Z].view(n - 1, K),
        scores[n - 1 :].view(n - 1, K, 2).masked_fill(~has_neighbour, -torch.inf),
        chosen[..., _CHOSEN],
        chosen[..., _CHOSEN] - chosen[..., _LOG_Z],
        (tape.roots[0] - first).clamp(min=0) % K,
    )
