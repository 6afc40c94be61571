"""What is said below a task's table: remarks of the folder, rounding, options, why rows are empty."""

from collections.abc import Collection

from beamtree.paper.report.listings import COSTS
from beamtree.paper.report.published import LABELS, PaperTable
from beamtree.paper.report.remarks import Remarks
from beamtree.paper.report.rows import RowKey
from beamtree.paper.report.seeds import Rows


def footnotes(table: PaperTable, ours: Rows, filled: Collection[RowKey], remarks: Remarks) -> list[str]:
    """`filled` are the rows of ours that have a figure in this table."""
    return [
        *(note.said for note in remarks.notes if note.task == table.task),
        *_on_rounding(ours),
        *_on_options(ours, remarks),
        *_on_empty_rows(table, filled, remarks),
        *_on_other_splits(ours, filled),
    ]


def _on_rounding(ours: Rows) -> list[str]:
    members = [one for row in ours.values() for one in row if one.run.recipe.training.precision == "tf32"]
    numbers = ", ".join(map(str, sorted({one.number for one in members})))
    return [f"Trained with products in tf32 instead of float32: runs {numbers}."] if numbers else []


def _on_options(ours: Rows, remarks: Remarks) -> list[str]:
    """How the options in these rows were found, where that is known."""
    used = {setting for key in ours for setting, _ in key.changes}
    used |= {"beam" for key in ours if key.beam is not None}
    used |= {"merge_equal_trees" for key in ours if key.merged}
    return [
        f"Option {one.name.rpartition('.')[2]}: {one.found}." for one in remarks.options if one.name in used
    ]


def _on_empty_rows(table: PaperTable, filled: Collection[RowKey], remarks: Remarks) -> list[str]:
    """Which published rows have no figures of ours, and where it is told what a run would cost."""
    empty = [name for name in table.rows if RowKey(table.task, name) not in filled]
    priced = [cost.row for cost in remarks.costs if cost.task == table.task and cost.row in empty]
    sentences = {
        f"No figures, for the time that a run would take (see '{COSTS}')": priced,
        "Not run to an evaluation": [name for name in empty if name not in priced],
    }
    return [
        f"{why}: {', '.join(LABELS[name] for name in names)}." for why, names in sentences.items() if names
    ]


def _on_other_splits(ours: Rows, filled: Collection[RowKey]) -> list[str]:
    labels = [key.label for key in ours if not key.plain and key not in filled]
    return [f"Not evaluated on these splits: {'; '.join(labels)}."] if labels else []
