"""A classifier's results by label: precision, recall and F1, their means, and which label is taken for which.

If one label has most of the rows, accuracy says little: always naming that label is nearly as accurate.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from beamtree.data.task import Example

IMBALANCED = 0.7  # labels are uneven if one has a larger share of the rows


class ClassScore(NamedTuple):
    label: str
    examples: int  # that have this label
    predicted: int  # that are given this label
    precision: float  # 0 if the label is never given
    recall: float  # 0 if no example has it
    f1: float


@dataclass(frozen=True)
class Confusion:
    """counts[gold][predicted], both in the order of the labels."""

    labels: tuple[str, ...]
    counts: list[list[int]]

    @classmethod
    def empty(cls, labels: Sequence[str]) -> "Confusion":
        return cls(tuple(labels), [[0] * len(labels) for _ in labels])

    @property
    def examples(self) -> int:
        return sum(map(sum, self.counts))

    @property
    def accuracy(self) -> float:
        return sum(row[i] for i, row in enumerate(self.counts)) / max(1, self.examples)

    @property
    def scores(self) -> list[ClassScore]:
        found = []
        for i, (label, row) in enumerate(zip(self.labels, self.counts, strict=True)):
            right, has, given = row[i], sum(row), sum(other[i] for other in self.counts)
            precision, recall = right / max(1, given), right / max(1, has)
            found.append(ClassScore(label, has, given, precision, recall, 2 * right / max(1, has + given)))
        return found

    @property
    def macro_f1(self) -> float:
        """The mean F1 of the labels that occur or are predicted."""
        counted = [score.f1 for score in self.scores if score.examples or score.predicted]
        return sum(counted) / max(1, len(counted))

    @property
    def mean_recall(self) -> float:
        """The mean recall of the labels that occur: the accuracy if all were equally frequent."""
        found = [score.recall for score in self.scores if score.examples]
        return sum(found) / max(1, len(found))

    @property
    def majority(self) -> tuple[str, float]:
        """The most frequent label and its share: the accuracy of always naming it."""
        most = max(self.scores, key=lambda score: score.examples)
        return most.label, most.examples / max(1, self.examples)

    def to_dict(self) -> dict[str, Any]:
        label, share = self.majority
        return {
            "macro_f1": self.macro_f1,
            "majority": {"label": label, "accuracy": share},
            "classes": [score._asdict() for score in self.scores],
            "confusion": [list(row) for row in self.counts],
        }


def largest_share(examples: Iterable[Example]) -> tuple[str, float]:
    """The most frequent label of some examples, and its share."""
    counted = Counter(example.label for example in examples)
    label, count = max(counted.items(), key=lambda item: item[1])
    return label, count / counted.total()


def log_frequencies(labels: Sequence[int], classes: int) -> list[float]:
    """The logits of a classifier that knows only how often each class occurs.

    Added to the logits in training only, they leave the logits to learn what does not depend on how frequent
    the classes are (Menon et al. 2021). Weighted losses stop doing so once every training row is right: rare
    rows are then fitted as well as others, and new ones are taken for the most frequent class.
    """
    counted = Counter(labels)
    return [math.log(max(1, counted[i]) / len(labels)) for i in range(classes)]


def balanced_weights(labels: Sequence[int], classes: int) -> list[float]:
    """Weights with which all classes have the same share in a loss; the mean weight of a row is 1."""
    counted = Counter(labels)
    present = len(counted)
    return [len(labels) / (present * counted[i]) if counted[i] else 0.0 for i in range(classes)]
