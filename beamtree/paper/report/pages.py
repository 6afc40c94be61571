"""A report: the tables that were asked for from the runs that were named, as Markdown in short and in full
and as one HTML page that needs nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import beamtree
from beamtree.errors import BeamtreeError, nearest
from beamtree.paper.published import TABLES
from beamtree.paper.report.overviews import (
    costs_table,
    coverage_table,
    cut_off_table,
    glance_table,
    runs_table,
    shipped_table,
    splits_table,
    targets_table,
)
from beamtree.paper.report.remarks import read_remarks
from beamtree.paper.report.rows import group_runs, of_task
from beamtree.paper.report.runs import read_runs
from beamtree.paper.report.tables import (
    other_splits_table,
    paper_table,
    short_table,
    slice_tables,
    trees_table,
)
from beamtree.paper.table import Table
from beamtree.printable import code, printable_lines, without_links

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
            notes.append(f"No run has anything for the table {kind!r}.")
    short = [glance_table(tasks, rows, remarks)]
    short += [short_table(TABLES[task], rows_of[task]) for task in tasks if task in (wanted or tasks)]
    short += others if not wanted or "splits" in wanted else []
    tables = [table for _, table in shown]
    return Report(tables, [table for table in short if table.lines], [*notes, *twins])


TITLE = "Results"

BESIDE_THE_PAPER = (
    "Rows with the paper's settings. In the tables by task a cell is the median (ListOps) or mean of our "
    "seeds, after a slash the worst of several, in brackets the paper's figure. "
)
IN_FULL = (
    "[In full]({full}): deviations, other settings and splits, trees against gold, every run with its "
    "commands, what missing rows would take."
)

_STYLE = """
:root { color-scheme: light dark; --text: #1c1e21; --muted: #6a7078; --page: #ffffff; --line: #dfe2e6;
  --band: #f5f6f8; --best: #0b6e4f; --link: #1f5fbf; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e4e6ea; --muted: #9aa1ab; --page: #15171a; --line: #33373d; --band: #1d2024;
    --best: #5fd3a6; --link: #8ab4f8; }
}
body { margin: 0 auto; padding: 2.5rem 1.5rem; max-width: 88rem; background: var(--page); color: var(--text);
  font: 14px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.7rem; margin: 0 0 .3rem; }
h2 { font-size: 1.15rem; margin: 2.6rem 0 .2rem; }
p { margin: .2rem 0 .8rem; color: var(--muted); max-width: 60rem; }
ul { margin: 0; padding-left: 1.2rem; color: var(--muted); max-width: 60rem; }
a { color: var(--link); text-decoration: none; }
a:hover, a:focus { text-decoration: underline; }
.scroll { margin-bottom: .8rem; overflow-x: auto; border: 1px solid var(--line); border-radius: 8px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .38rem .6rem; text-align: right; white-space: nowrap; }
th { font-weight: 600; background: var(--band); border-bottom: 1px solid var(--line); }
.word { text-align: left; }
tr.row td { border-top: 1px solid var(--line); }
tr.published td { color: var(--muted); padding-top: 0; font-size: .9em; }
tr:target td { background: var(--band); }
td.best { font-weight: 700; }
tr:not(.published) td.best { color: var(--best); }
td[title]:not([title=""]) { cursor: help; }
code { font: .88em ui-monospace, monospace; }
"""


def to_short_markdown(report: Report, command: str, full: str) -> str:
    """What most readers look for; `full` is where the rest stands."""
    from_paper = any(table.name.endswith("-short") for table in report.short)
    said = (BESIDE_THE_PAPER if from_paper else "") + IN_FULL.format(full=full)
    return _markdown_page(report.short, [said], TITLE, command)


def to_markdown(report: Report, command: str, title: str = TITLE) -> str:
    notes = [f"- {without_links(note)}" for note in report.notes]
    return _markdown_page(report.tables, notes, title, command)


def _markdown_page(tables: Sequence[Table], notes: Sequence[str], title: str, command: str) -> str:
    lines = [f"# {title}", "", f"Written by {code(command)} (beamtree {beamtree.__version__})."]
    if notes:
        lines += ["", *notes]
    for table in tables:
        lines += ["", f"## {without_links(table.title)}", "", without_links(table.caption), ""]
        lines += table.to_markdown()
        if table.remarks:
            lines += ["", *(f"- {without_links(sentence)}" for sentence in table.remarks)]
    return "\n".join(lines) + "\n"


def to_html(report: Report, command: str) -> str:
    sections = "\n".join(table.to_html() for table in report.tables)
    notes = "".join(f"<p>{escape(note)}</p>\n" for note in report.notes)
    page = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{TITLE}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{TITLE}</h1>
<p>Written by <code>{escape(command)}</code> (beamtree {beamtree.__version__}).</p>
{notes}{sections}
</body>
</html>
"""
    return printable_lines(page)
