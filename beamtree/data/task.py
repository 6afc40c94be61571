"""What every task offers to training, evaluation and parsing, whatever its files look like.

Rows of a data file that cannot be used are told with file and line, counted, and refused or skipped.
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
Range = tuple[int, int]  # of a text's characters, half-open
Line = TypeVar("Line")
Value = TypeVar("Value")

BAD_ROWS = ("refuse", "skip")
_SHOWN = 5  # of each file
_MOST = 1_000_000  # of each file


@dataclass
class BadRows:
    """Every reader tells this of the rows it cannot use: the first one ends the reading, or none does."""

    skip: bool = False
    # File -> line -> what is wrong, of the first lines.
    found: dict[Path, dict[int, str]] = field(default_factory=dict)

    @classmethod
    def chosen(cls, choice: str) -> "BadRows":
        if choice not in BAD_ROWS:
            raise BeamtreeError(f"choose what to do with bad rows: {' or '.join(BAD_ROWS)}, got {choice!r}")
        return cls(skip=choice == "skip")

    def meet(self, path: Path, line: int, reason: str) -> None:
        """Refuse the row, or count it and let the reader go on."""
        if not self.skip:
            remedy = "to leave such rows out: train --set task.bad_rows=skip, eval --bad-rows skip"
            raise BeamtreeError(f"{path}, line {line}: {reason} ({remedy})")
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
        """What `read` makes of numbered rows; one of which it raises a BeamtreeError is bad."""
        for line, row in rows:
            try:
                found = read(row)
            except BeamtreeError as error:
                self.meet(path, line, str(error))
            else:
                yield found

    @property
    def count(self) -> int:
        return sum(map(len, self.found.values()))

    def report(self) -> Iterator[str]:
        """One sentence for each file that had any."""
        for path, lines in self.found.items():
            first = [f"line {line}: {reason}" for line, reason in list(lines.items())[:_SHOWN]]
            more = "; …" if len(lines) > _SHOWN else ""
            rows = "row was" if len(lines) == 1 else "rows were"
            yield f"{path}: {len(lines):,} bad {rows} skipped ({'; '.join(first)}{more})"


REFUSE = BadRows()  # the first bad row ends the reading


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
    """Which words of a language's text are known: those seen `least` times in the splits `counted`."""

    least: int
    counted: tuple[str, ...]
    most: int = 50_000  # words at all, the most frequent ones
    seen_in: str | None = None  # what tells how often a word is seen in training, if not the training split


def split_at_blanks(text: str) -> list[Range]:
    return [match.span() for match in re.finditer(r"\S+", text)]


@dataclass(frozen=True)
class Task:
    name: str
    tokens: Tokens  # the whole vocabulary of a formal language; empty where it is counted from text
    labels: tuple[str, ...]
    sentences: int  # 1 or 2
    splits: Mapping[str, str]  # split name -> one line on what it is, in the order of the paper's table
    tokenize: Callable[[str], Tokens]  # UnreadableTextError names the offending token and its place
    read: Reader  # errors name file and line; bad rows are refused if nothing else is said
    read_file: FileReader  # one file in the task's own format
    gold_merges: Callable[[Tokens], list[int]] | None = None  # n−1 merge positions, as BeamTrees.merges
    answer: Callable[[tuple[Tokens, ...]], str] | None = None  # the label, where the language determines it
    texts_in: Callable[[Tokens], list[Range]] | None = (
        None  # the parts of a sentence that are texts themselves
    )
    find_words: Callable[[str], list[Range]] = split_at_blanks  # where tokens stand, unreadable ones too
    words: CountRule | None = None  # of a language whose words are counted
    corpora: Mapping[str, str] = field(default_factory=dict)  # split -> the corpus a user gets it from
    published: Mapping[str, int] = field(default_factory=dict)  # split -> examples, in the paper's corpora
    own: Mapping[str, Any] | None = None  # of a user's own data: what a model's config says of their rows

    def __reduce__(self) -> Any:
        """By name, or from a model's config: so that a model can go to another process, though functions that
        have no name cannot."""
        if self.name in TASKS and find_task(self.name) is self:
            return find_task, (self.name,)
        if self.own is not None:
            return pkgutil.resolve_name("beamtree.data.own:restore"), (list(self.labels), dict(self.own))
        return super().__reduce__()


TASKS = {  # name -> where its Task is, imported when it is asked for
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
    """The task of that name, one of `TASKS`."""
    if name not in TASKS:
        raise BeamtreeError(f"there is no task {shown(name)}; choose one of {', '.join(TASKS)}")
    task: Task = pkgutil.resolve_name(TASKS[name])
    return task


def require_split(task: str, split: str, splits: Mapping[str, Value]) -> Value:
    """What a task has under the name of a split."""
    if split not in splits:
        raise BeamtreeError(f"{task} has no split {split!r}{nearest(split, splits)}")
    return splits[split]
