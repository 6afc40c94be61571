"""A report: the tables that were asked for, from the runs that were named."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from beamtree.errors import BeamtreeError
from beamtree.report.paper import TABLES
from beamtree.report.rows import group_runs, row_of
from beamtree.report.runs import read_runs
from beamtree.report.tables import (
    Table,
    paper_table,
    runs_table,
    slice_tables,
    splits_table,
    trees_table,
)
from beamtree.settings import nearest

KINDS = ("trees", "slices", "splits", "runs")
TABLE_NAMES = (*TABLES, *KINDS)


@dataclass(frozen=True)
class Report:
    tables: Sequence[Table]
    notes: Sequence[str]


def build_report(paths: Sequence[Path], wanted: Sequence[str] = (), *, skip: bool = False) -> Report:
    """The tables named, or all that the runs have something for; that of the runs is always there."""
    for name in wanted:
        if name not in TABLE_NAMES:
            raise BeamtreeError(f"there is no table {name!r}{nearest(name, TABLE_NAMES)}")
    runs, notes = read_runs(paths, skip=skip)
    rows, twins = group_runs(runs, skip=skip)
    tasks = list(dict.fromkeys(key.task for key in rows))
    tables: list[Table] = []
    for task, published in TABLES.items():
        if task in wanted or (not wanted and task in tasks):
            tables.append(paper_table(published, rows))
        if task not in tasks:
            continue
        further = {
            "trees": [trees_table(published, rows)],
            "slices": slice_tables(published, rows),
            "splits": [splits_table(task, rows)],
        }
        for kind, found in further.items():
            if kind in wanted or not wanted:
                tables += [table for table in found if table.lines]
    for kind in wanted:
        if kind in KINDS[:-1] and not any(kind in table.name for table in tables):
            notes.append(f"No run has anything for the table {kind!r}.")
    tables.append(runs_table(runs, lambda run: row_of(run).label))
    return Report(tables, [*notes, *twins])
