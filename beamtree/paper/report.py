"""A report: the tables that were asked for from the runs that were named, as Markdown in short and in full
and as one HTML page that needs nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from beamtree.errors import BeamtreeError, nearest
from beamtree.paper.overviews import (
    costs_table,
    coverage_table,
    cut_off_table,
    glance_table,
    runs_table,
    shipped_table,
    splits_table,
    targets_table,
)
from beamtree.paper.published import TABLES
from beamtree.paper.remarks import read_remarks
from beamtree.paper.rows import group_runs, of_task
from beamtree.paper.runs import read_runs
from beamtree.paper.table import Table, write_html_page, write_markdown_page
from beamtree.paper.task_tables import (
    other_splits_table,
    paper_table,
    short_table,
    slice_tables,
    trees_table,
)
from beamtree.printable import without_links

KINDS = ("targets", "summary", "costs", "shipped", "others", "trees", "slices", "splits", "runs", "cut-off")
TABLE_NAMES = (*TABLES, *KINDS)


@dataclass(frozen=True)
class Report:
    tables: Sequence[Table]
    short: Sequence[Table]  # what most readers look for
    notes: Sequence[str]


def build_report(paths: Sequence[Path], wanted: Sequence[str] = (), *, skip: bool = False) -> Report:
    """The tables named, or all that the runs have figures for; the table of runs is always included."""
    for name in wanted:
        if name not in TABLE_NAMES:
            raise BeamtreeError(f"there is no table {name!r}{nearest(name, TABLE_NAMES)}")
    runs, notes = read_runs(paths, skip=skip)
    remarks = read_remarks(paths)
    rows, twins = group_runs(runs, skip=skip)
    with_runs = {key.task for key in rows}
    tasks = [task for task in TABLES if task in with_runs or any(task == cost.task for cost in remarks.costs)]
    rows_of = {task: of_task(task, rows) for task in TABLES}
    found = [("targets", targets_table(remarks.targets, rows))]
    found.append(("summary", coverage_table(tasks, rows, remarks)))
    found += [(task, paper_table(published, rows_of[task], remarks)) for task, published in TABLES.items()]
    found.append(("costs", costs_table(remarks.costs, rows)))
    found.append(("shipped", shipped_table(runs)))
    for task in (task for task in TABLES if task in with_runs):
        published, ours = TABLES[task], rows_of[task]
        found.append(("others", other_splits_table(published, ours)))
        found.append(("trees", trees_table(published, ours, remarks)))
        found += [("slices", table) for table in slice_tables(published, ours)]
        found.append(("splits", splits_table(task, rows)))
    others = [splits_table(task, rows) for task in sorted(with_runs.difference(TABLES))]
    found += [("splits", table) for table in others]
    found.append(("runs", runs_table(runs)))
    found.append(("cut-off", cut_off_table(remarks.cut_off)))
    shown = [
        (kind, table)
        for kind, table in found
        if kind == "runs" or (table.lines and kind in (wanted or {*tasks, *KINDS}))
    ]
    for kind in wanted:
        if kind not in dict(shown):
            notes.append(f"No run has figures for the table {kind!r}.")
    short = [glance_table(tasks, rows, remarks)]
    short += [short_table(TABLES[task], rows_of[task]) for task in tasks if task in (wanted or tasks)]
    short += others if not wanted or "splits" in wanted else []
    tables = [table for _, table in shown]
    return Report(tables, [table for table in short if table.lines], [*notes, *twins])


BESIDE_THE_PAPER = (
    "Rows with the paper's settings. In the tables by task a cell is the median (ListOps) or mean of our "
    "seeds, after a slash the worst of several, in brackets the paper's figure. "
)
IN_FULL = (
    "[In full]({full}): deviations, other settings and splits, trees against gold, every run with its "
    "commands, what missing rows would take."
)


def to_short_markdown(report: Report, command: str, full: str) -> str:
    """What most readers look for; `full` is where the rest is."""
    from_paper = any(table.name.endswith("-short") for table in report.short)
    said = (BESIDE_THE_PAPER if from_paper else "") + IN_FULL.format(full=full)
    return write_markdown_page("Results", command, [said], report.short)


def to_markdown(report: Report, command: str, title: str = "Results") -> str:
    notes = [f"- {without_links(note)}" for note in report.notes]
    return write_markdown_page(title, command, notes, report.tables)


def to_html(report: Report, command: str) -> str:
    return write_html_page("Results", command, report.notes, report.tables)
