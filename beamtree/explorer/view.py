"""The view of one input and one model, as plain JSON values: prediction, trees, gold tree, search.

Its size is linear in the number of tokens. docs/explorer.md describes how all candidates of all steps follow.
"""

import time
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from beamtree.classifier.classifier import Classifier
from beamtree.classifier.node_readings import texts_in
from beamtree.data.task import Tokens
from beamtree.explorer.answer import Readings, SearchRecord, run_model
from beamtree.explorer.models import describe_model, explain_kind
from beamtree.explorer.sentences import Reading, read_texts
from beamtree.trees.beam_trees import BeamTrees
from beamtree.trees.brackets import Agreement, write_brackets

FORMAT = 1
_DIGITS = 6  # of scores and probabilities, after the decimal point


def make_view(
    model: Classifier,
    texts: Sequence[str],
    *,
    name: str,
    beam_size: int | None = None,
    max_tokens: int | None = None,
) -> dict[str, Any]:
    """Run a model on one text, or on two for a task on pairs, and return the view.

    Raises UnreadableInputError, with the place, if a text is not in the task's language.
    """
    begun = time.perf_counter()
    readings = read_texts(model.task, texts, max_tokens)
    sentences = tuple(reading.tokens for reading in readings)
    outcome = run_model(model, sentences, beam_size)
    views = [
        _view_sentence(model, *parts)
        for parts in zip(readings, outcome.trees, outcome.records, outcome.readings, strict=True)
    ]
    card = describe_model(name, model)
    return {
        "format": FORMAT,
        "model": card if beam_size is None else card | {"beam_size": beam_size},
        "seconds": round(time.perf_counter() - begun, 3),
        "prediction": _view_prediction(model.task.labels, outcome.probabilities),
        "with_gold": (
            _view_prediction(model.task.labels, outcome.with_gold) if outcome.with_gold is not None else None
        ),
        "answer": model.task.answer(sentences) if model.task.answer is not None else None,
        "note": explain_kind(model, max(map(len, sentences))),
        "sentences": views,
    }


def _view_prediction(labels: Tokens, probabilities: list[float]) -> dict[str, Any]:
    best = max(range(len(labels)), key=probabilities.__getitem__)
    rounded = _round(probabilities)
    return {
        "label": labels[best],
        "probability": rounded[best],
        "probabilities": [
            {"label": label, "probability": probability}
            for label, probability in zip(labels, rounded, strict=True)
        ],
    }


def _view_sentence(
    model: Classifier,
    reading: Reading,
    trees: BeamTrees | None,
    record: SearchRecord | None,
    labels: Readings,
) -> dict[str, Any]:
    reading = Reading(reading.text, model.in_trees(reading.tokens), list(model.in_trees(reading.ranges)))
    gold_merges = model.task.gold_merges
    gold = None if gold_merges is None else BeamTrees.from_merges([gold_merges(reading.tokens)])
    beams = [] if trees is None else _view_beams(reading.tokens, trees, gold, record, labels.beams)
    return {
        "text": reading.text,
        "tokens": list(reading.tokens),
        "ranges": reading.ranges,
        "texts_in": None if labels.beams is None else sorted(texts_in(model.task, reading.tokens)),
        "unknown": [i for i, token in enumerate(reading.tokens) if token not in model.vocabulary],
        "beams": beams,
        "gold": None if gold is None else _view_gold(reading.tokens, gold, beams, labels.gold),
        "search": None if record is None else _view_search(record, len(beams), labels.slots),
    }


def _view_beams(
    tokens: Tokens,
    trees: BeamTrees,
    gold: BeamTrees | None,
    record: SearchRecord | None,
    labels: Tensor | None,
) -> list[dict[str, Any]]:
    gold_spans = None if gold is None else gold.span_sets()
    searched = record is not None or trees.merges.shape[1] > 1
    seen: dict[frozenset[tuple[int, int]], int] = {}
    beams = []
    for k, tree in enumerate(trees.k_best()):
        spans = trees.span_sets(0, k)
        nodes = _nodes(trees, k) | {"score": None, "probability": None, "in_gold": None}
        nodes |= _labels(None if labels is None else labels[k])
        if record is not None:
            nodes["score"] = _numbers(record.chosen_score[k])
            nodes["probability"] = _numbers(record.chosen_log_probability[k].exp())
        if gold_spans is not None:
            nodes["in_gold"] = [span in gold_spans for span in zip(nodes["start"], nodes["end"], strict=True)]
        beams.append(
            {
                "weight": _round(tree.weight),
                "log_score": _round(tree.log_score) if searched else None,
                "brackets": write_brackets(tokens, spans),
                "merges": tree.merges,
                "same_tree_as": seen.get(frozenset(spans)),
                "nodes": nodes,
            }
        )
        seen.setdefault(frozenset(spans), k)
    return beams


def _view_gold(
    tokens: Tokens, gold: BeamTrees, beams: list[dict[str, Any]], labels: Tensor | None
) -> dict[str, Any]:
    merges = gold.k_best()[0].merges
    return {
        "brackets": write_brackets(tokens, gold.span_sets()),
        "merges": merges,
        "nodes": _nodes(gold, 0) | _labels(labels),
        "agreement": [_agree(beam["merges"], merges) for beam in beams],
    }


def _nodes(trees: BeamTrees, beam: int) -> dict[str, Any]:
    left, right = trees.children[0, beam].T.tolist()
    start, end = trees.spans[0, beam].T.tolist()
    return {
        "left": left,
        "right": right,
        "start": start,
        "end": end,
        "height": trees.heights[0, beam].tolist(),
    }


def _labels(shares: Tensor | None) -> dict[str, Any]:
    """The likeliest label of every node, from the probabilities (…, labels) of all labels."""
    if shares is None:
        return {"label": None, "label_probability": None}
    best, label = shares.max(-1)
    return {"label": label.tolist(), "label_probability": _numbers(best)}


def _agree(merges: list[int], gold: list[int]) -> dict[str, Any]:
    agreement = Agreement()
    agreement.add(merges, gold)
    return {
        "shared": agreement.shared,
        "spans": agreement.spans,
        "f1": None if agreement.f1 is None else _round(agreement.f1),
        "exact": agreement.shared == agreement.spans,
    }


def _view_search(record: SearchRecord, living: int, labels: Tensor | None) -> dict[str, Any]:
    steps, K = record.parent.shape
    empty = record.parent < 0

    def table(values: Tensor) -> list[list[Any]]:
        rows = _numbers(values.masked_fill(empty, 0))
        for step, slot in empty.nonzero().tolist():
            rows[step][slot] = None
        return rows

    return {
        "beam_size": K,
        "steps": steps,
        "leaf_scores": _numbers(record.leaf_scores),
        "parent": record.parent.tolist(),
        "position": table(record.position),
        "log_score": table(record.log_score),
        "left_score": table(record.new_scores[..., 0]),
        "right_score": table(record.new_scores[..., 1]),
        "log_z": table(record.log_z),
        **_labels(labels),
        "final": record.final[:living].tolist(),
    }


def _numbers(values: Tensor) -> Any:
    return _round(values.tolist())


def _round(value: Any) -> Any:
    """Round a number, or nested lists of numbers. Infinite ones become None, as JSON has no infinity."""
    if isinstance(value, list):
        return [_round(one) for one in value]
    if isinstance(value, int):
        return value
    return round(value, _DIGITS) if abs(value) < float("inf") else None
