"""How far induced trees agree with gold ones: unlabelled bracketing F1 and exact match.

A tree counts as its spans of two tokens or more, without the span of the whole sentence: every tree has that.
Sentences of one or two tokens have a single tree and nothing to agree on: they are left out of every figure.
"""

from collections.abc import Sequence
from dataclasses import dataclass

Span = tuple[int, int]  # first token, and the one after the last


def spans_of(merges: Sequence[int]) -> set[Span]:
    """The spans of the tree that n−1 merges build over n tokens, the whole sentence left out."""
    n = len(merges) + 1
    edges = list(range(n + 1))  # live node i covers edges[i] to edges[i + 1]
    spans = set()
    for step, position in enumerate(merges):
        if not 0 <= position < n - step - 1:
            raise ValueError(f"merges[{step}] is {position}, but only {n - step} nodes are left")
        spans.add((edges[position], edges[position + 2]))
        del edges[position + 1]
    spans.discard((0, n))
    return spans


@dataclass
class Agreement:
    """Counts over a corpus; `add` one sentence after the other, or `+` two corpora."""

    sentences: int = 0
    exact: int = 0
    shared: int = 0  # spans in both trees
    spans: int = 0  # spans in either: binary trees over the same tokens have equally many
    sentence_f1_total: float = 0.0

    def add(self, merges: Sequence[int], gold_merges: Sequence[int]) -> None:
        """Count one sentence; both trees are given by their merge positions."""
        if len(merges) != len(gold_merges):
            raise ValueError(f"merges has {len(merges)} steps, gold_merges {len(gold_merges)}")
        if len(gold_merges) < 2:
            return
        gold = spans_of(gold_merges)
        shared = len(gold & spans_of(merges))
        self.sentences += 1
        self.exact += shared == len(gold)
        self.shared += shared
        self.spans += len(gold)
        self.sentence_f1_total += shared / len(gold)

    def __add__(self, other: "Agreement") -> "Agreement":
        return Agreement(
            self.sentences + other.sentences,
            self.exact + other.exact,
            self.shared + other.shared,
            self.spans + other.spans,
            self.sentence_f1_total + other.sentence_f1_total,
        )

    @property
    def f1(self) -> float | None:
        """Corpus-level F1. With equally many spans on both sides precision, recall and F1 are one number."""
        return self.shared / self.spans if self.spans else None

    @property
    def sentence_f1(self) -> float | None:
        """The mean of the sentences' own F1."""
        return self.sentence_f1_total / self.sentences if self.sentences else None

    @property
    def exact_match(self) -> float | None:
        """The share of sentences whose tree is the gold tree."""
        return self.exact / self.sentences if self.sentences else None
