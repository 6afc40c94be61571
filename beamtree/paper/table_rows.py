"""Rows of the tables: a run belongs to the row of the most similar shipped recipe, labelled with the settings
that differ; a row summarises its seeds.
"""

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from statistics import mean, median, pstdev
from typing import Any

from beamtree.data.task import find_task
from beamtree.errors import BeamtreeError
from beamtree.paper.evaluations import AS_TRAINED, Search, SplitFigures
from beamtree.paper.published import LABELS, OPTIONAL, TABLES
from beamtree.paper.runs import EARLY, UNFINISHED, TrainedRun
from beamtree.paper.table import NOTHING, Line, TableCell
from beamtree.printable import write_json
from beamtree.training.recipe import Recipe, load_recipe
from beamtree.training.recipes import shipped_recipes

# Settings that change neither what is learnt nor how long it may take.
_WITHOUT_EFFECT = (
    "training.seed",
    "training.micro_batch_size",
    "training.deterministic",
    "training.checkpoint_minutes",
    "task.bad_rows",
)

# Changes only rounding: such a run stays in its row, and the table says so.
TF32 = ("training.precision", "tf32")

ABOUT = ("seeds", "epochs", "early stop", "runs")  # the headings of `Row.about`

Changes = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class RowKey:
    """The row of a shipped recipe, with the settings that differ and how the search of the test differed."""

    task: str
    name: str
    changes: Changes = ()
    search: Search = AS_TRAINED

    @property
    def label(self) -> str:
        notes = [f"{key.rpartition('.')[2]} {_show(value)}" for key, value in self.changes]
        if self.search.beam is not None:
            notes.append(f"tested with {self.search.beam} beams")
        if self.search.merged:
            notes.append("equal trees merged in the test")
        return ", ".join([LABELS.get(self.name, f"{self.task}-{self.name}"), *notes])

    @property
    def plain(self) -> bool:
        """Whether it is compared with the paper's row of that name."""
        return not self.changes and self.search == AS_TRAINED

    @property
    def optional(self) -> bool:
        """Whether it has settings other than the paper's."""
        return not self.plain or self.name in OPTIONAL

    @property
    def place(self) -> tuple[int, str, int, str]:
        order = list(LABELS)
        place = order.index(self.name) if self.name in order else len(order)
        return place, self.name, 0 if self.plain else 1, self.label


@dataclass(frozen=True)
class Summary:
    """A row's accuracy on one split, in percent."""

    rounded: float  # as shown, so that figures that look equal are equal
    worst: float  # of its seeds
    text: str
    hint: str


@dataclass(frozen=True)
class Row:
    """The runs that count in a row, in the order of their seeds, and their summary."""

    key: RowKey
    runs: Sequence[TrainedRun] = ()

    @property
    def splits(self) -> set[str]:
        return {split for run in self.runs for e in run.evaluations for split in e.splits}

    def figures(self, split: str) -> list[tuple[TrainedRun, SplitFigures]]:
        return [(run, found) for run in self.runs if (found := run.figures(split)) is not None]

    def centre(self, values: Sequence[float]) -> float:
        """The median or the mean, as the paper summarises the seeds of this task."""
        table = TABLES.get(self.key.task)
        return median(values) if table is not None and table.median else mean(values)

    def summary(self, split: str) -> Summary | None:
        found = self.figures(split)
        if not found:
            return None
        values = [100 * figures.accuracy for _, figures in found]
        centre, worst = self.centre(values), min(values)
        spread = f" ±{pstdev(values):.2f}" if len(values) > 1 else ""
        few = f" ({len(values)} of {len(self.runs)} runs)" if len(values) < len(self.runs) else ""
        each = [
            f"run {run.number}, seed {run.seed}: {100 * figures.accuracy:.2f} of {figures.examples:,}"
            for run, figures in found
        ]
        return Summary(round(centre, 2), worst, f"{centre:.2f}{spread}{few}", "; ".join(each))

    def cells(self, splits: Iterable[str]) -> list[TableCell]:
        found = map(self.summary, splits)
        return [TableCell() if one is None else TableCell(one.text, hint=one.hint) for one in found]

    @property
    def unfinished(self) -> bool:
        """Whether none of these runs finished training."""
        return bool(self.runs) and all(run.end == UNFINISHED for run in self.runs)

    @property
    def label(self) -> str:
        """The row's name for tables without a column that says whether training was cut short."""
        return f"{self.key.label} (unfinished)" if self.unfinished else self.key.label

    @property
    def run_numbers(self) -> TableCell:
        numbers = tuple(run.number for run in self.runs)
        return TableCell(", ".join(map(str, numbers)), runs=numbers)

    @property
    def about(self) -> Line:
        """Seeds, epochs, how many stopped early, and which runs they are."""
        if not self.runs:
            return [NOTHING] * len(ABOUT)
        epochs = sorted(run.epochs for run in self.runs)
        span = str(epochs[0]) if epochs[0] == epochs[-1] else f"{epochs[0]}–{epochs[-1]}"
        early = sum(run.end == EARLY for run in self.runs)
        count = len(self.runs)
        return [str(count), span, f"{early} of {count}", self.run_numbers]


Rows = dict[RowKey, Row]


def row_of(run: TrainedRun) -> RowKey:
    name, changes = _nearest(run.recipe)
    task, encoder = run.recipe.task.name, run.recipe.model.encoder
    row = _row_name(name, task)
    dropped: set[str] = set()
    if _shipped(name)["model.encoder"] != encoder:  # no recipe of the task has this model
        row = encoder
        dropped |= {"model.encoder", *(key for key, value in changes if value is None)}
    if run.end == EARLY and run.epochs <= load_recipe(name).training.max_epochs:
        dropped.add("training.max_epochs")  # it stopped early within either limit
    kept = tuple(change for change in changes if change[0] not in dropped and _has_effect(name, *change))
    if run.own_data is not None:
        kept = (("data", run.own_data), *kept)  # a user's own files are not part of a recipe
    return RowKey(task, row, kept)


def group_runs(runs: Sequence[TrainedRun], *, skip: bool = False) -> tuple[dict[str, Rows], list[str]]:
    """The rows of each task in the tables' order, with their runs by seed; and notes on runs that do not
    count."""
    rows: dict[RowKey, list[TrainedRun]] = {}
    notes = []
    for run in runs:
        key = row_of(run)
        twin = next((other for other in rows.get(key, ()) if other.seed == run.seed), None)
        if twin is not None:
            if not skip:
                raise BeamtreeError(
                    f"{twin.path} and {run.path} are runs of the same recipe and seed: name only one, or "
                    "use --skip to count the first"
                )
            notes.append(f"Not counted: {run.path}, of the same recipe and seed as {twin.path}.")
            continue
        for search in {AS_TRAINED, *(evaluation.search for evaluation in run.evaluations)}:
            evaluations = [one for one in run.evaluations if one.search == search]
            rows.setdefault(replace(key, search=search), []).append(replace(run, evaluations=evaluations))
    by_task: dict[str, Rows] = {}
    for key in sorted(rows, key=lambda key: key.place):
        by_task.setdefault(key.task, {})[key] = Row(key, sorted(rows[key], key=lambda run: run.seed))
    return by_task, notes


def runs_of(rows: Rows) -> list[TrainedRun]:
    return [run for row in rows.values() for run in row.runs]


def in_task_order(task: str, splits: Iterable[str]) -> list[str]:
    order = list(find_task(task).splits)
    return sorted(splits, key=lambda split: (order.index(split) if split in order else len(order), split))


def training_command(recipe: Recipe) -> str | None:
    """The command that trains with exactly this recipe; None if changes to a shipped one cannot yield it."""
    name, changes = _nearest(recipe)
    settings = [
        f"{key}={write_json(value, ensure_ascii=False)}" for key, value in changes if value is not None
    ]
    try:
        if load_recipe(name, settings) != recipe:
            return None
    except BeamtreeError:
        return None
    return shlex.join(["beamtree", "train", name, *(word for text in settings for word in ("--set", text))])


def _nearest(recipe: Recipe) -> tuple[str, Changes]:
    """The most similar shipped recipe, and the settings that differ (None for an option left out).

    The same task comes first, then the same encoder, then few differences. A recipe without the paper's
    settings counts as similar only to a run that does not differ from it in effect.
    """
    mine = _flat(recipe)

    def differences(name: str) -> Changes:
        theirs = _shipped(name)
        keys = [key for key in {**theirs, **mine} if mine.get(key) != theirs.get(key)]
        return tuple((key, mine.get(key)) for key in keys)

    def distance(name: str) -> Any:
        theirs, changes = _shipped(name), differences(name)
        alike = not any(_has_effect(name, *change) for change in changes)
        return (
            theirs["task.name"] != mine["task.name"],
            theirs["model.encoder"] != mine["model.encoder"],
            bool(theirs["model.trees_from"]) != bool(mine["model.trees_from"]),
            _row_name(name, theirs["task.name"]) in OPTIONAL and not alike,
            len(changes),
            len(name),
        )

    best = min(shipped_recipes(), key=distance)
    return best, differences(best)


def _has_effect(recipe: str, key: str, value: Any) -> bool:
    """Whether a run that differs from a shipped recipe in this setting is of another row."""
    if key == "model.trees_from":  # each seed may follow the trees of its own model
        return not (value and _shipped(recipe)[key])
    return key not in _WITHOUT_EFFECT and (key, value) != TF32


def _row_name(recipe: str, task: str) -> str:
    return "ebt-grc" if recipe == task else recipe.removeprefix(f"{task}-")


@cache
def _shipped(name: str) -> dict[str, Any]:
    return _flat(load_recipe(name))


def _flat(recipe: Recipe) -> dict[str, Any]:
    """Settings by their dotted names."""

    def walk(table: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
        for key, value in table.items():
            if isinstance(value, dict):
                yield from walk(value, f"{prefix}{key}.")
            else:
                yield prefix + key, value

    return dict(walk(asdict(recipe), ""))


def _show(value: Any) -> str:
    if value is None:
        return "left at its default"
    return str(value).lower() if isinstance(value, bool) else str(value)
