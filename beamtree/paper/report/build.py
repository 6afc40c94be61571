"""A report: the tables that were asked for, from the runs that were named."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from beamtree.errors import BeamtreeError, nearest
from beamtree.paper.report.layout import Table
from beamtree.paper.report.listings import costs_table, cut_off_table, runs_table, splits_table
from beamtree.paper.report.published import TABLES
from beamtree.paper.report.remarks import read_remarks
from beamtree.paper.report.rows import group_runs
from beamtree.paper.report.runs import read_runs
from beamtree.paper.report.shipped import shipped_table
from beamtree.paper.report.summary import coverage_table, targets_table
from beamtree.paper.report.tables import (
    other_splits_table,
    paper_table,
    short_table,
    slice_tables,
    trees_table,
)

KINDS = ("targets", "summary", "costs", "shipped", "others", "trees", "slices", "splits", "runs", "cut-off")
TABLE_NAMES = (*TABLES, *KINDS)


@dataclass(frozen=True)
class Report:
    tables: Sequence[Table]
    short: Sequence[Table]  # what most readers look for
    notes: Sequence[str]


def build_report(paths: Sequence[Path], wanted: Sequence[str] = (), *, skip: bool = False) -> Report:
    """The tables named, or all that the runs have something for; that of the runs is always there."""
    for name in wanted:
        if name not in TABLE_NAMES:
            raise BeamtreeError(f"there is no table {name!r}{nearest(name, TABLE_NAMES)}")
    runs, notes = read_runs(paths, skip=skip)
    remarks = read_remarks(paths)
    rows, twins = group_runs(runs, skip=skip)
    with_runs = {key.task for key in rows}
    tasks = [task for task in TABLES if task in with_runs or any(task == cost.task for cost in remarks.costs)]
    in_short = coverage_table(tasks, rows, remarks)
    found = [("targets", targets_table(remarks.targets, rows)), ("summary", in_short)]
    found += [(task, paper_table(published, rows, remarks)) for task, published in TABLES.items()]
    found.append(("costs", costs_table(remarks.costs, rows)))
    found.append(("shipped", shipped_table(runs)))
    for published in (TABLES[task] for task in TABLES if task in with_runs):
        found.append(("others", other_splits_table(published, rows)))
        found.append(("trees", trees_table(published, rows, remarks)))
        found += [("slices", table) for table in slice_tables(published, rows)]
        found.append(("splits", splits_table(published.task, rows)))
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
            notes.append(f"No run has anything for the table {kind!r}.")
    short = [in_short, *(short_table(TABLES[task], rows) for task in tasks if task in (wanted or tasks))]
    short += others if not wanted or "splits" in wanted else []
    tables = [table for _, table in shown]
    return Report(tables, [table for table in short if table.lines], [*notes, *twins])
