"""A published corpus: a table of its splits, whose files are named as releases name them.

A release can so be unpacked and read as it is. What is special to a corpus is said by a class of its own.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from beamtree.data.rows import RowFormat
from beamtree.data.task import REFUSE, BadRows, CountRule, Example, Task, Tokens, require_split
from beamtree.data.tokenizers import MAX_WORDS
from beamtree.files.lines import find_file


@dataclass(frozen=True)
class SplitFile:
    """One split: what it is, the names its file may have, the corpus to get it from, the lengths kept."""

    description: str
    names: tuple[str, ...]
    corpus: str
    published: int | None = None  # examples, in the paper's corpus
    longest: int = MAX_WORDS
    shortest: int = 1


@dataclass(frozen=True)
class Corpus:
    """A corpus whose splits are files in rows."""

    name: str
    labels: Tokens
    format: RowFormat
    splits: Mapping[str, SplitFile]
    words: CountRule

    def read(self, folder: Path, split: str, bad_rows: BadRows = REFUSE) -> Iterator[Example]:
        return self.read_table(folder, self.file_of(split), bad_rows)

    def read_file(self, path: Path, bad_rows: BadRows = REFUSE) -> Iterator[Example]:
        """A table or JSON lines with the columns of the format."""
        return self.format.read(path, bad_rows)

    def file_of(self, split: str) -> SplitFile:
        return require_split(self.name, split, self.splits)

    def read_table(self, folder: Path, file: SplitFile, bad_rows: BadRows) -> Iterator[Example]:
        """The examples of a split that is one file in rows."""
        path = find_file(folder, file.names)
        return self.format.read(path, bad_rows, shortest=file.shortest, longest=file.longest)

    def task(self) -> Task:
        return Task(
            name=self.name,
            tokens=(),
            labels=self.labels,
            sentences=len(self.format.sentences),
            splits={name: file.description for name, file in self.splits.items()},
            tokenize=lambda text: self.format.tokenize(self.format.prepare(text)),
            read=self.read,
            read_file=self.read_file,
            words=self.words,
            corpora={name: file.corpus for name, file in self.splits.items()},
            published={name: file.published for name, file in self.splits.items() if file.published},
        )


def released(name: str, folder: str) -> tuple[str, str]:
    """A file's names where a release was unpacked here, or into its own folder."""
    return name, f"{folder}/{name}"
