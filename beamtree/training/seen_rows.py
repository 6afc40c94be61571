"""Recognises rows that a run has learnt from: the run keeps a hash of the texts of each."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from beamtree.data.task import Example

_BYTES = 8  # of a hash; among a million seen and a million new rows, two agree by chance once in 10⁷ times


def hash_rows(examples: Iterable[Example]) -> bytes:
    """The hashes of the tokens of each row, one after another; labels do not count."""
    return b"".join(map(_hash, examples))


def count_repeated(tested: Iterable[Example], train: Iterable[Example]) -> int:
    """How many rows have the texts of a training row."""
    known = set(map(_hash, train))
    return sum(_hash(example) in known for example in tested)


@dataclass
class SeenRows:
    """Counts, among the rows that pass, those on which a run was trained and the others of its dev split."""

    train: frozenset[bytes]
    dev: frozenset[bytes]
    rows: int = 0
    in_train: int = 0
    in_dev: int = 0

    @classmethod
    def of(cls, hashes: bytes, train_rows: int) -> "SeenRows":
        """From the hashes of the training rows, followed by those of dev."""
        each = [hashes[i : i + _BYTES] for i in range(0, len(hashes), _BYTES)]
        return cls(frozenset(each[:train_rows]), frozenset(each[train_rows:]))

    def watch(self, examples: Iterable[Example]) -> Iterator[Example]:
        for example in examples:
            found = _hash(example)
            self.rows += 1
            self.in_train += found in self.train
            self.in_dev += found in self.dev and found not in self.train
            yield example

    def warning(self, name: str, *, is_dev: bool = False) -> str | None:
        """What a user must know about results on the rows that passed; None if all are new.

        `is_dev` says that they are the dev split, so that it is no news that they chose the best epoch.
        """
        known = [f"{self.in_train:,} in training"] if self.in_train else []
        known += [f"{self.in_dev:,} in dev, which chose the best epoch"] if self.in_dev and not is_dev else []
        if not known:
            return None
        return (
            f"of the {self.rows:,} rows of {name} the model has seen {' and '.join(known)}: "
            "results on them say nothing about new texts"
        )


def _hash(example: Example) -> bytes:
    texts = "\n".join("\t".join(sentence) for sentence in example.sentences)
    return hashlib.blake2b(texts.encode("utf-8", "surrogatepass"), digest_size=_BYTES).digest()
