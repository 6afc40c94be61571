"""`remarks.toml` in a folder of runs: what the runs cannot say themselves.

It has notes to print below a task's table, and the F1 of trees that were made without a model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from beamtree.data.task import find_task
from beamtree.errors import BeamtreeError, nearest
from beamtree.files.bounded import is_file, shown
from beamtree.files.settings import from_table, read_toml
from beamtree.paper.published import TABLES

FILE = "remarks.toml"
_FORMER = ("targets", "costs", "cut_off", "options")  # lists of earlier versions


@dataclass(frozen=True)
class Note:
    """A note below the table of a task, or below the summary if no task is named."""

    said: str
    task: str = ""


@dataclass(frozen=True)
class Unlearnt:
    """Trees of one shape, made without a model: F1 against the gold trees, in percent by split."""

    task: str
    shape: str  # such as left-branching
    f1: dict[str, Any]


_KINDS: dict[str, type] = {"notes": Note, "trees": Unlearnt}


@dataclass(frozen=True)
class Remarks:
    notes: list[Note] = field(default_factory=list)
    trees: list[Unlearnt] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)  # a sentence about each list that is no longer read

    def on(self, task: str) -> list[str]:
        """The notes on a task; those on all tasks for an empty name."""
        return [note.said for note in self.notes if note.task == task]


def read_remarks(paths: Sequence[Path]) -> Remarks:
    """The remarks of all these folders; a folder without the file has none."""
    remarks = Remarks()
    for path in dict.fromkeys(paths):
        file = path / FILE
        for name, entries in read_toml(file).items() if is_file(file) else ():
            if name in _FORMER:
                remarks.unread.append(f"{file}: {name} are no longer read; use notes instead.")
                continue
            if name not in _KINDS:
                raise BeamtreeError(f"{file}: there is no list {shown(name)}{nearest(name, _KINDS)}")
            if not isinstance(entries, list):
                raise BeamtreeError(f"{file}: {name} must be a list of tables, got {shown(entries)}")
            for number, entry in enumerate(entries, start=1):
                source = f"{file}, entry {number} of {name}"
                getattr(remarks, name).append(_remark(_KINDS[name], entry, source))
    return remarks


def _remark(kind: type, entry: Any, source: str) -> Any:
    if not isinstance(entry, Mapping):
        raise BeamtreeError(f"{source} must be a table, got {shown(entry)}")
    for wanted in fields(kind):
        if wanted.default is MISSING and wanted.name not in entry:
            raise BeamtreeError(f"{source}: {wanted.name} is missing")
    remark: Note | Unlearnt = from_table(kind, entry, source=source)
    if remark.task and remark.task not in TABLES:
        raise BeamtreeError(f"{source}: there is no table {shown(remark.task)}{nearest(remark.task, TABLES)}")
    if isinstance(remark, Unlearnt):
        _check_percentages(remark, source)
    return remark


def _check_percentages(trees: Unlearnt, source: str) -> None:
    splits = find_task(trees.task).splits
    for split, percent in trees.f1.items():
        if split not in splits:
            raise BeamtreeError(f"{source}: there is no split {shown(split)}{nearest(split, splits)}")
        if type(percent) not in (int, float) or not 0 <= percent <= 100:
            raise BeamtreeError(f"{source}: {split} must be a percentage, got {shown(percent)}")
