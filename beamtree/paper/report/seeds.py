"""What the seeds of a row say together: median or mean with deviation, epochs, how their training ended."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, median, pstdev

from beamtree.data.task import find_task
from beamtree.paper.report.layout import Cell
from beamtree.paper.report.rows import Member, RowKey
from beamtree.paper.report.runs import EARLY, UNFINISHED

Rows = dict[RowKey, list[Member]]
ABOUT = ("seeds", "epochs", "early stop", "runs")  # the headings of `about`


@dataclass(frozen=True)
class Summary:
    """A row's accuracy on one split, in percent."""

    rounded: float  # as shown, so that ties of what is shown are ties
    text: str
    hint: str


def summarise(members: Sequence[Member], split: str, by_median: bool) -> Summary | None:
    found = [(member, member.figures(split)) for member in members]
    values = [100 * figures.accuracy for _, figures in found if figures is not None]
    if not values:
        return None
    centre = median(values) if by_median else mean(values)
    spread = f" ±{pstdev(values):.2f}" if len(values) > 1 else ""
    few = f" ({len(values)} of {len(members)} runs)" if len(values) < len(members) else ""
    each = [
        f"run {member.number}, seed {member.run.seed}: {100 * figures.accuracy:.2f} of {figures.examples:,}"
        for member, figures in found
        if figures is not None
    ]
    return Summary(round(centre, 2), f"{centre:.2f}{spread}{few}", "; ".join(each))


def measured_splits(task: str, rows: Rows) -> list[str]:
    """Every split on which one of these rows was measured."""
    members = [member for row in rows.values() for member in row]
    return in_task_order(task, {split for one in members for e in one.evaluations for split in e.splits})


def in_task_order(task: str, splits: Iterable[str]) -> list[str]:
    order = list(find_task(task).splits)
    return sorted(splits, key=lambda split: (order.index(split) if split in order else len(order), split))


def about(members: Sequence[Member]) -> list[Cell]:
    """Seeds, epochs, how many stopped early, and which runs they are."""
    if not members:
        return [Cell()] * len(ABOUT)
    epochs = sorted(member.run.epochs for member in members)
    span = str(epochs[0]) if epochs[0] == epochs[-1] else f"{epochs[0]}–{epochs[-1]}"
    early = sum(member.run.end == EARLY for member in members)
    return [
        Cell(str(len(members))),
        Cell(span),
        Cell(f"{early} of {len(members)}"),
        run_numbers(members),
    ]


def unfinished(members: Sequence[Member]) -> bool:
    """Whether none of these trainings came to its end."""
    return bool(members) and all(member.run.end == UNFINISHED for member in members)


def marked_label(key: RowKey, members: Sequence[Member]) -> Cell:
    """The row's name, where no column tells that its training was cut short."""
    return Cell(f"{key.label} (unfinished)" if unfinished(members) else key.label)


def run_numbers(members: Sequence[Member]) -> Cell:
    numbers = tuple(member.number for member in members)
    return Cell(", ".join(map(str, numbers)), runs=numbers)
