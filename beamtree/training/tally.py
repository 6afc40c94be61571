"""Counting what a model gets right: accuracy with a 95 % interval, loss, trees; by length and by depth."""

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from beamtree.trees.agreement import Agreement

Range = tuple[int, int]  # both ends included

# Finer where sentences are many; the hundreds are those of the ListOps length splits.
_LENGTH_EDGES = (10, 20, 30, 40, 50, 75, 100, 150, 200, 300, 400, 500, 600, 700, 800, 900, 1000, 1500, 2000)


def wilson_interval(correct: int, total: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a proportion; unlike p ± 1.96 s it stays honest near 0 and 1."""
    if not 0 <= correct <= total or total == 0:
        raise ValueError(f"correct must lie between 0 and total, and total above 0, got {correct} of {total}")
    z = 1.959963984540054
    p, shrink = correct / total, 1 + z * z / total
    centre = (p + z * z / (2 * total)) / shrink
    half = z / shrink * math.sqrt(p * (1 - p) / total + z * z / (4 * total * total))
    # At 0 and 1 the bound is the proportion itself, which rounding would miss.
    return (centre - half if correct else 0.0), (centre + half if correct < total else 1.0)


def length_range(length: int) -> Range:
    """The range of lengths that one row of a table or one point of a plot stands for."""
    index = bisect_left(_LENGTH_EDGES, length)
    if index < len(_LENGTH_EDGES):
        return (_LENGTH_EDGES[index - 1] + 1 if index else 1), _LENGTH_EDGES[index]
    thousands = math.ceil(length / 1000) * 1000
    return thousands - 999, thousands


@dataclass
class Tally:
    """Counts over some examples, and how their trees agree with gold ones where there are both."""

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
    """All examples of a split, and the same by length and by depth (no depths without brackets)."""

    name: str
    total: Tally = field(default_factory=Tally)
    by_length: dict[Range, Tally] = field(default_factory=dict)
    by_depth: dict[int, Tally] = field(default_factory=dict)

    def add(self, outcome: Tally, *, length: int, depth: int | None) -> None:
        lengths = length_range(length)
        self.total += outcome
        self.by_length[lengths] = self.by_length.get(lengths, Tally()) + outcome
        if depth is not None:
            self.by_depth[depth] = self.by_depth.get(depth, Tally()) + outcome

    def to_dict(self) -> dict[str, Any]:
        lengths, depths = sorted(self.by_length.items()), sorted(self.by_depth.items())
        return {
            "split": self.name,
            **self.total.to_dict(),
            "by_length": [{"from": low, "to": high, **tally.to_dict()} for (low, high), tally in lengths],
            "by_depth": [{"depth": depth, **tally.to_dict()} for depth, tally in depths],
        }


def pool(results: Iterable[SplitResult], name: str = "all") -> SplitResult:
    """Several splits as one."""
    whole = SplitResult(name)
    for result in results:
        whole.total += result.total
        for lengths, tally in result.by_length.items():
            whole.by_length[lengths] = whole.by_length.get(lengths, Tally()) + tally
        for depth, tally in result.by_depth.items():
            whole.by_depth[depth] = whole.by_depth.get(depth, Tally()) + tally
    return whole
