"""The interface of a task to training, evaluation and parsing, whatever its files look like.

A row of a data file that cannot be used is either an error with file and line, or counted and skipped.
"""

import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from beamtree.errors import BeamtreeError, nearest
from beamtree.files.bounded import shown

Tokens = tuple[str, ...]
Range = tuple[int, int]  # half-open: of the characters of a text, or of tokens
Line = TypeVar("Line")
Value = TypeVar("Value")

BAD_ROWS = ("refuse", "skip")
_SHOWN = 5  # bad rows of each file
_MOST = 1_000_000  # bad rows of each file


@dataclass
class BadRows:
    """What to do with rows that cannot be used: stop at the first one, or skip and count them all."""

    skip: bool = False
    option: str = ""  # of the present command, with which it skips bad rows
    # File -> line -> what is wrong with it; the reason is kept only for the first few lines.
    found: dict[Path, dict[int, str]] = field(default_factory=dict)

    @classmethod
    def chosen(cls, choice: str, option: str = "") -> "BadRows":
        if choice not in BAD_ROWS:
            raise BeamtreeError(f"bad_rows must be {' or '.join(BAD_ROWS)}, got {choice!r}")
        return cls(choice == "skip", option)

    def add(self, path: Path, line: int, reason: str) -> None:
        """Raise for a bad row, or count it so that the reader can go on."""
        if not self.skip:
            remedy = f" (to leave such rows out: {self.option})" if self.option else ""
            raise BeamtreeError(f"{path}, line {line}: {reason}{remedy}")
        lines = self.found.setdefault(path, {})  # a file may be read for more than one split
        if line not in lines and len(lines) == _MOST:
            raise BeamtreeError(
                f"{path}: more than {_MOST:,} rows cannot be used, so check its format; "
                f"the last one: {reason}"
            )
        lines.setdefault(line, reason if len(lines) < _SHOWN else "")

    def sort_out(
        self, path: Path, rows: Iterable[tuple[int, Line]], read: Callable[[Line], Value]
    ) -> Iterator[Value]:
        """Yield `read(row)` for each numbered row; a row for which it raises a BeamtreeError is bad."""
        for line, row in rows:
            try:
                found = read(row)
            except BeamtreeError as error:
                self.add(path, line, str(error))
            else:
                yield found

    @property
    def count(self) -> int:
        return sum(map(len, self.found.values()))

    def report(self) -> Iterator[str]:
        """Yield a sentence for each file that has bad rows."""
        for path, lines in self.found.items():
            first = [f"line {line}: {reason}" for line, reason in list(lines.items())[:_SHOWN]]
            more = "; …" if len(lines) > _SHOWN else ""
            rows = "row was" if len(lines) == 1 else "rows were"
            yield f"{path}: {len(lines):,} bad {rows} skipped ({'; '.join(first)}{more})"


REFUSE = BadRows()  # the first bad row raises an error


@dataclass(frozen=True, slots=True)
class Example:
    sentences: tuple[Tokens, ...]  # one, or two for a pair task
    label: str


class Reader(Protocol):
    def __call__(self, folder: Path, split: str, bad_rows: BadRows = REFUSE) -> Iterator[Example]: ...


class FileReader(Protocol):
    def __call__(self, path: Path, bad_rows: BadRows = REFUSE) -> Iterator[Example]: ...


@dataclass(frozen=True)
class CountRule:
    """Which words of a text become known: those that occur `least` times in the splits `counted`."""

    least: int
    counted: tuple[str, ...]
    most: int = 50_000  # known words; the most frequent are kept
    seen_in: str | None = None  # the split whose counts stand for training, if not the training split


def split_at_blanks(text: str) -> list[Range]:
    """Return where the words between white space are."""
    return [match.span() for match in re.finditer(r"\S+", text)]


@dataclass(frozen=True)
class Task:
    name: str
    tokens: Tokens  # the whole vocabulary of a formal language; empty if words are counted from text
    labels: tuple[str, ...]
    sentences: int  # 1 or 2
    splits: Mapping[str, str]  # split -> a one-line description, in the order of the paper's table
    tokenize: Callable[[str], Tokens]  # an UnreadableTextError names the wrong token and its place
    read: Reader  # a split in a folder; errors name file and line
    read_file: FileReader  # one file in the task's own format
    gold_merges: Callable[[Tokens], list[int]] | None = None  # n−1 merge positions, like BeamTrees.merges
    answer: Callable[[tuple[Tokens, ...]], str] | None = None  # the label, if the language determines it
    texts_in: Callable[[Tokens], list[Range]] | None = None  # parts of a sentence that are texts themselves
    find_words: Callable[[str], list[Range]] = split_at_blanks  # where tokens are, unreadable ones included
    words: CountRule | None = None  # if words are counted
    corpora: Mapping[str, str] = field(default_factory=dict)  # split -> the corpus it comes from
    published: Mapping[str, int] = field(default_factory=dict)  # split -> number of examples in the paper
    own: Mapping[str, Any] | None = None  # of a user's own data: the row format as in a model's config

    def __reduce__(self) -> Any:
        """Pickle by name, or as what a model's config stores: some of the functions cannot be pickled."""
        if self.name in TASKS and find_task(self.name) is self:
            return find_task, (self.name,)
        if self.own is not None:
            return pkgutil.resolve_name("beamtree.data.own:restore"), (list(self.labels), dict(self.own))
        return super().__reduce__()


TASKS = {  # name -> where its Task is; imported on first use
    "listops": "beamtree.data.listops.splits:TASK",
    "logic": "beamtree.data.logic:TASK",
    "filters": "beamtree.data.filters:TASK",
    "sst5": "beamtree.data.corpora:SST5",
    "imdb": "beamtree.data.corpora:IMDB",
    "snli": "beamtree.data.corpora:SNLI",
    "mnli": "beamtree.data.corpora:MNLI",
    "qqp": "beamtree.data.corpora:QQP",
    "own": "beamtree.data.own:TASK",
}


def find_task(name: str) -> Task:
    """Return the task of that name, one of `TASKS`."""
    if name not in TASKS:
        raise BeamtreeError(f"there is no task {shown(name)}; choose one of {', '.join(TASKS)}")
    task: Task = pkgutil.resolve_name(TASKS[name])
    return task


def require_split(task: str, split: str, splits: Mapping[str, Value]) -> Value:
    """Return the entry of a split; raises BeamtreeError, naming `task`, if there is none."""
    if split not in splits:
        raise BeamtreeError(f"{task} has no split {split!r}{nearest(split, splits)}")
    return splits[split]
