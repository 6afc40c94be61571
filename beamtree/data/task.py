"""What every task offers to training, evaluation and parsing, whatever its files look like."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

Tokens = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Example:
    sentences: tuple[Tokens, ...]  # one, or two for a pair task
    label: str


@dataclass(frozen=True)
class Task:
    name: str
    tokens: Tokens  # the whole vocabulary of a formal language; empty where it is counted from text
    labels: tuple[str, ...]
    sentences: int  # 1 or 2
    splits: Mapping[str, str]  # split name -> one line on what it is, in the order of the paper's table
    tokenize: Callable[[str], Tokens]  # BeamtreeError names the offending token and its place
    read: Callable[[Path, str], Iterator[Example]]  # (data folder, split); errors name file and line
    read_file: Callable[[Path], Iterator[Example]]  # one file in the task's own format
    gold_merges: Callable[[Tokens], list[int]] | None = None  # n−1 merge positions, as BeamTrees.merges


def find_task(name: str) -> Task:
    """The task of that name: `listops` or `logic`."""
    from beamtree.data.listops import TASK as LISTOPS
    from beamtree.data.logic import TASK as LOGIC
    from beamtree.errors import BeamtreeError

    tasks = {task.name: task for task in (LISTOPS, LOGIC)}
    if name not in tasks:
        raise BeamtreeError(f"there is no task {name!r}; choose one of {', '.join(sorted(tasks))}")
    return tasks[name]
