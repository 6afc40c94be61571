"""What run folders cannot say themselves: `remarks.toml`, beside them in a folder of runs.

It names the accuracies that were aimed at, what a row without a run would cost, runs that were cut off, how
options were found, how good trees made without a model are, and notes to print below a task's table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

from beamtree.data.task import find_task
from beamtree.errors import BeamtreeError, nearest
from beamtree.files.bounded import is_file, shown
from beamtree.files.settings import from_table, read_toml
from beamtree.paper.published import LABELS, TABLES

FILE = "remarks.toml"
COSTS = "Rows without figures"  # the title of the table of costs


@dataclass(frozen=True)
class RowRemark:
    """A remark on one row of one task's table."""

    task: str
    row: str  # as in the names of recipes


@dataclass(frozen=True)
class Target(RowRemark):
    """The least that a row is to reach, in percent by split."""

    accuracy: dict[str, Any]


@dataclass(frozen=True)
class Cost(RowRemark):
    """What one run would take: measured on some steps, with the number of epochs that others took."""

    milliseconds: float = field(metadata={"least": 1e-6})  # of a training step
    steps: int = field(metadata={"least": 1})  # in an epoch
    epochs: int = field(metadata={"least": 1})
    measured: str  # where and how

    @property
    def minutes(self) -> float:
        return self.milliseconds / 1000 * self.steps * self.epochs / 60


@dataclass(frozen=True)
class CutOff(RowRemark):
    """Runs that were started together and ended from outside, as many as seeds are named."""

    seeds: str  # such as 0, 1, 2
    epochs: str  # completed, such as 4 or 9–10
    why: str


@dataclass(frozen=True)
class Unlearnt:
    """Trees of one shape, made without a model: F1 against the gold trees, in percent by split."""

    task: str
    shape: str  # such as left-branching
    f1: dict[str, Any]


@dataclass(frozen=True)
class Option:
    """A setting other than the paper's (or `beam`, `merge_equal_trees` of a test) and how it was found."""

    name: str  # such as training.averaging
    found: str


@dataclass(frozen=True)
class Note:
    """Said below the table of a task, or below the summary if none is named."""

    said: str
    task: str = ""


@dataclass(frozen=True)
class Remarks:
    targets: Sequence[Target] = ()
    costs: Sequence[Cost] = ()
    cut_off: Sequence[CutOff] = ()
    trees: Sequence[Unlearnt] = ()
    options: Sequence[Option] = ()
    notes: Sequence[Note] = ()

    def on(self, task: str) -> list[str]:
        """What is said of a task, or of all of them."""
        return [note.said for note in self.notes if note.task == task]


_KINDS: dict[str, type] = {name: get_args(hint)[0] for name, hint in get_type_hints(Remarks).items()}


def read_remarks(paths: Sequence[Path]) -> Remarks:
    """The remarks of all folders named, none where there is no such file."""
    found: dict[str, list[Any]] = {name: [] for name in _KINDS}
    for path in dict.fromkeys(paths):
        file = path / FILE
        for name, entries in read_toml(file).items() if is_file(file) else ():
            if name not in _KINDS:
                raise BeamtreeError(f"{file}: there is no list {shown(name)}{nearest(name, _KINDS)}")
            if not isinstance(entries, list):
                raise BeamtreeError(f"{file}: {name} must be a list of tables, got {shown(entries)}")
            found[name] += [
                _remark(_KINDS[name], entry, f"{file}, entry {number} of {name}")
                for number, entry in enumerate(entries, start=1)
            ]
    return Remarks(**found)


def _remark(kind: type, entry: Any, source: str) -> Any:
    if not isinstance(entry, Mapping):
        raise BeamtreeError(f"{source} must be a table, got {shown(entry)}")
    for wanted in fields(kind):
        if wanted.default is MISSING and wanted.name not in entry:
            raise BeamtreeError(f"{source}: {wanted.name} is missing")
    remark: Any = from_table(kind, entry, source=source)
    task, row = (str(entry.get(key)) for key in ("task", "row"))
    if "task" in entry and task not in TABLES:
        raise BeamtreeError(f"{source}: there is no table {shown(task)}{nearest(task, TABLES)}")
    if "row" in entry and row not in LABELS:
        raise BeamtreeError(f"{source}: there is no row {shown(row)}{nearest(row, LABELS)}")
    for percentages in (entry.get("accuracy", {}), entry.get("f1", {})):
        _check_percentages(task, percentages, source)
    return remark


def _check_percentages(task: str, by_split: Mapping[str, Any], source: str) -> None:
    for split, percent in by_split.items():
        splits = find_task(task).splits
        if split not in splits:
            raise BeamtreeError(f"{source}: there is no split {shown(split)}{nearest(split, splits)}")
        if type(percent) not in (int, float) or not 0 <= percent <= 100:
            raise BeamtreeError(f"{source}: {split} must be a percentage, got {shown(percent)}")
