"""Rows as tables: the paper's with ours beside, trees against gold, the sweep of d_s."""

from collections.abc import Collection, Iterable, Sequence
from statistics import mean, median

from beamtree.paper.published import COPIED, LABELS, PaperTable, group
from beamtree.paper.report.remarks import COSTS, Remarks
from beamtree.paper.report.rows import (
    ABOUT,
    Member,
    RowKey,
    Rows,
    Summary,
    about,
    marked_label,
    measured_splits,
    run_numbers,
    summarise,
    unfinished,
)
from beamtree.paper.report.runs import data_marks, data_note
from beamtree.paper.table import NOTHING, Cell, Line, Table


def paper_table(table: PaperTable, rows: Rows, remarks: Remarks) -> Table:
    """Ours with the published figures beneath each, and ours that were not published."""
    ours = {key: members for key, members in rows.items() if key.task == table.task}
    columns = [
        {key: found for key in ours if (found := summarise(ours[key], split, table.median)) is not None}
        for split in table.columns
    ]
    filled = {key for column in columns for key in column}
    keys = {*filled, *(key for key in ours if key.plain), *(RowKey(table.task, name) for name in table.rows)}
    lines = []
    for key in sorted(keys, key=lambda key: key.place):
        cells = [_ours(key, column) for column in columns]
        members = ours.get(key, [])
        marks = ["ours", *(["option"] if key.optional else [])]
        marks += ["unfinished"] if unfinished(members) else []
        lines.append(Line([Cell(key.label), Cell(", ".join(marks)), *cells, *about(members)]))
        if key.plain and key.name in table.rows:
            cells = [_published(table, key.name, split) for split in table.columns]
            source, seeds = ("paper, copied", NOTHING) if key.name in COPIED else ("paper", "3")
            lines.append(Line([Cell(""), Cell(source), *cells, Cell(seeds), *[Cell()] * 3], published=True))
    runs = [member.run for members in ours.values() for member in members]
    caption = (
        f"Trained on {table.training}. Accuracy in %: {table.statistic} of the seeds ± population standard "
        f"deviation, beside the paper's Table {table.number}. Bold: best of ours, best of theirs; options "
        f"and the gold-tree model do not compete"
        f"{', nor do interaction models with sentence encoders' if 'gau' in table.rows else ''}."
    )
    caption = " ".join(filter(None, (caption, data_note(table.task, runs))))
    marks = data_marks(table.task, runs)
    title = f"{table.title} ({', '.join(marks)})" if marks else table.title
    headers = ["model", "", *table.columns.values(), *ABOUT]
    said = footnotes(table, ours, filled, remarks)
    return Table(table.task, title, caption, headers, lines, words=range(2), remarks=said)


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


def short_table(table: PaperTable, rows: Rows) -> Table:
    """The rows with the paper's settings that have figures: ours, the worst seed, and the paper's."""
    lines = []
    ours = {key: members for key, members in rows.items() if key.task == table.task and not key.optional}
    for key in sorted(ours, key=lambda key: key.place):
        members = ours[key]
        cells = [_in_short(table, key.name, members, split) for split in table.columns]
        if any(cell.text != NOTHING for cell in cells):
            lines.append(Line([marked_label(key, members), *cells, Cell(str(len(members)))]))
    runs = [member.run for members in ours.values() for member in members]
    caption = " ".join(filter(None, (f"Trained on {table.training}.", data_note(table.task, runs))))
    headers = ["model", *table.columns.values(), "seeds"]
    return Table(f"{table.task}-short", table.title, caption, headers, lines)


def _in_short(table: PaperTable, name: str, members: Sequence[Member], split: str) -> Cell:
    found = summarise(members, split, table.median)
    if found is None:
        return Cell()
    worst = min(100 * figures.accuracy for one in members if (figures := one.figures(split)) is not None)
    published = table.rows.get(name, {}).get(split)
    several = f" / {worst:.2f}" if len(members) > 1 else ""
    beside = f" ({published.centre})" if published is not None else ""
    return Cell(f"{found.rounded:.2f}{several}{beside}", hint=found.hint)


def _ours(key: RowKey, column: dict[RowKey, Summary]) -> Cell:
    if key not in column:
        return Cell()
    rivals = [
        other.rounded
        for rival, other in column.items()
        if rival.plain and group(rival.name) == group(key.name)
    ]
    competes = key.plain and group(key.name) is not None and len(rivals) > 1
    return Cell(column[key].text, best=competes and column[key].rounded == max(rivals), hint=column[key].hint)


def _published(table: PaperTable, name: str, split: str) -> Cell:
    figure = table.rows[name].get(split)
    if figure is None:
        return Cell()
    rivals = [
        figures[split].value
        for rival, figures in table.rows.items()
        if split in figures and group(rival) == group(name)
    ]
    return Cell(str(figure), best=bool(group(name)) and figure.value == max(rivals))


def other_splits_table(table: PaperTable, rows: Rows) -> Table:
    """Splits that the paper's table does not have: dev, fresh draws, originals of edited texts, own files."""
    ours = {key: members for key, members in rows.items() if key.task == table.task}
    splits = [split for split in measured_splits(table.task, ours) if split not in table.columns]
    lines = []
    for key, members in ours.items():
        cells = _figure_cells(members, splits, table.median)
        if any(cell.text != NOTHING for cell in cells):
            lines.append(Line([Cell(key.label), *cells, *about(members)]))
    caption = f"Accuracy in %: {table.statistic} of the seeds ± population standard deviation."
    name, title = f"{table.task}-others", f"{table.title}: other splits"
    return Table(name, title, caption, ["model", *splits, *ABOUT], lines)


def trees_table(table: PaperTable, rows: Rows, remarks: Remarks) -> Table:
    """Bracketing F1 against the gold trees, and how many trees are gold's; below, trees of no model."""
    lines = []
    for key, members in rows.items():
        cells = [_trees(members, split, table.median) for split in table.columns]
        if key.task == table.task and any(cell.text != NOTHING for cell in cells):
            lines.append(Line([marked_label(key, members), *cells, run_numbers(members)]))
    for unlearnt in remarks.trees if lines else ():
        if unlearnt.task == table.task:
            f1 = [unlearnt.f1.get(split) for split in table.columns]
            cells = [Cell() if one is None else Cell(f"{one:.2f}") for one in f1]
            lines.append(Line([Cell(f"{unlearnt.shape}, no model"), *cells, Cell()]))
    caption = (
        "Unlabelled bracketing F1 of the best trees against the gold trees in %, over the whole split: spans "
        "of two tokens or more, but for that of the whole sentence. In brackets the share of sentences whose "
        "tree is the gold tree. Sentences of one or two tokens, which have one tree, are left out. "
        f"{table.statistic.capitalize()} of the seeds."
    )
    headers = ["model", *table.columns.values(), "runs"]
    return Table(f"{table.task}-trees", f"{table.title}: trees", caption, headers, lines)


def _trees(members: Sequence[Member], split: str, by_median: bool) -> Cell:
    found = [figures for figures in (member.figures(split) for member in members) if figures is not None]
    scores = [100 * figures.f1 for figures in found if figures.f1 is not None]
    exact = [100 * figures.exact for figures in found if figures.exact is not None]
    if not scores or not exact:
        return Cell()
    centre = median if by_median else mean
    return Cell(f"{centre(scores):.2f} ({centre(exact):.1f})")


def slice_tables(table: PaperTable, rows: Rows) -> list[Table]:
    """For every encoder whose runs differ in d_s and in nothing else: accuracy by d_s."""
    sweeps: dict[RowKey, list[tuple[int, int, RowKey]]] = {}
    for key, members in rows.items():
        model = members[0].run.recipe.model
        if key.task != table.task or not model.encoder.startswith(("ebt-grc", "egt-grc")):
            continue
        whole = model.encoder.endswith("-noslice")
        width = model.d_model if whole else min(model.options.get("slice_size", 64), model.d_model)
        hidden = model.options.get("scorer_hidden", model.d_model if whole else 64)
        family = key.name.removesuffix("-noslice-64").removesuffix("-noslice")
        others = tuple(
            change
            for change in key.changes
            if change[0] not in ("model.options.slice_size", "model.options.scorer_hidden")
        )
        sweep = RowKey(key.task, family, others, key.beam, key.merged)
        sweeps.setdefault(sweep, []).append((width, hidden, key))
    tables = []
    for sweep, entries in sorted(sweeps.items(), key=lambda item: item[0].place):
        if len({width for width, _, _ in entries}) < 2:
            continue
        lines = [
            Line(
                [
                    Cell(str(width)),
                    Cell(str(hidden)),
                    *_figure_cells(rows[key], table.columns, table.median),
                    *about(rows[key]),
                ]
            )
            for width, hidden, key in sorted(entries, key=lambda entry: entry[:2])
        ]
        caption = (
            f"Accuracy in % by the number of features d_s of a child that the scorer sees (d: −slice); "
            f"{table.statistic} of the seeds ± population standard deviation."
        )
        headers = ["d_s", "scorer width", *table.columns.values(), *ABOUT]
        name = f"{table.task}-slices" + (f"-{sweep.name}" if sweep.name != "ebt-grc" else "")
        tables.append(Table(name, f"{table.title}: {sweep.label} by d_s", caption, headers, lines, words=()))
    return tables


def _figure_cells(members: Sequence[Member], splits: Iterable[str], by_median: bool) -> list[Cell]:
    found = [summarise(members, split, by_median) for split in splits]
    return [Cell() if one is None else Cell(one.text, hint=one.hint) for one in found]
