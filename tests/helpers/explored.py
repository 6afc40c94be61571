"""Small models for the tests of the explorer, and the search rebuilt from what a view says of it."""

import math
from typing import Any, NamedTuple

import small_models
import torch

from beamtree.classifier.model import TreeClassifier
from beamtree.data.task import Task, find_task
from beamtree.data.vocabulary import Vocabulary
from beamtree.data.words import Words


def small_model(
    encoder: str = "ebt-grc", task: Task | str = "listops", seed: int = 0, **options: Any
) -> TreeClassifier:
    """In float64, so that rounding decides nothing, and with scores far enough apart."""
    counted = Words(Vocabulary(("a", "man", "plays", "the", "guitar", ".", "n't")))
    found = find_task(task) if isinstance(task, str) else task
    words = None if found.tokens else counted
    model = small_models.small_model(encoder, found, seed=seed, words=words, **options).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "scorer" in name:
                parameter.mul_(3)
    return model


class Slot(NamedTuple):
    """A beam after a step: its live nodes, the scores of its pairs, its accumulated score."""

    nodes: list[int]
    pairs: list[float]
    score: float


class Candidate(NamedTuple):
    score: float
    beam: int
    position: int


def rebuild(sentence: dict[str, Any]) -> list[tuple[list[Candidate], list[Slot | None]]]:
    """For each step the candidates that were considered, best first, and the slots that survived it."""
    n, search = len(sentence["tokens"]), sentence["search"]
    K = search["beam_size"]
    slots: list[Slot | None] = [Slot(list(range(n)), list(search["leaf_scores"]), 0.0)]
    steps = []
    for t in range(search["steps"]):
        considered = []
        for b, slot in enumerate(slots):
            if slot is None:
                continue
            log_z = math.log(sum(math.exp(score) for score in slot.pairs))
            ranked = sorted(range(len(slot.pairs)), key=lambda i: -slot.pairs[i])[:K]
            considered += [Candidate(slot.score + slot.pairs[i] - log_z, b, i) for i in ranked]
        considered.sort(key=lambda candidate: -candidate.score)
        slots = [_extend(search, slots, n, t, k) for k in range(K)]
        steps.append((considered, slots))
    return steps


def _extend(search: dict[str, Any], slots: list[Slot | None], n: int, t: int, k: int) -> Slot | None:
    if search["parent"][t][k] < 0:
        return None
    parent = slots[search["parent"][t][k]]
    assert parent is not None
    i = search["position"][t][k]
    nodes, pairs = list(parent.nodes), list(parent.pairs)
    nodes[i : i + 2] = [n + t * search["beam_size"] + k]
    del pairs[i]
    if i > 0:
        pairs[i - 1] = search["left_score"][t][k]
    if i < len(pairs):
        pairs[i] = search["right_score"][t][k]
    return Slot(nodes, pairs, search["log_score"][t][k])
