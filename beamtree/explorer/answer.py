"""Runs a model on one input and returns probabilities, trees and, if its encoder is a plain beam search, the
whole search: every slot of every step, and the score of every pair, once, when it first appears.

The score of a pair never changes, so n−1 scores of neighbouring leaves and two for each merge determine all
candidates of all steps: some 2·K·(n−1) numbers for K·n²/2 candidates.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from beamtree.classifier.classifier import Classifier
from beamtree.classifier.inference import evaluating, predict_in_batches
from beamtree.classifier.model import TreeClassifier
from beamtree.classifier.node_readings import NodeReader, has_node_vectors
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
from beamtree.parts.cell import GatedRecursiveCell
from beamtree.recursion import is_built_in
from beamtree.trees.beam_trees import BeamTrees
from beamtree.trees.forest import Forest
from beamtree.zoo.beam_tree_grc import BeamTreeGRC

_CHOSEN = 1  # a column of Tape.ended


class SearchRecord(NamedTuple):
    """The slots (n−1, K) are the beams after each step, best first. Entries of empty slots are meaningless,
    except in `parent`.
    """

    beams: Beams
    leaf_scores: Tensor  # (n−1,)
    parent: Tensor  # (n−1, K) the slot of the previous step, −1 for an empty slot
    position: Tensor  # (n−1, K)
    log_score: Tensor  # (n−1, K) float64, accumulated
    log_z: Tensor  # (n−1, K) over the parent's candidates
    new_scores: Tensor  # (n−1, K, 2) of the new node with its left and right neighbour; −inf: none
    chosen_score: Tensor  # (K, n−1) of the pair that each beam merged at each step
    chosen_log_probability: Tensor  # (K, n−1)
    final: Tensor  # (K,) the slot of each beam after the last step
    slots: Tensor  # (K, n−1) the slots that each beam passed through
    nodes: Tensor  # (n−1, K, d) the node made in each slot
    spans: Tensor  # (n−1, K, 2) the span of this node


class Readings(NamedTuple):
    """The probability of every label for every node: what the classifier would predict for its part."""

    beams: Tensor | None = None  # (K, n−1, labels) of the trees, if the encoder returns their nodes
    slots: Tensor | None = None  # (n−1, K, labels) of the search
    gold: Tensor | None = None  # (n−1, labels) of the gold tree, if the encoder can follow it


class Answer(NamedTuple):
    """`trees`, `records` and `readings` have one entry for each sentence."""

    probabilities: list[float]  # of the task's labels
    trees: Sequence[BeamTrees | None]
    records: Sequence[SearchRecord | None]
    readings: Sequence[Readings]
    with_gold: list[float] | None = None  # probabilities if the encoder follows the gold trees


def is_watched(model: Classifier) -> bool:
    """Return True if the encoder is the engine's search with built-in parts and nothing else, so that its
    steps can be shown."""
    encoder = model.members[0].encoder
    return (
        isinstance(encoder, BeamTreeEncoder | BeamTreeGRC)
        and type(encoder.cell) is GatedRecursiveCell
        and is_built_in(encoder.scorer)
        and not getattr(encoder, "merge_equal_trees", False)
    )


def follows_gold(model: Classifier) -> bool:
    """Return True if there are gold trees and the encoder can be made to follow them."""
    return model.task.gold_merges is not None and isinstance(model.members[0].encoder, BeamTreeEncoder)


@torch.no_grad()
def run_model(model: Classifier, sentences: tuple[Tokens, ...], beam_size: int | None) -> Answer:
    """Run one forward pass. `beam_size` None means the encoder's own.

    For an ensemble, probabilities are averaged; everything else is that of its first member.
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
        raise BeamtreeError(f"beam_size does not apply to the encoder {model.settings.title!r}: leave it out")
    nothing = [None] * len(sentences)
    if has_node_vectors(model):
        reader = NodeReader(model, sentences)
        forests, roots = reader.grow_forests()
        readings = [
            Readings(reader.read(s, forest.nodes[0], forest.trees.spans[0], roots))
            for s, forest in enumerate(forests)
        ]
        return Answer(reader.read_text(roots), [forest.trees for forest in forests], nothing, readings)
    ((_, shares, trees),) = predict_in_batches(model, [Example(sentences, "")], need_trees=True)
    return Answer(
        shares[0].tolist(),
        nothing if trees is None else [trees[s] for s in range(len(sentences))],
        nothing,
        [Readings()] * len(sentences),
    )


def _watch(model: TreeClassifier, sentences: tuple[Tokens, ...], beam_size: int | None) -> Answer:
    encoder: Any = model.encoder
    reader = NodeReader(model, sentences)
    records = [record_search(encoder, part, beam_size or encoder.beam_size) for part in reader.parts]
    roots = torch.cat([record.beams.root() for record in records])
    probabilities = reader.read_text(roots)
    gold = _follow_gold(model, sentences, reader.parts)
    gold_roots = roots if gold is None else torch.cat([forest.roots[:, 0] for forest in gold])
    readings = []
    for s, record in enumerate(records):
        slots = reader.read(s, record.nodes, record.spans, roots)
        by_gold = None
        if gold is not None:
            by_gold = reader.read(s, gold[s].nodes[0, 0], gold[s].trees.spans[0, 0], gold_roots)
        steps = torch.arange(len(slots), device=slots.device)
        readings.append(Readings(slots[steps, record.slots], slots, by_gold))
    trees = [record.beams.trees() for record in records]
    with_gold = None if gold is None else reader.read_text(gold_roots)
    return Answer(probabilities, trees, records, readings, with_gold)


def _follow_gold(
    model: TreeClassifier, sentences: tuple[Tokens, ...], parts: Sequence[Tensor]
) -> list[Forest] | None:
    """The gold tree of each sentence, with the nodes that this encoder computes for it."""
    if not follows_gold(model):
        return None
    encoder: Any = model.encoder
    find: Any = model.task.gold_merges
    merges = [torch.tensor([find(model.in_trees(tokens))], dtype=torch.int64) for tokens in sentences]
    return [
        encoder.forest(part, merges=gold.to(part.device)) for part, gold in zip(parts, merges, strict=True)
    ]


@torch.no_grad()
def record_search(encoder: BeamTreeEncoder | BeamTreeGRC, x: Tensor, beam_size: int) -> SearchRecord:
    """Record the search of one sequence (1, n, input_size), as the encoder runs it in evaluation."""
    leaves, lengths = encoder.read(x, None)
    n, K, first = x.shape[1], beam_size, 1 + x.shape[1]
    compose, score = search_parts(encoder.cell, encoder.scorer, leaves)  # type: ignore[arg-type]
    scored = [leaves.new_empty(0)]

    def score_and_keep(pairs: Tensor, keep: Tensor | None) -> Tensor:
        scores = score(pairs, keep)
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
    # Living slots differ in their parent or in the pair they merged; an empty slot repeats the first one.
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
    """The spans (n−1, K, 2) of the nodes of all slots, from the links (n−1, K, 6) of one sequence."""
    steps, K, _ = links.shape
    spans = links.new_zeros(1 + n + steps * K, 2)  # by id
    place = torch.arange(n, device=links.device)
    spans[1 : 1 + n] = torch.stack((place, place + 1), -1)
    for step, made in enumerate(spans[1 + n :].view(steps, K, 2)):
        made[:, 0] = spans[links[step, :, LEFT], 0]
        made[:, 1] = spans[links[step, :, RIGHT], 1]
    return spans[1 + n :].view(steps, K, 2)
