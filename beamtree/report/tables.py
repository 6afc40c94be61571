"""Runs as tables: the paper's with ours beside, trees against gold, the sweep of d_s, splits, all runs."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, median, pstdev

from beamtree.report.data_notes import data_note
from beamtree.report.paper import COPIED, TABLES, PaperTable, group
from beamtree.report.rows import Member, RowKey, training_command
from beamtree.report.runs import EARLY, TrainedRun

NOTHING = "–"
Rows = dict[RowKey, list[Member]]


@dataclass(frozen=True)
class Cell:
    text: str = NOTHING
    best: bool = False
    code: bool = False
    hint: str = ""  # shown on demand where the format can
    runs: tuple[int, ...] = ()  # the numbers of runs that the text names


@dataclass(frozen=True)
class Line:
    cells: Sequence[Cell]
    published: bool = False  # the paper's figures, not ours
    run: int | None = None  # the run that this line describes


@dataclass(frozen=True)
class Table:
    name: str
    title: str
    caption: str
    headers: Sequence[str]
    lines: Sequence[Line]
    words: int = 1  # columns of words, aligned left; figures follow


@dataclass(frozen=True)
class _Summary:
    """What the seeds of a row say about one split."""

    rounded: float
    text: str
    hint: str


def paper_table(table: PaperTable, rows: Rows) -> Table:
    """Ours with the published figures beneath each, and ours that were not published."""
    ours = {key: members for key, members in rows.items() if key.task == table.task}
    keys = sorted({*ours, *(RowKey(table.task, name) for name in table.rows)}, key=lambda key: key.place)
    columns = [
        {key: found for key in ours if (found := _summary(ours[key], split, table.median)) is not None}
        for split in table.columns
    ]
    lines = []
    for key in keys:
        cells = [_ours(key, column) for column in columns]
        lines.append(Line([Cell(key.label), Cell("ours"), *cells, *_about(ours.get(key, ()))]))
        if key.plain and key.name in table.rows:
            cells = [_published(table, key.name, split) for split in table.columns]
            source, seeds = ("paper, copied", NOTHING) if key.name in COPIED else ("paper", "3")
            lines.append(Line([Cell(""), Cell(source), *cells, Cell(seeds), *[Cell()] * 3], published=True))
    caption = (
        f"Trained on {table.training}. Accuracy in %: {table.statistic} of the seeds ± population standard "
        f"deviation, beside the paper's Table {table.number}. Bold: best of ours, best of theirs; the "
        f"gold-tree model does not compete"
        f"{', nor do interaction models with sentence encoders' if 'gau' in table.rows else ''}."
    )
    runs = [member.run for members in ours.values() for member in members]
    caption = " ".join(filter(None, (caption, data_note(table.task, runs))))
    headers = ["model", "", *table.columns.values(), "seeds", "epochs", "early stop", "runs"]
    return Table(table.task, table.title, caption, headers, lines, words=2)


def _ours(key: RowKey, column: dict[RowKey, _Summary]) -> Cell:
    if key not in column:
        return Cell()
    rivals = [other.rounded for rival, other in column.items() if group(rival.name) == group(key.name)]
    best = bool(group(key.name)) and len(rivals) > 1 and column[key].rounded == max(rivals)
    return Cell(column[key].text, best=best, hint=column[key].hint)


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


def trees_table(table: PaperTable, rows: Rows) -> Table:
    """Bracketing F1 against the gold trees, and how many trees are the gold ones."""
    lines = []
    for key, members in rows.items():
        cells = [_trees(members, split, table.median) for split in table.columns]
        if key.task == table.task and any(cell.text != NOTHING for cell in cells):
            lines.append(Line([Cell(key.label), *cells, _run_numbers(members)]))
    caption = (
        "Unlabelled bracketing F1 of the best trees against the gold trees in %, and in brackets the share "
        f"of sentences whose tree is the gold tree; {table.statistic} of the seeds."
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
                    *_figure_cells(table, rows[key]),
                    *_about(rows[key]),
                ]
            )
            for width, hidden, key in sorted(entries, key=lambda entry: entry[:2])
        ]
        caption = (
            f"Accuracy in % by the number of features d_s of a child that the scorer sees (d: −slice); "
            f"{table.statistic} of the seeds ± population standard deviation."
        )
        headers = ["d_s", "scorer width", *table.columns.values(), "seeds", "epochs", "early stop", "runs"]
        name = f"{table.task}-slices" + (f"-{sweep.name}" if sweep.name != "ebt-grc" else "")
        tables.append(Table(name, f"{table.title}: {sweep.label} by d_s", caption, headers, lines, words=0))
    return tables


def _figure_cells(table: PaperTable, members: Sequence[Member]) -> list[Cell]:
    found = [_summary(members, split, table.median) for split in table.columns]
    return [Cell() if one is None else Cell(one.text, hint=one.hint) for one in found]


def splits_table(task: str, rows: Rows) -> Table:
    """Every run on every split it was evaluated on, with Wilson's interval."""
    chosen = {key: members for key, members in rows.items() if key.task == task}
    measured = {
        split
        for members in chosen.values()
        for member in members
        for evaluation in member.evaluations
        for split in evaluation.splits
    }
    splits = [*_in_task_order(task, measured)]
    lines = []
    for key, members in chosen.items():
        for member in members:
            cells = []
            for split in splits:
                figures = member.figures(split)
                if figures is None:
                    cells.append(Cell())
                    continue
                low, high = figures.interval
                text = f"{100 * figures.accuracy:.2f} [{100 * low:.1f}–{100 * high:.1f}]"
                cells.append(Cell(text, hint=f"{figures.examples:,} examples"))
            if member.evaluations:
                lines.append(
                    Line([Cell(key.label), Cell(str(member.run.seed)), *cells, _run_numbers([member])])
                )
    title = f"{TABLES[task].title if task in TABLES else task}: run by run"
    caption = "Accuracy in % with Wilson's 95 % interval, which covers the draw of the test split alone."
    return Table(f"{task}-splits", title, caption, ["model", "seed", *splits, "run"], lines)


def _in_task_order(task: str, splits: Iterable[str]) -> list[str]:
    from beamtree.data.task import find_task

    order = list(find_task(task).splits)
    return sorted(splits, key=lambda split: (order.index(split) if split in order else len(order), split))


def runs_table(runs: Sequence[TrainedRun], label: Callable[[TrainedRun], str]) -> Table:
    """Every run that was named, whether it counts or not, and the commands that make it anew."""
    lines = []
    for number, run in enumerate(runs, start=1):
        best = run.best
        commands = [training_command(run.recipe) or f"beamtree train {run.path / 'recipe.toml'}"]
        commands += [evaluation.command for evaluation in run.evaluations if evaluation.command]
        figures = [
            Cell(str(run.seed)),
            Cell(f"{run.epochs} of {run.recipe.training.max_epochs}"),
            Cell(run.end),
            Cell(str(best["epoch"])) if best else Cell(),
            Cell(f"{best['dev_loss']:.4f}") if best else Cell(),
            Cell(f"{100 * best['dev_accuracy']:.2f}") if best else Cell(),
            Cell(f"{run.minutes:.1f}"),
        ]
        folder = Cell(str(run.path), code=True)
        words = [Cell(f"{run.recipe.task.name}: {label(run)}"), folder, Cell("; ".join(commands), code=True)]
        lines.append(Line([Cell(str(number)), *words, *figures], run=number))
    headers = ["run", "row", "folder", "commands", "seed", "epochs", "end"]
    headers += ["best epoch", "dev loss", "dev accuracy", "minutes"]
    caption = "Every run named to the report. Dev figures are those of the best epoch, whose weights count."
    return Table("runs", "Runs", caption, headers, lines, words=4)


def _summary(members: Sequence[Member], split: str, by_median: bool) -> _Summary | None:
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
    return _Summary(round(centre, 2), f"{centre:.2f}{spread}{few}", "; ".join(each))


def _about(members: Sequence[Member]) -> list[Cell]:
    """Seeds, epochs, how many stopped early, and which runs they are."""
    if not members:
        return [Cell()] * 4
    epochs = sorted(member.run.epochs for member in members)
    span = str(epochs[0]) if epochs[0] == epochs[-1] else f"{epochs[0]}–{epochs[-1]}"
    early = sum(member.run.end == EARLY for member in members)
    return [
        Cell(str(len(members))),
        Cell(span),
        Cell(f"{early} of {len(members)}"),
        _run_numbers(members),
    ]


def _run_numbers(members: Sequence[Member]) -> Cell:
    numbers = tuple(member.number for member in members)
    return Cell(", ".join(map(str, numbers)), runs=numbers)
