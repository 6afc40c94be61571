"""A report: the tables asked for from the runs named, as Markdown in short and in full and as one HTML page.

A task's tables are made here: the paper's with ours beside, in full and in short, other splits, trees against
gold, the sweep of d_s.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from beamtree.errors import BeamtreeError, nearest
from beamtree.paper import overviews
from beamtree.paper.published import COPIED, LABELS, TABLES, PaperTable, group
from beamtree.paper.remarks import COSTS, Remarks, read_remarks
from beamtree.paper.runs import data_note, marked_title, read_runs
from beamtree.paper.table import NOTHING, Table, TableCell, line, write_html_page, write_markdown_page
from beamtree.paper.table_rows import (
    ABOUT,
    Row,
    RowKey,
    Rows,
    Summary,
    group_runs,
    in_task_order,
    of_task,
    runs_of,
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
    found = [("targets", overviews.targets_table(remarks.targets, rows))]
    found.append(("summary", overviews.coverage_table(tasks, rows, remarks)))
    found += [(task, paper_table(published, rows_of[task], remarks)) for task, published in TABLES.items()]
    found.append(("costs", overviews.costs_table(remarks.costs, rows)))
    found.append(("shipped", overviews.shipped_table(runs)))
    for task in (task for task in TABLES if task in with_runs):
        published, ours = TABLES[task], rows_of[task]
        found.append(("others", other_splits_table(published, ours)))
        found.append(("trees", trees_table(published, ours, remarks)))
        found += [("slices", table) for table in slice_tables(published, ours)]
        found.append(("splits", overviews.splits_table(task, rows)))
    others = [overviews.splits_table(task, rows) for task in sorted(with_runs.difference(TABLES))]
    found += [("splits", table) for table in others]
    found.append(("runs", overviews.runs_table(runs)))
    found.append(("cut-off", overviews.cut_off_table(remarks.cut_off)))
    shown = [
        (kind, table)
        for kind, table in found
        if kind == "runs" or (table.lines and kind in (wanted or {*tasks, *KINDS}))
    ]
    for kind in wanted:
        if kind not in dict(shown):
            notes.append(f"No run has figures for the table {kind!r}.")
    short = [overviews.glance_table(tasks, rows, remarks)]
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


def paper_table(table: PaperTable, ours: Rows, remarks: Remarks) -> Table:
    """Ours with the published figures beneath each, and ours that were not published."""
    columns = [
        {key: found for key, row in ours.items() if (found := row.summary(split)) is not None}
        for split in table.columns
    ]
    filled = {key for column in columns for key in column}
    keys = {*filled, *(key for key in ours if key.plain), *(RowKey(table.task, name) for name in table.rows)}
    lines = []
    for key in sorted(keys, key=lambda key: key.place):
        cells = [_ours(key, column) for column in columns]
        row = ours.get(key, Row(key))
        marks = ["ours", *(["option"] if key.optional else []), *(["unfinished"] if row.unfinished else [])]
        lines.append(line(key.label, ", ".join(marks), *cells, *row.about))
        if key.plain and key.name in table.rows:
            cells = [_published(table, key.name, split) for split in table.columns]
            source, seeds = ("paper, copied", NOTHING) if key.name in COPIED else ("paper", "3")
            lines.append(line("", source, *cells, seeds, *[NOTHING] * 3, published=True))
    caption = (
        f"Trained on {table.training}. Accuracy in %: {table.statistic} of the seeds ± population standard "
        f"deviation, beside the paper's Table {table.number}. Bold: best of ours, best of theirs; options "
        f"and the gold-tree model do not compete"
        f"{', nor do interaction models with sentence encoders' if 'gau' in table.rows else ''}."
    )
    runs = runs_of(ours)
    caption = " ".join(filter(None, (caption, data_note(table.task, runs))))
    headers = ["model", "", *table.columns.values(), *ABOUT]
    said = _footnotes(table, ours, filled, remarks)
    title = marked_title(table, runs)
    return Table(table.task, title, caption, headers, lines, words=range(2), remarks=said)


def _footnotes(table: PaperTable, ours: Rows, filled: Collection[RowKey], remarks: Remarks) -> list[str]:
    """`filled` are the rows of ours that have a figure in this table."""
    said = remarks.on(table.task)
    members = {one.number: one.run for row in ours.values() for one in row.members}
    rounded = [number for number, run in sorted(members.items()) if run.recipe.training.precision == "tf32"]
    if rounded:
        numbers = ", ".join(map(str, rounded))
        said.append(f"Trained with products in tf32 instead of float32: runs {numbers}.")
    options = {setting for key in ours for setting, _ in key.changes}
    options |= {"beam" for key in ours if key.beam is not None}
    options |= {"merge_equal_trees" for key in ours if key.merged}
    for option in remarks.options:
        if option.name in options:
            said.append(f"Option {option.name.rpartition('.')[2]}: {option.found}.")
    empty = [name for name in table.rows if RowKey(table.task, name) not in filled]
    priced = [cost.row for cost in remarks.costs if cost.task == table.task and cost.row in empty]
    elsewhere = [key.label for key in ours if not key.plain and key not in filled]
    sentences = {
        f"Not run because of the time it would take (see '{COSTS}')": ", ".join(
            LABELS[name] for name in priced
        ),
        "Not evaluated": ", ".join(LABELS[name] for name in empty if name not in priced),
        "Not evaluated on these splits": "; ".join(elsewhere),
    }
    return said + [f"{why}: {which}." for why, which in sentences.items() if which]


def short_table(table: PaperTable, ours: Rows) -> Table:
    """The rows with the paper's settings that have figures: ours, the worst seed, and the paper's."""
    usual = {key: row for key, row in ours.items() if not key.optional}
    lines = []
    for row in usual.values():
        cells = [_in_short(row, split, table) for split in table.columns]
        if any(cell.text != NOTHING for cell in cells):
            lines.append(line(row.label, *cells, str(len(row.members))))
    note = data_note(table.task, runs_of(usual))
    caption = " ".join(filter(None, (f"Trained on {table.training}.", note)))
    headers = ["model", *table.columns.values(), "seeds"]
    return Table(f"{table.task}-short", table.title, caption, headers, lines)


def _in_short(row: Row, split: str, table: PaperTable) -> TableCell:
    found = row.summary(split)
    if found is None:
        return TableCell()
    published = table.rows.get(row.key.name, {}).get(split)
    several = f" / {found.worst:.2f}" if len(row.members) > 1 else ""
    beside = f" ({published.centre})" if published is not None else ""
    return TableCell(f"{found.rounded:.2f}{several}{beside}", hint=found.hint)


def _ours(key: RowKey, column: dict[RowKey, Summary]) -> TableCell:
    if key not in column:
        return TableCell()
    rivals = [
        other.rounded
        for rival, other in column.items()
        if rival.plain and group(rival.name) == group(key.name)
    ]
    competes = key.plain and group(key.name) is not None and len(rivals) > 1
    return TableCell(
        column[key].text, best=competes and column[key].rounded == max(rivals), hint=column[key].hint
    )


def _published(table: PaperTable, name: str, split: str) -> TableCell:
    figure = table.rows[name].get(split)
    if figure is None:
        return TableCell()
    rivals = [
        figures[split].value
        for rival, figures in table.rows.items()
        if split in figures and group(rival) == group(name)
    ]
    return TableCell(str(figure), best=bool(group(name)) and figure.value == max(rivals))


def other_splits_table(table: PaperTable, ours: Rows) -> Table:
    """Splits that the paper's table does not have: dev, fresh draws, originals of edited texts, own files."""
    measured = {split for row in ours.values() for split in row.splits}
    splits = in_task_order(table.task, measured.difference(table.columns))
    lines = [
        line(key.label, *row.cells(splits), *row.about)
        for key, row in ours.items()
        if row.splits.intersection(splits)
    ]
    caption = f"Accuracy in %: {table.statistic} of the seeds ± population standard deviation."
    name, title = f"{table.task}-others", f"{table.title}: other splits"
    return Table(name, title, caption, ["model", *splits, *ABOUT], lines)


def trees_table(table: PaperTable, ours: Rows, remarks: Remarks) -> Table:
    """Bracketing F1 against the gold trees, and how many trees are gold's; below, trees of no model."""
    lines = []
    for row in ours.values():
        cells = [_trees(row, split) for split in table.columns]
        if any(cell.text != NOTHING for cell in cells):
            lines.append(line(row.label, *cells, row.run_numbers))
    for unlearnt in remarks.trees if lines else ():
        if unlearnt.task == table.task:
            f1 = [unlearnt.f1.get(split) for split in table.columns]
            shown = [NOTHING if one is None else f"{one:.2f}" for one in f1]
            lines.append(line(f"{unlearnt.shape}, no model", *shown, NOTHING))
    caption = (
        "Unlabelled bracketing F1 of the best trees against the gold trees in %, over the whole split: spans "
        "of two tokens or more, except the whole sentence. In brackets the share of sentences whose tree is "
        "the gold tree. Sentences of one or two tokens have only one tree and are left out. "
        f"{table.statistic.capitalize()} of the seeds."
    )
    headers = ["model", *table.columns.values(), "runs"]
    return Table(f"{table.task}-trees", f"{table.title}: trees", caption, headers, lines)


def _trees(row: Row, split: str) -> TableCell:
    found = [figures for _, figures in row.figures(split)]
    scores = [100 * figures.f1 for figures in found if figures.f1 is not None]
    exact = [100 * figures.exact for figures in found if figures.exact is not None]
    if not scores or not exact:
        return TableCell()
    return TableCell(f"{row.centre(scores):.2f} ({row.centre(exact):.1f})")


def slice_tables(table: PaperTable, ours: Rows) -> list[Table]:
    """For every encoder whose runs differ in d_s and in nothing else: accuracy by d_s."""
    sweeps: dict[RowKey, list[tuple[int, int, Row]]] = {}
    for key, row in ours.items():
        model = row.members[0].run.recipe.model
        if not model.encoder.startswith(("ebt-grc", "egt-grc")):
            continue
        whole = model.encoder.endswith("-noslice")
        width = model.options.get("slice_size", 64) if not whole else model.d_model
        hidden = model.options.get("scorer_hidden", model.d_model if whole else 64)
        if type(width) is not int or type(hidden) is not int:  # a stranger's recipe may say anything
            continue
        family = key.name.removesuffix("-noslice-64").removesuffix("-noslice")
        swept = ("model.options.slice_size", "model.options.scorer_hidden")
        others = tuple(change for change in key.changes if change[0] not in swept)
        sweeps.setdefault(replace(key, name=family, changes=others), []).append(
            (min(width, model.d_model), hidden, row)
        )
    tables = []
    for sweep, entries in sorted(sweeps.items(), key=lambda item: item[0].place):
        if len({width for width, _, _ in entries}) < 2:
            continue
        lines = [
            line(str(width), str(hidden), *row.cells(table.columns), *row.about)
            for width, hidden, row in sorted(entries, key=lambda entry: entry[:2])
        ]
        caption = (
            f"Accuracy in % by the number of features d_s of a child that the scorer sees (d: −slice); "
            f"{table.statistic} of the seeds ± population standard deviation."
        )
        headers = ["d_s", "scorer width", *table.columns.values(), *ABOUT]
        name = f"{table.task}-slices" + (f"-{sweep.name}" if sweep.name != "ebt-grc" else "")
        tables.append(Table(name, f"{table.title}: {sweep.label} by d_s", caption, headers, lines, words=()))
    return tables
