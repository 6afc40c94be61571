"""What a model makes of one input: probabilities and trees, and where it can be watched the search with its
books open: every slot of every step, and every pair's score, once, when it comes up.

A pair's score never changes, so n−1 scores of leaves and two for each merge tell all candidates of all steps:
2·K·(n−1) numbers for K·n²/2 candidates.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from beamtree.classifier.inference import evaluating, refuse_unless_finite, run_in_batches
from beamtree.classifier.model import TreeClassifier
from beamtree.data.task import Example, Tokens
from beamtree.engine.operators import search_parts
from beamtree.engine.record import (
    BEFORE,
    LEFT_NEIGHBOUR,
    LOG_Z,
    NONE,
    POSITION,
    RIGHT_NEIGHBOUR,
    Beams,
    find_lineages,
    merge_positions,
)
from beamtree.engine.search import search
from beamtree.errors import BeamtreeError
from beamtree.nn.encoder import BeamTreeEncoder
from beamtree.nn.heads import class_probabilities
from beamtree.trees.beam_trees import BeamTrees
from beamtree.zoo.beam_tree_grc import BeamTreeGRC

_CHOSEN = 1  # a column of Tape.ended


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


class Outcome(NamedTuple):
    """Trees and records are one for each sentence, or None."""

    probabilities: list[float]  # of the task's labels
    trees: Sequence[BeamTrees | None]
    records: Sequence[SearchRecord | None]


def is_watched(model: TreeClassifier) -> bool:
    """Whether the encoder is the engine's search and nothing else, so that its steps can be shown."""
    encoder = model.encoder
    return isinstance(encoder, BeamTreeEncoder | BeamTreeGRC) and not getattr(
        encoder, "merge_equal_trees", False
    )


@torch.no_grad()
def run_model(model: TreeClassifier, sentences: tuple[Tokens, ...], beam_size: int | None) -> Outcome:
    """One forward pass; `beam_size` is the encoder's own if it is None."""
    model = evaluating(model)
    if is_watched(model):
        return _watch(model, sentences, beam_size)
    if beam_size is not None:
        raise BeamtreeError(f"beam_size does not apply to the encoder {model.settings.encoder!r}")
    encoded = model.encode([Example(sentences, "")], labelled=False)
    ((_, logits, trees),) = run_in_batches(model, encoded, need_trees=True)
    nothing = [None] * len(sentences)
    return Outcome(
        class_probabilities(logits)[0].tolist(),
        nothing if trees is None else [trees[s] for s in range(len(sentences))],
        nothing,
    )


def _watch(model: TreeClassifier, sentences: tuple[Tokens, ...], beam_size: int | None) -> Outcome:
    encoder: Any = model.encoder
    device = next(model.parameters()).device
    encoded = model.encode([Example(sentences, "")], labelled=False).collate(np.arange(1)).to(device)
    x, padding = model.embedding(encoded.ids), encoded.key_padding_mask
    records = []
    for s in range(len(sentences)):
        own = ~padding[s]
        part, _ = model.part_for_trees(x[s : s + 1, own], padding[s : s + 1, own])
        records.append(record_search(encoder, part, beam_size or encoder.beam_size))
    roots = torch.cat([record.beams.root() for record in records])
    logits = refuse_unless_finite(model.classify(roots, x, padding))
    trees = [record.beams.trees() for record in records]
    return Outcome(class_probabilities(logits)[0].tolist(), trees, records)


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
    gain = (tape.ended[:, _CHOSEN].double() - tape.ended[:, LOG_Z]).view(n - 1, K)
    chosen = tape.ended[lineages[0]]  # (K, n−1, 4)
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
        tape.ended[:, LOG_Z].view(n - 1, K),
        scores[n - 1 :].view(n - 1, K, 2).masked_fill(~has_neighbour, -torch.inf),
        chosen[..., _CHOSEN],
        chosen[..., _CHOSEN] - chosen[..., LOG_Z],
        (tape.roots[0] - first).clamp(min=0) % K,
    )
