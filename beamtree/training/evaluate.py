"""Evaluates a trained model on labelled data: accuracy with a 95 % interval, loss, and its best trees against
the gold trees; by split, by length and by depth."""

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from beamtree.classifier.classifier import Classifier
from beamtree.classifier.ensemble import Ensemble, average
from beamtree.classifier.inference import BATCH_TOKENS, run_in_batches
from beamtree.data.batching import Batch, EncodedExamples
from beamtree.data.formal import nesting
from beamtree.data.task import Example
from beamtree.errors import BeamtreeError
from beamtree.nn.heads import class_losses, predicted_classes
from beamtree.training.classes import Confusion
from beamtree.trees.beam_trees import BeamTrees
from beamtree.trees.brackets import Agreement

Range = tuple[int, int]  # both ends included

# Finer where there are many sentences; the hundreds are those of the ListOps length splits.
_LENGTH_EDGES = (10, 20, 30, 40, 50, 75, 100, 150, 200, 300, 400, 500, 600, 700, 800, 900, 1000, 1500, 2000)


def wilson_interval(correct: int, total: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a proportion; unlike p ± 1.96 s it stays valid near 0 and 1."""
    if not 0 <= correct <= total or total == 0:
        raise ValueError(f"correct must be between 0 and total, and total above 0, got {correct} of {total}")
    z = 1.959963984540054
    p, shrink = correct / total, 1 + z * z / total
    centre = (p + z * z / (2 * total)) / shrink
    half = z / shrink * math.sqrt(p * (1 - p) / total + z * z / (4 * total * total))
    # At 0 and 1 the bound is the proportion itself, which rounding would miss.
    return (centre - half if correct else 0.0), (centre + half if correct < total else 1.0)


def length_range(length: int) -> Range:
    """The range of lengths, a row of a table or a point of a plot, to which a length belongs."""
    index = bisect_left(_LENGTH_EDGES, length)
    if index < len(_LENGTH_EDGES):
        return (_LENGTH_EDGES[index - 1] + 1 if index else 1), _LENGTH_EDGES[index]
    thousands = math.ceil(length / 1000) * 1000
    return thousands - 999, thousands


@dataclass
class Tally:
    """Counts over some examples, and the agreement of their trees with gold trees, if there are both."""

    examples: int = 0
    correct: int = 0
    loss_total: float = 0.0
    trees: Agreement = field(default_factory=Agreement)

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            self.examples + other.examples,
            self.correct + other.correct,
            self.loss_total + other.loss_total,
            self.trees + other.trees,
        )

    @property
    def accuracy(self) -> float:
        return self.correct / self.examples

    @property
    def interval(self) -> tuple[float, float]:
        return wilson_interval(self.correct, self.examples)

    @property
    def loss(self) -> float:
        """The mean over examples, not over batches."""
        return self.loss_total / self.examples

    def to_dict(self) -> dict[str, Any]:
        return {
            "examples": self.examples,
            "accuracy": self.accuracy,
            "accuracy_95": list(self.interval),
            "loss": self.loss if math.isfinite(self.loss) else None,
            "bracketing_f1": self.trees.f1,
            "sentence_f1": self.trees.sentence_f1,
            "exact_match": self.trees.exact_match,
            "trees": self.trees.sentences,
        }


@dataclass
class SplitResult:
    """The results on a split, in total, by length and by depth (empty for tasks without brackets)."""

    name: str
    total: Tally = field(default_factory=Tally)
    by_length: defaultdict[Range, Tally] = field(default_factory=lambda: defaultdict(Tally))
    by_depth: defaultdict[int, Tally] = field(default_factory=lambda: defaultdict(Tally))
    confusion: Confusion | None = None  # for a user's own data
    members: dict[str, "SplitResult"] = field(default_factory=dict)  # of an ensemble, each alone

    def add(self, outcome: Tally, *, length: int, depth: int | None) -> None:
        self.total += outcome
        self.by_length[length_range(length)] += outcome
        if depth is not None:
            self.by_depth[depth] += outcome

    def to_dict(self) -> dict[str, Any]:
        lengths, depths = sorted(self.by_length.items()), sorted(self.by_depth.items())
        members = {name: one.to_dict() for name, one in self.members.items()}
        return {
            "split": self.name,
            **self.total.to_dict(),
            **({} if self.confusion is None else self.confusion.to_dict()),
            "by_length": [{"from": low, "to": high, **tally.to_dict()} for (low, high), tally in lengths],
            "by_depth": [{"depth": depth, **tally.to_dict()} for depth, tally in depths],
            **({"members": members} if members else {}),
        }


def pool(results: Iterable[SplitResult], name: str = "all") -> SplitResult:
    """Add up several splits into one."""
    whole = SplitResult(name)
    for result in results:
        whole.total += result.total
        for lengths, tally in result.by_length.items():
            whole.by_length[lengths] += tally
        for depth, tally in result.by_depth.items():
            whole.by_depth[depth] += tally
    return whole


def evaluate(
    model: Classifier,
    name: str,
    examples: Iterable[Example],
    *,
    batch_tokens: int = BATCH_TOKENS,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> SplitResult:
    """Run a model over labelled examples; `advance(done, total)` is told how far it is.

    Length and depth of a pair are those of its longer and deeper sentence. The members of an ensemble are
    measured in the same pass; the trees of the ensemble are those of its first member.
    """
    task, sizes = model.task, list[tuple[int, int | None]]()
    noted = _note_sizes(name, examples, sizes, deep=task.gold_merges is not None)
    encoded = EncodedExamples.encode(noted, model.vocabulary, task.labels, gold_merges=task.gold_merges)
    # An encoder that follows the gold tree has no tree of its own to compare.
    compare = task.gold_merges is not None and not model.needs_merges
    names = model.names if isinstance(model, Ensemble) else ()
    whole, *each = (
        SplitResult(name, confusion=None if task.own is None else Confusion.empty(task.labels))
        for _ in ("whole", *names)
    )
    runs = [
        run_in_batches(member, encoded, batch_tokens=batch_tokens, need_trees=compare)
        for member in model.members
    ]
    done = 0
    for found in zip(*runs, strict=True):  # the same batch of all members
        for result, outcome in zip(each, found, strict=False):
            _count(result, sizes, *outcome)
        batch, _, trees = found[0]
        _count(whole, sizes, batch, average([logits for _, logits, _ in found]), trees)
        done += len(batch.rows)
        advance(done, len(encoded))
    whole.members = dict(zip(names, each, strict=True))
    return whole


def _count(
    result: SplitResult,
    sizes: Sequence[tuple[int, int | None]],
    batch: Batch,
    logits: Tensor,
    trees: BeamTrees | None,
) -> None:
    """Add a model's predictions for a batch of a split's examples to the result."""
    rows, right, given = batch.rows.tolist(), batch.labels.tolist(), predicted_classes(logits).tolist()
    losses = class_losses(logits, batch.labels).tolist()
    outcomes = [Tally(1, r == g, loss) for r, g, loss in zip(right, given, losses, strict=True)]
    if result.confusion is not None:
        for r, g in zip(right, given, strict=True):
            result.confusion.counts[r][g] += 1
    if trees is not None and batch.gold_merges is not None:
        pairs = zip(trees.merges[:, 0].tolist(), batch.gold_merges.tolist(), strict=True)
        for place, (merges, gold) in enumerate(pairs):
            steps = gold.index(-1) if -1 in gold else len(gold)
            outcomes[place % len(rows)].trees.add(merges[:steps], gold[:steps])
    for row, outcome in zip(rows, outcomes, strict=True):
        length, depth = sizes[row]
        result.add(outcome, length=length, depth=depth)


def _note_sizes(
    name: str, examples: Iterable[Example], sizes: list[tuple[int, int | None]], deep: bool
) -> Iterator[Example]:
    """Yield the examples, noting the length of each in `sizes` and, if `deep`, its depth."""
    for example in examples:
        depth = max(map(nesting, example.sentences)) if deep else None
        sizes.append((max(map(len, example.sentences)), depth))
        yield example
    if not sizes:
        raise BeamtreeError(f"{name} has no readable example")
