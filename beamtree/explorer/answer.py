"""What a model makes of one input: probabilities and trees and, where its encoder can be watched, the whole
search: every slot of every step, and every pair's score once, when it comes up.

A pair's score never changes, so n−1 scores of leaves and two for each merge determine all candidates of all
steps: 2·K·(n−1) numbers for K·n²/2 candidates.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from beamtree.classifier.classifier import Classifier
from beamtree.classifier.inference import evaluating, predict_in_batches, refuse_unless_finite
from beamtree.classifier.model import TreeClassifier
from beamtree.classifier.node_readings import (
    Input,
    grow_forests,
    has_node_vectors,
    read_input,
    read_vectors,
)
from beamtree.data.task import Example, Tokens
from beamtree.engine.operators import search_parts
from beamtree.engine.record import (
    BEFORE,
    LEFT,
    LEFT_NEIGHBOUR,
    LOG_Z,
    NONE,
    POSITION,
    RIGHT,
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
from beamtree.trees.forest import Forest
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
    slots: Tensor  # (K, n−1) the slots that each beam passed through
    nodes: Tensor  # (n−1, K, d) the node made in each slot
    spans: Tensor  # (n−1, K, 2) what it covers


class Readings(NamedTuple):
    """The probability of every label for every node: what the classifier would say of its part."""

    beams: Tensor | None = None  # (K, n−1, labels) of the trees, if the encoder hands out their nodes
    slots: Tensor | None = None  # (n−1, K, labels) of the search
    gold: Tensor | None = None  # (n−1, labels) of the gold tree, where the encoder can follow it


class Answer(NamedTuple):
    """Trees, records and readings are one for each sentence."""

    probabilities: list[float]  # of the task's labels
    trees: Sequence[BeamTrees | None]
    records: Sequence[SearchRecord | None]
    readings: Sequence[Readings]
    with_gold: list[float] | None = None  # probabilities had the encoder followed the gold trees


def is_watched(model: Classifier) -> bool:
    """Whether the encoder is the engine's search and nothing else, so that its steps can be shown."""
    encoder = model.members[0].encoder
    return isinstance(encoder, BeamTreeEncoder | BeamTreeGRC) and not getattr(
        encoder, "merge_equal_trees", False
    )


def follows_gold(model: Classifier) -> bool:
    """Whether there are gold trees and the encoder can be made to follow them."""
    return model.task.gold_merges is not None and isinstance(model.members[0].encoder, BeamTreeEncoder)


@torch.no_grad()
def run_model(model: Classifier, sentences: tuple[Tokens, ...], beam_size: int | None) -> Answer:
    """One forward pass; `beam_size` is the encoder's own if it is None.

    Of an ensemble: the mean of the probabilities, and what there is to see of its first member.
    """
    each = [_run_one(member, sentences, beam_size) for member in evaluating(model).members]
    with_gold = [outcome.with_gold for outcome in each if outcome.with_gold is not None]
    return each[0]._replace(
        probabilities=_mean([outcome.probabilities for outcome in each]),
        with_gold=_mean(with_gold) if with_gold else None,
    )


def _mean(each: Sequence[Sequence[float]]) -> list[float]:
    return [sum(shares) / len(each) for shares in zip(*each, strict=True)]


def _run_one(model: TreeClassifier, sentences: tuple[Tokens, ...], beam_size: int | None) -> Answer:
    if is_watched(model):
        return _watch(model, sentences, beam_size)
    if beam_size is not None:
        raise BeamtreeError(f"beam_size does not apply to the encoder {model.settings.title!r}")
    nothing = [None] * len(sentences)
    if has_node_vectors(model):
        given = read_input(model, sentences)
        forests = grow_forests(model, given)
        roots = torch.cat([forest.average(forest.roots) for forest in forests])
        readings = [
            Readings(read_vectors(model, given, roots, s, forest.nodes[0], forest.trees.spans[0]))
            for s, forest in enumerate(forests)
        ]
        return Answer(_judge(model, given, roots), [forest.trees for forest in forests], nothing, readings)
    ((_, shares, trees),) = predict_in_batches(model, [Example(sentences, "")], need_trees=True)
    return Answer(
        shares[0].tolist(),
        nothing if trees is None else [trees[s] for s in range(len(sentences))],
        nothing,
        [Readings()] * len(sentences),
    )


def _judge(model: TreeClassifier, given: Input, roots: Tensor) -> list[float]:
    logits = refuse_unless_finite(model.classify(roots, given.ids, given.x, given.key_padding_mask))
    probabilities: list[float] = class_probabilities(logits)[0].tolist()
    return probabilities


def _watch(model: TreeClassifier, sentences: tuple[Tokens, ...], beam_size: int | None) -> Answer:
    encoder: Any = model.encoder
    given = read_input(model, sentences)
    records = [record_search(encoder, part, beam_size or encoder.beam_size) for part in given.parts]
    roots = torch.cat([record.beams.root() for record in records])
    probabilities = _judge(model, given, roots)
    gold = _follow_gold(model, sentences, given)
    gold_roots = roots if gold is None else torch.cat([forest.roots[:, 0] for forest in gold])
    readings = []
    for s, record in enumerate(records):
        slots = read_vectors(model, given, roots, s, record.nodes, record.spans)
        by_gold = None
        if gold is not None:
            by_gold = read_vectors(
                model, given, gold_roots, s, gold[s].nodes[0, 0], gold[s].trees.spans[0, 0]
            )
        steps = torch.arange(len(slots), device=slots.device)
        readings.append(Readings(slots[steps, record.slots], slots, by_gold))
    trees = [record.beams.trees() for record in records]
    return Answer(
        probabilities, trees, records, readings, None if gold is None else _judge(model, given, gold_roots)
    )


def _follow_gold(model: TreeClassifier, sentences: tuple[Tokens, ...], given: Input) -> list[Forest] | None:
    """The gold tree of each sentence with the nodes that this encoder makes along it."""
    if not follows_gold(model):
        return None
    encoder: Any = model.encoder
    find: Any = model.task.gold_merges
    merges = [torch.tensor([find(model.in_trees(tokens))], dtype=torch.int64) for tokens in sentences]
    return [
        encoder.forest(part, merges=gold.to(part.device))
        for part, gold in zip(given.parts, merges, strict=True)
    ]


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
        lineages[0] % K,
        tape.nodes[first:].view(n - 1, K, leaves.shape[-1]),
        _spans(links, n),
    )


def _spans(links: Tensor, n: int) -> Tensor:
    """The tokens under the node of every slot, from the links (n−1, K, 6) of one sequence: (n−1, K, 2)."""
    steps, K, _ = links.shape
    spans = links.new_zeros(1 + n + steps * K, 2)  # by id
    place = torch.arange(n, device=links.device)
    spans[1 : 1 + n] = torch.stack((place, place + 1), -1)
    for step, made in enumerate(spans[1 + n :].view(steps, K, 2)):
        made[:, 0] = spans[links[step, :, LEFT], 0]
        made[:, 1] = spans[links[step, :, RIGHT], 1]
    return spans[1 + n :].view(steps, K, 2)
