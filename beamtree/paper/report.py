"""A report: the chosen tables of the given runs, as Markdown, short and in full, and as one HTML page.

The tables that compare our figures with the paper's are made here, the others in `details.py`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

from beamtree.errors import BeamtreeError, nearest
from beamtree.paper import details
from beamtree.paper.published import COPIED, LABELS, TABLES, PaperTable, group
from beamtree.paper.remarks import Remarks, read_remarks
from beamtree.paper.runs import data_note, is_learnt_from_subset, marked_title, read_runs
from beamtree.paper.table import NOTHING, Line, Table, TableCell, write_html_page, write_markdown_page
from beamtree.paper.table_rows import ABOUT, Row, RowKey, Rows, group_runs, runs_of
from beamtree.printable import without_links

TABLE_NAMES = ("summary", *TABLES, "shipped", "others", "trees", "splits", "runs")


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
    runs, left_out = read_runs(paths, skip=skip)
    remarks = read_remarks(paths)
    ours, twins = group_runs(runs, skip=skip)
    tasks = [task for task in TABLES if task in ours]
    glance = glance_table({task: ours[task] for task in tasks}, remarks)
    found = [("summary", glance)]
    found += [
        (task, paper_table(TABLES[task], ours.get(task, {}), remarks))
        for task in TABLES
        if task in (wanted or tasks)
    ]
    found.append(("shipped", details.shipped_table(runs)))
    for task in tasks:
        found.append(("others", details.other_splits_table(TABLES[task], ours[task])))
        found.append(("trees", details.trees_table(TABLES[task], ours[task], remarks)))
        found.append(("splits", details.splits_table(task, ours[task])))
    not_papers = [details.splits_table(task, ours[task]) for task in sorted(ours.keys() - TABLES.keys())]
    found += [("splits", table) for table in not_papers]
    found.append(("runs", details.runs_table(runs)))
    shown = [
        (kind, table)
        for kind, table in found
        if kind == "runs" or (table.lines and kind in (wanted or TABLE_NAMES))
    ]
    empty = [f"No run has figures for the table {kind!r}." for kind in wanted if kind not in dict(shown)]
    comparable = [task for task in tasks if not is_learnt_from_subset(runs_of(ours[task]))]
    in_short = [task for task in tasks if task in (wanted or comparable)]
    short = [glance, *(short_table(TABLES[task], ours[task]) for task in in_short)]
    short += not_papers if not wanted or "splits" in wanted else []
    return Report(
        [table for _, table in shown],
        [table for table in short if table.lines],
        [*left_out, *empty, *twins, *remarks.unread],
    )


BESIDE_THE_PAPER = (
    "How close do runs with the paper's settings come to its figures? Tables by task show the median "
    "(ListOps) or mean of our seeds / the worst of several (the paper's figure). "
)
IN_FULL = (
    "[In full]({full}): deviations, other settings and splits, trees against gold, every run with its "
    "commands."
)


def to_short_markdown(report: Report, command: str, full: str) -> str:
    """The tables that most readers look for; `full` is the page with the rest."""
    from_paper = any(table.name.endswith("-short") for table in report.short)
    said = (BESIDE_THE_PAPER if from_paper else "") + IN_FULL.format(full=full)
    return write_markdown_page("Results", command, [said], report.short)


def to_markdown(report: Report, command: str, title: str = "Results") -> str:
    notes = [f"- {without_links(note)}" for note in report.notes]
    return write_markdown_page(title, command, notes, report.tables)


def to_html(report: Report, command: str) -> str:
    return write_html_page("Results", command, report.notes, report.tables)


def glance_table(ours: Mapping[str, Rows], remarks: Remarks) -> Table:
    """A line for every row of the paper measured with its settings: does it reach the paper's figures?"""
    lines: list[Line] = []
    for task, rows in ours.items():
        table = TABLES[task]
        usual = {key: row for key, row in rows.items() if key.plain and key.name in table.rows}
        title = marked_title(table, runs_of(usual))
        measured = [cells for row in usual.values() if (cells := _at_a_glance(row, table))]
        for cells in measured or [["no figures yet", *[NOTHING] * 5]]:
            lines.append([title, *cells])
            title = ""  # it holds for the lines below as well
    caption = (
        "Mean accuracy in % over the paper's test splits: the paper's, ours (median or mean of the seeds) "
        "and our worst seed's. A split is at the paper's level if our figure is at least the paper's minus "
        "its standard deviation; not counted where ours learn from a subset of the task's training data."
    )
    headers = ["task", "model", "paper", "ours", "worst seed", "seeds", "splits at the paper's level"]
    without = [table.title for task, table in TABLES.items() if task not in ours]
    said = remarks.on("") + ([f"No run yet: {', '.join(without)}."] if without else [])
    return Table("summary", "At a glance", caption, headers, lines, words=range(2), remarks=said)


def _at_a_glance(row: Row, table: PaperTable) -> Line:
    """Empty for a row that has no split in common with the paper."""
    measured = [
        (split, ours, paper)
        for split, paper in table.rows[row.key.name].items()
        if (ours := row.summary(split)) is not None
    ]
    if not measured:
        return []
    seeds = [[one.figures(split) for split, _, _ in measured] for one in row.runs]
    whole = [mean(figures.accuracy for figures in seed if figures) for seed in seeds if all(seed)]
    reached = sum(ours.rounded >= paper.least for _, ours, paper in measured)
    return [
        row.label,
        f"{mean(paper.value for _, _, paper in measured):.1f}",
        f"{mean(ours.rounded for _, ours, _ in measured):.1f}",
        f"{100 * min(whole):.1f}" if len(whole) > 1 else NOTHING,
        str(len(row.runs)),
        NOTHING if is_learnt_from_subset(row.runs) else f"{reached} of {len(measured)}",
    ]


def paper_table(table: PaperTable, ours: Rows, remarks: Remarks) -> Table:
    """Our rows with the published figures below each, and our rows that the paper does not have."""
    published = {
        split: {name: row[split].value for name, row in table.rows.items() if split in row}
        for split in table.columns
    }
    competing = {
        split: {
            key.name: found.rounded
            for key, row in ours.items()
            if key.plain and (found := row.summary(split)) is not None
        }
        for split in table.columns
    }
    filled = {key for key, row in ours.items() if row.splits.intersection(table.columns)}
    keys = {*filled, *(key for key in ours if key.plain), *(RowKey(table.task, name) for name in table.rows)}
    lines: list[Line] = []
    for key in sorted(keys, key=lambda key: key.place):
        row = ours.get(key, Row(key))
        best = [key.plain and _is_best(key.name, competing[split]) for split in table.columns]
        cells = [replace(cell, best=top) for cell, top in zip(row.cells(table.columns), best, strict=True)]
        marks = ["ours", *(["option"] if key.optional else []), *(["unfinished"] if row.unfinished else [])]
        lines.append([key.label, ", ".join(marks), *cells, *row.about])
        if key.plain and key.name in table.rows:
            figures = table.rows[key.name]
            cells = [
                TableCell(str(figures.get(split, NOTHING)), best=_is_best(key.name, published[split]))
                for split in table.columns
            ]
            source, seeds = ("paper, copied", NOTHING) if key.name in COPIED else ("paper", "3")
            lines.append(["", source, *cells, seeds, *[NOTHING] * 3])
    caption = (
        f"Trained on {table.training}. Accuracy in %: {table.statistic} of the seeds ± population standard "
        f"deviation, with the paper's Table {table.number}. Bold: best of ours, best of theirs; options "
        f"and the gold-tree model do not compete"
        f"{', nor do interaction models with sentence encoders' if 'gau' in table.rows else ''}."
    )
    runs = runs_of(ours)
    caption = " ".join(filter(None, (caption, data_note(runs))))
    headers = ["model", "", *table.columns.values(), *ABOUT]
    said = _footnotes(table, ours, filled, remarks)
    title = marked_title(table, runs)
    return Table(table.task, title, caption, headers, lines, words=range(2), remarks=said)


def _is_best(name: str, column: Mapping[str, float]) -> bool:
    """Whether a row has the highest figure of its group, if it has competitors."""
    rivals = [figure for rival, figure in column.items() if group(rival) == group(name)]
    return group(name) is not None and len(rivals) > 1 and column.get(name) == max(rivals)


def _footnotes(table: PaperTable, ours: Rows, filled: Collection[RowKey], remarks: Remarks) -> list[str]:
    """`filled` are the rows of ours that have a figure in this table."""
    said = remarks.on(table.task)
    rounded = {run.number for run in runs_of(ours) if run.recipe.training.precision == "tf32"}
    if rounded:
        numbers = ", ".join(map(str, sorted(rounded)))
        said.append(f"Trained with matrix products in tf32 instead of float32: runs {numbers}.")
    if empty := [LABELS[name] for name in table.rows if RowKey(table.task, name) not in filled]:
        said.append(f"Not evaluated: {', '.join(empty)}.")
    if elsewhere := [key.label for key in ours if not key.plain and key not in filled]:
        said.append(f"Not evaluated on these splits: {'; '.join(elsewhere)}.")
    return said


def short_table(table: PaperTable, ours: Rows) -> Table:
    """The rows with the paper's settings that have figures: ours, the worst seed, and the paper's."""
    usual = {key: row for key, row in ours.items() if not key.optional}
    lines: list[Line] = []
    for row in usual.values():
        cells = [_in_short(row, split, table) for split in table.columns]
        if any(cell.text != NOTHING for cell in cells):
            lines.append([row.label, *cells, str(len(row.runs))])
    note = data_note(runs_of(usual))
    caption = " ".join(filter(None, (f"Trained on {table.training}.", note)))
    headers = ["model", *table.columns.values(), "seeds"]
    return Table(f"{table.task}-short", table.title, caption, headers, lines)


def _in_short(row: Row, split: str, table: PaperTable) -> TableCell:
    found = row.summary(split)
    if found is None:
        return TableCell()
    published = table.rows.get(row.key.name, {}).get(split)
    several = f" / {found.worst:.2f}" if len(row.runs) > 1 else ""
    beside = f" ({published.centre})" if published is not None else ""
    return TableCell(f"{found.rounded:.2f}{several}{beside}", hint=found.hint)
