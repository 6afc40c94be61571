"""What every task offers to training, evaluation and parsing, whatever its files look like."""

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from beamtree.data.bad_rows import BadRows
from beamtree.errors import BeamtreeError
from beamtree.files.bounded import shown

Tokens = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Example:
    sentences: tuple[Tokens, ...]  # one, or two for a pair task
    label: str


class Reader(Protocol):
    def __call__(self, folder: Path, split: str, bad_rows: BadRows | None = None) -> Iterator[Example]: ...


class FileReader(Protocol):
    def __call__(self, path: Path, bad_rows: BadRows | None = None) -> Iterator[Example]: ...


@dataclass(frozen=True)
class CountRule:
    """Which words of a language's text are known: those seen `least` times in the splits `counted`."""

    least: int
    counted: tuple[str, ...]
    most: int = 50_000  # words at all, the most frequent ones
    seen_in: str | None = None  # what tells how often a word is seen in training, if not the training split


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
    token_pattern: str = r"\S+"  # what a token is in a text, unreadable ones included
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
            return importlib.import_module(TASKS["own"]).restore, (list(self.labels), dict(self.own))
        return super().__reduce__()


TASKS = {
    "listops": "beamtree.data.listops.task",
    "logic": "beamtree.data.logic.task",
    "sst5": "beamtree.data.corpora.sst5",
    "imdb": "beamtree.data.corpora.imdb",
    "snli": "beamtree.data.corpora.snli",
    "mnli": "beamtree.data.corpora.mnli",
    "qqp": "beamtree.data.corpora.qqp",
    "own": "beamtree.data.own",
}


def find_task(name: str) -> Task:
    """The task of that name, one of `TASKS`."""
    if name not in TASKS:
        raise BeamtreeError(f"there is no task {shown(name)}; choose one of {', '.join(TASKS)}")
    task: Task = importlib.import_module(TASKS[name]).TASK
    return task
