"""In short: which targets are met, and how much of the paper's tables was measured and reached."""

from collections.abc import Sequence

from beamtree.data.task import find_task
from beamtree.paper.report.data_notes import data_marks
from beamtree.paper.report.layout import NOTHING, Cell, Line, Table
from beamtree.paper.report.published import LABELS, OPTIONAL, TABLES
from beamtree.paper.report.remarks import Remarks, Target
from beamtree.paper.report.rows import RowKey
from beamtree.paper.report.runs import EARLY
from beamtree.paper.report.seeds import Rows, summarise


def targets_table(targets: Sequence[Target], rows: Rows) -> Table:
    """Each target beside what was reached by the recipe as shipped, and by how much."""
    found: dict[bool, list[Line]] = {False: [], True: []}  # of the paper's settings, of options
    for target in targets:
        table = TABLES[target.task]
        members = rows.get(RowKey(target.task, target.row), [])
        for split, least in target.accuracy.items():
            ours = summarise(members, split, table.median)
            published = table.rows.get(OPTIONAL.get(target.row, target.row), {}).get(split)
            verdict = "not measured"
            if ours is not None:
                verdict = "met" if ours.rounded >= least else f"short by {least - ours.rounded:.2f}"
            found[target.row in OPTIONAL].append(
                Line(
                    [
                        Cell(f"{table.title}: {LABELS[target.row]}"),
                        Cell(table.columns.get(split, split)),
                        Cell(verdict, best=verdict == "met"),
                        Cell(f"{least:g}"),
                        Cell() if ours is None else Cell(ours.text, hint=ours.hint),
                        Cell(str(published) if published else NOTHING),
                    ]
                )
            )
    met = {of_options: [line.cells[2].best for line in some] for of_options, some in found.items()}
    caption = f"{sum(met[False])} of {len(met[False])} met with the paper's settings"
    if met[True]:
        caption += f"; {sum(met[True])} of {len(met[True])} with options, chosen by looking at these splits"
    caption += ". Accuracy in %, median (ListOps) or mean of the seeds."
    lines = [*found[False], *found[True]]
    headers = ["row", "split", "target", "at least", "ours", "paper"]
    return Table("targets", "Targets", caption, headers, lines, words=3)


def coverage_table(tasks: Sequence[str], rows: Rows, remarks: Remarks) -> Table:
    """Of the paper's rows and figures of each task: how many were measured, how many reached."""
    lines = []
    for task in tasks:
        table = TABLES[task]
        ours = {name: rows[RowKey(task, name)] for name in table.rows if RowKey(task, name) in rows}
        measured = [
            (name, found.rounded, figure)
            for name, members in ours.items()
            for split, figure in table.rows[name].items()
            if (found := summarise(members, split, table.median)) is not None
        ]
        reached = sum(value >= figure.value - figure.deviation for _, value, figure in measured)
        runs = [member.run for members in ours.values() for member in members]
        early = sum(run.end == EARLY for run in runs)
        cells = [
            f"{len({name for name, *_ in measured})} of {len(table.rows)}",
            f"{len(measured)} of {sum(map(len, table.rows.values()))}",
            f"{reached} of {len(measured)}" if measured else NOTHING,
            str(len(runs)),
            f"{early} of {len(runs)}" if runs else NOTHING,
        ]
        alike = "as in the paper" if find_task(task).words else "by the paper's rules"
        data = ", ".join(data_marks(task, runs)) or (alike if runs else NOTHING)
        lines.append(Line([Cell(table.title), Cell(data), *map(Cell, cells)]))
    caption = (
        "Reached: at least the paper's figure less one of its standard deviations; rows with the settings of "
        "the shipped recipes only."
    )
    headers = ["task", "data", "rows measured", "figures measured", "reached", "runs", "early stop"]
    said = [note.said for note in remarks.notes if not note.task]
    return Table("summary", "In short", caption, headers, lines, words=2, remarks=said)
