"""The words that a model knows, in the order of their numbers, and where their vectors come from.

1. Words with fixed vectors from a user's file: rows among the model's weights.
2. Words whose vectors are learnt: some start from a pretrained vector (they are tuned), some at random.
3. Words of the vectors that come with the package, seen in training or not: 8 bits a number, read from the
   package and not among the weights, so that a small model stays small.

All other words share the vector of the unknown word.

Or a Hugging Face encoder reads all words, and there is no list of them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from beamtree.data.hugging_face import HuggingFaceEncoder, SubwordVocabulary, find_encoder
from beamtree.data.task import REFUSE, BadRows, CountRule, Example, Task
from beamtree.data.vectors import (
    SHIPPED,
    SHIPPED_FILE,
    SHIPPED_SHA256,
    ShippedVectors,
    read_shipped,
    read_vectors,
)
from beamtree.data.vocabulary import Vocabulary
from beamtree.errors import BeamtreeError, MissingExtraError
from beamtree.files.bounded import shown
from beamtree.files.lines import MissingFileError

# If a vector file lacks even these words, words seen this often in training learn a vector.
_COMMONEST = ("a", "i")
_FREQUENT = 5


@dataclass(frozen=True)
class ShippedRows:
    """Vectors of the package's file, `numbers[i] * scales[i]`, for the last words of a vocabulary."""

    numbers: Tensor  # (words, width) int8
    scales: Tensor  # (words,) float32, already multiplied by `factor`
    factor: float = 1.0  # multiplies all vectors of the file

    @classmethod
    def choose(cls, file: ShippedVectors, rows: Sequence[int], factor: float) -> "ShippedRows":
        """Select rows of the package's file."""
        return cls(
            torch.from_numpy(file.numbers[list(rows)]),
            torch.from_numpy(file.scales[list(rows)] * np.float32(factor)),
            factor,
        )


@dataclass(frozen=True)
class Words:
    """A vocabulary: its first words have `vectors`, the next learn theirs, the last ones are `shipped`."""

    vocabulary: Vocabulary
    vectors: Tensor | None = None  # (fixed words, width) float16 or float32; None: all are learnt
    source: str | None = None  # where the vectors are from
    unknown: dict[str, float] = field(default_factory=dict)  # split -> share of running words
    starts: Tensor | None = None  # (tuned words, width) float32: initial values of the first learnt rows
    shipped: ShippedRows | None = None
    rarity: Tensor | None = None  # (own words,) float32: 1 for a word in every training sentence, else more
    encoder: HuggingFaceEncoder | None = None  # gives all words their vectors

    @classmethod
    def read_by(cls, encoder: HuggingFaceEncoder) -> "Words":
        """Return the words of an encoder, which reads them all."""
        return cls(SubwordVocabulary(encoder), source=encoder.place, encoder=encoder)

    @property
    def learnt(self) -> int:
        """The number of words whose vectors are learnt."""
        fixed = 0 if self.vectors is None else len(self.vectors)
        return len(self.vocabulary.tokens) - fixed - self.from_package

    @property
    def from_package(self) -> int:
        """The number of words whose vectors are only in the package."""
        return 0 if self.shipped is None else len(self.shipped.numbers)

    @property
    def own(self) -> Vocabulary:
        """The words that a model folder must list: all except those of the package."""
        tokens = self.vocabulary.tokens
        return Vocabulary(tokens[: len(tokens) - self.from_package]) if self.from_package else self.vocabulary

    def describe_vectors(self) -> dict[str, Any] | None:
        """Return the entry `vectors` of a model's config."""
        if self.encoder is not None:
            return {"tokens_from": self.source, "sha256": self.encoder.sha256}
        if self.vectors is None:
            return None
        count, width = self.vectors.shape
        dtype = str(self.vectors.dtype).removeprefix("torch.")
        entry = {"words": count, "width": width, "dtype": dtype, "source": self.source}
        if self.shipped is not None:
            entry["shipped"] = {"name": SHIPPED, "sha256": SHIPPED_SHA256, "factor": self.shipped.factor}
        return entry

    @property
    def width(self) -> int | None:
        """The width of pretrained vectors, or None if there are none."""
        if self.encoder is not None:
            return self.encoder.width
        return None if self.vectors is None else self.vectors.shape[1]

    def facts(self) -> dict[str, Any]:
        """Return the facts for a report, as JSON."""
        return {
            "words": len(self.vocabulary.tokens),
            "learnt": self.learnt,
            **({} if self.starts is None else {"tuned": len(self.starts)}),
            "vectors": self.source,
            "width": self.width,
            "unknown": self.unknown,
        }

    def describe(self) -> str:
        """Return a sentence for the user."""
        if self.encoder is not None:
            return f"token vectors by the encoder in {self.source} ({self.width} wide), which is not trained"
        shares = ", ".join(f"{share:.1%} of {split}" for split, share in self.unknown.items())
        known = f"{len(self.vocabulary.tokens):,} words"
        if self.vectors is None:
            return f"{known}, no word vectors: all are learnt; unknown: {shares}"
        tuned = 0 if self.starts is None else len(self.starts)
        count, missing = len(self.vectors) + self.from_package, self.learnt - tuned
        own = f", {missing:,} frequent words without one learn theirs" if missing else ""
        kept = f"{tuned:,} seen in training are tuned, {count:,} fixed" if tuned else "fixed"
        have = f"{count + tuned:,} with vectors of {self.source} ({self.vectors.shape[1]} wide, {kept})"
        return f"{known}: {have}{own}; unknown: {shares}"


def saved_words(vocabulary: Vocabulary, vectors: Any) -> Words:
    """Return the words of a model folder; vectors among its weights are zeros of the right shape so far.

    An encoder that the config names must be there and unchanged.
    """
    match vectors:
        case None:
            return Words(vocabulary)
        case {"tokens_from": str(place), "sha256": str(checksum)}:
            try:
                return Words.read_by(find_encoder(place, checksum))
            except MissingExtraError:
                raise
            except BeamtreeError as error:
                raise BeamtreeError(
                    f"{error}; a model is saved without the encoder of its tokens, which must stay in place: "
                    "put it back, or say in vectors.tokens_from of this file where it is now"
                ) from error
        case {"words": count, "width": width, "dtype": "float16" | "float32" as dtype} if (
            type(count) is type(width) is int and 0 <= count <= len(vocabulary.tokens) and 0 < width <= 65536
        ):
            table = torch.zeros(count, width, dtype=getattr(torch, dtype))
            words = Words(vocabulary, table, vectors.get("source"))
            return _with_package(words, vectors["shipped"]) if "shipped" in vectors else words
    raise BeamtreeError(f"vectors must have words, width and dtype, got {shown(vectors)}")


def _with_package(words: Words, shipped: Any) -> Words:
    """Add the words of the package, which must be in the version that the model was made with."""
    match shipped:
        case {"name": str(name), "sha256": str(checksum), "factor": float(factor)} if 0 < factor < 1e6:
            if (name, checksum) != (SHIPPED, SHIPPED_SHA256):
                raise BeamtreeError(
                    f"the model needs the word vectors {shown(name)} ({checksum[:12]}) of another version of "
                    f"beamtree; this one has {SHIPPED} ({SHIPPED_SHA256[:12]})"
                )
            file = read_shipped()
            assert words.vectors is not None
            if file.numbers.shape[1] != words.vectors.shape[1]:
                raise BeamtreeError(
                    f"{SHIPPED} is {file.numbers.shape[1]} wide, not {words.vectors.shape[1]}"
                )
            return _add_shipped(words, file, factor)
    raise BeamtreeError(f"vectors.shipped must have name, sha256 and factor, got {shown(shipped)}")


def _add_shipped(words: Words, file: ShippedVectors, factor: float) -> Words:
    """Add the words of the package that are not among `words` yet, in the file's order."""
    rows = [row for row, word in enumerate(file.words) if word not in words.vocabulary]
    tokens = (*words.vocabulary.tokens, *(file.words[row] for row in rows))
    return replace(words, vocabulary=Vocabulary(tokens), shipped=ShippedRows.choose(file, rows, factor))


def count_words(examples: Iterable[Example]) -> Counter[str]:
    """Count the words in all sentences of the examples."""
    return Counter(chain.from_iterable(sentence for example in examples for sentence in example.sentences))


@dataclass(frozen=True)
class VectorUse:
    """How pretrained vectors are used."""

    # Words without a vector learn one if they are seen this often in training; 0: none do;
    # None: 5 for vectors that lack even `a` and `i` and for those of the package, else 0.
    learn_missing: int | None = None
    every: bool = False  # a word of the data keeps its vector however rare it is
    tuned: bool = False  # vectors of words seen in training are tuned
    unit: bool = False  # scale all vectors so that their numbers have standard deviation 1


_DEFAULT_USE = VectorUse()


def choose_words(
    rule: CountRule,
    seen: Counter[str],
    counted: Counter[str],
    vectors: Path | None,
    use: VectorUse = _DEFAULT_USE,
) -> Words:
    """Choose a task's words by its rule, from their counts in training (`seen`) and in all `counted` splits.

    Without vectors, every word of the training split that the rule admits is learnt. With `SHIPPED_FILE`, all
    its words are known, even those in no split.
    """
    if vectors is None:
        # Only training words: the vector of any other would stay random.
        frequent = [word for word, count in seen.most_common(rule.most) if count >= rule.least]
        return Words(Vocabulary(tuple(frequent)))
    if vectors == SHIPPED_FILE:
        return _choose_shipped(rule, seen, use)
    least = 1 if use.every else rule.least
    admitted = [word for word, count in counted.most_common() if count >= least]
    found = read_vectors(vectors, {*admitted, *_COMMONEST})
    rows = {word: row for row, word in enumerate(found.words)}
    learn_missing = use.learn_missing
    if learn_missing is None:
        learn_missing = 0 if all(word in rows for word in _COMMONEST) else _FREQUENT
    have = [word for word in admitted if word in rows][: rule.most]
    if not have:
        raise BeamtreeError(f"{vectors} has a vector for none of the words of the data")
    fixed = [word for word in have if not (use.tuned and seen[word])]
    tuned = [word for word in have if use.tuned and seen[word]]
    without = set(admitted).difference(rows)
    learnt = [word for word, count in seen.most_common() if word in without and count >= learn_missing > 0]
    learnt = learnt[: rule.most - len(have)]
    factor = 1 / float(found.table.astype(np.float32).std()) if use.unit else 1.0
    table, starts = (
        torch.from_numpy(found.table[[rows[word] for word in some]]) * factor for some in (fixed, tuned)
    )
    return Words(
        Vocabulary((*fixed, *tuned, *learnt)),
        table,
        found.name,
        starts=starts.float() if use.tuned else None,
    )


def _choose_shipped(rule: CountRule, seen: Counter[str], use: VectorUse) -> Words:
    file = read_shipped()
    rows = {word: row for row, word in enumerate(file.words)}
    factor = 1 / file.deviation() if use.unit else 1.0
    tuned = [word for word, _ in seen.most_common() if use.tuned and word in rows][: rule.most]
    least = _FREQUENT if use.learn_missing is None else use.learn_missing
    learnt = [word for word, count in seen.most_common() if word not in rows and count >= least > 0]
    starts = ShippedRows.choose(file, [rows[word] for word in tuned], factor)
    own = Words(
        Vocabulary((*tuned, *learnt[: rule.most - len(tuned)])),
        torch.zeros(0, file.numbers.shape[1]),
        SHIPPED,
        starts=starts.numbers * starts.scales[:, None] if use.tuned else None,
    )
    return _add_shipped(own, file, factor)


def find_words(
    task: Task,
    folder: Path,
    train: Sequence[Example],
    dev: Sequence[Example],
    vectors: Path | None,
    use: VectorUse = _DEFAULT_USE,
    *,
    names: tuple[str, str] = ("train", "dev"),
    bad_rows: BadRows = REFUSE,
) -> Words:
    """Choose the words of a task whose training and dev examples have been read; other splits are read here.

    `names` are the names of these two splits. Counted splits without a file are skipped.
    """
    if task.words is None:
        raise BeamtreeError(f"the words of task {task.name!r} are fixed, not counted")
    counts = dict(zip(names, map(count_words, (train, dev)), strict=True))
    for split in task.words.counted:
        if split not in counts and vectors not in (None, SHIPPED_FILE):
            counts[split] = count_words(_read_if_there(task, folder, split, bad_rows))
    seen = counts[names[0]]
    if task.words.seen_in is not None:
        seen = count_words(_read_if_there(task, folder, task.words.seen_in, bad_rows)) or seen
    counted = sum((counts[split] for split in counts if split in task.words.counted), Counter[str]())
    words = choose_words(task.words, seen, counted, vectors, use)
    words = replace(words, rarity=_rarity(words.own, train))
    for split, found in counts.items():
        if total := found.total():
            known = sum(count for word, count in found.items() if word in words.vocabulary)
            words.unknown[split] = 1 - known / total
    return words


def _rarity(words: Vocabulary, train: Sequence[Example]) -> Tensor:
    """Return 1 + log((1 + sentences) / (1 + sentences with the word)) for each word."""
    sentences = [sentence for example in train for sentence in example.sentences]
    found = Counter(word for sentence in sentences for word in set(sentence))
    counts = torch.tensor([float(found[word]) for word in words.tokens])
    return 1 + ((1 + len(sentences)) / (1 + counts)).log()


def _read_if_there(task: Task, folder: Path, split: str, bad_rows: BadRows) -> Iterator[Example]:
    try:
        yield from task.read(folder, split, bad_rows)
    except MissingFileError:
        return
