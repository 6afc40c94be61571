"""The words that a model knows: counted in text by the task's rule, those with a ready-made vector first.

A word without a vector shares that of the unknown word, unless it is frequent and rows are learnt for such.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from beamtree.data.task import REFUSE, BadRows, CountRule, Example, Task
from beamtree.data.vectors import read_vectors
from beamtree.data.vocabulary import Vocabulary
from beamtree.errors import BeamtreeError
from beamtree.files.bounded import shown
from beamtree.files.lines import MissingFileError

# Of vectors that lack even these, frequent words without a vector get one to learn.
_COMMONEST = ("a", "i")
_FREQUENT = 5


@dataclass(frozen=True)
class Words:
    """A vocabulary; its first words have the vectors of `vectors`, the others a row to learn."""

    vocabulary: Vocabulary
    vectors: Tensor | None = None  # (words with a vector, width) float16 or float32; None: all is learnt
    source: str | None = None  # where the vectors are from
    unknown: dict[str, float] = field(default_factory=dict)  # split -> share of running words

    @property
    def learnt(self) -> int:
        """How many words have a row to learn."""
        return len(self.vocabulary.tokens) - (0 if self.vectors is None else len(self.vectors))

    def describe_vectors(self) -> dict[str, Any] | None:
        """What a model's config says of its ready-made vectors, which are among the weights."""
        if self.vectors is None:
            return None
        count, width = self.vectors.shape
        dtype = str(self.vectors.dtype).removeprefix("torch.")
        return {"words": count, "width": width, "dtype": dtype, "source": self.source}

    def facts(self) -> dict[str, Any]:
        """What a report should say about them, as JSON."""
        return {
            "words": len(self.vocabulary.tokens),
            "learnt": self.learnt,
            "vectors": self.source,
            "width": None if self.vectors is None else self.vectors.shape[1],
            "unknown": self.unknown,
        }

    def describe(self) -> str:
        """One sentence for the user."""
        shares = ", ".join(f"{share:.1%} of {split}" for split, share in self.unknown.items())
        known = f"{len(self.vocabulary.tokens):,} words"
        if self.vectors is None:
            return f"{known}, no word vectors: all are learnt; unknown are {shares}"
        count, width = self.vectors.shape
        own = f", {self.learnt:,} frequent words without one learn theirs" if self.learnt else ""
        fixed = f"{count:,} with vectors of {self.source} ({width} wide, fixed)"
        return f"{known}: {fixed}{own}; unknown are {shares}"


def saved_words(vocabulary: Vocabulary, vectors: Any) -> Words:
    """The words of a model folder; its vectors are zeros of the shape that the config says."""
    match vectors:
        case None:
            return Words(vocabulary)
        case {"words": count, "width": width, "dtype": "float16" | "float32" as dtype} if (
            type(count) is type(width) is int and 0 < count <= len(vocabulary.tokens) and 0 < width <= 65536
        ):
            table = torch.zeros(count, width, dtype=getattr(torch, dtype))
            return Words(vocabulary, table, vectors.get("source"))
    raise BeamtreeError(f"vectors must have words, width and dtype, got {shown(vectors)}")


def count_words(examples: Iterable[Example]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for example in examples:
        for sentence in example.sentences:
            counts.update(sentence)
    return counts


def choose_words(
    rule: CountRule,
    seen: Counter[str],
    counted: Counter[str],
    vectors: Path | None,
    *,
    learn_missing: int | None = None,
) -> Words:
    """The words of a task by its rule: how often they are `seen` in training, and in all `counted` splits.

    Words without a vector that are seen `learn_missing` times in training get a row to learn (0: none do;
    None: 5 for vectors that lack even `a` and `i`). Without vectors every word of the training split does
    that the rule admits.
    """
    if vectors is None:
        # What is in no training sentence would keep its first, random vector.
        frequent = [word for word, count in seen.most_common(rule.most) if count >= rule.least]
        return Words(Vocabulary(tuple(frequent)))
    admitted = [word for word, count in counted.most_common() if count >= rule.least]
    found = read_vectors(vectors, {*admitted, *_COMMONEST})
    rows = {word: row for row, word in enumerate(found.words)}
    if learn_missing is None:
        learn_missing = 0 if all(word in rows for word in _COMMONEST) else _FREQUENT
    fixed = [word for word in admitted if word in rows][: rule.most]
    if not fixed:
        raise BeamtreeError(f"{vectors} has a vector for none of the words of the data")
    without = set(admitted).difference(rows)
    learnt = [word for word, count in seen.most_common() if word in without and count >= learn_missing > 0]
    learnt = learnt[: rule.most - len(fixed)]
    table = torch.from_numpy(found.table[[rows[word] for word in fixed]])
    return Words(Vocabulary((*fixed, *learnt)), table, found.name)


def find_words(
    task: Task,
    folder: Path,
    train: Sequence[Example],
    dev: Sequence[Example],
    vectors: Path | None,
    *,
    learn_missing: int | None = None,
    names: tuple[str, str] = ("train", "dev"),
    bad_rows: BadRows = REFUSE,
) -> Words:
    """The words of a task whose training and dev examples have been read; its other splits are read here.

    `names` are those of the two splits. A counted split that is not there is done without.
    """
    if task.words is None:
        raise BeamtreeError(f"the words of task {task.name!r} are given, not counted")
    counts = dict(zip(names, map(count_words, (train, dev)), strict=True))
    for split in task.words.counted:
        if split not in counts and vectors is not None:
            counts[split] = count_words(_if_there(task, folder, split, bad_rows))
    seen = counts[names[0]]
    if task.words.seen_in is not None:
        seen = count_words(_if_there(task, folder, task.words.seen_in, bad_rows)) or seen
    counted = sum((counts[split] for split in counts if split in task.words.counted), Counter[str]())
    words = choose_words(task.words, seen, counted, vectors, learn_missing=learn_missing)
    for split, found in counts.items():
        if total := found.total():
            known = sum(count for word, count in found.items() if word in words.vocabulary)
            words.unknown[split] = 1 - known / total
    return words


def _if_there(task: Task, folder: Path, split: str, bad_rows: BadRows) -> Iterator[Example]:
    try:
        yield from task.read(folder, split, bad_rows)
    except MissingFileError:
        return
