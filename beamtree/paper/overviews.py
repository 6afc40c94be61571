"""Overviews: all rows at a glance, targets, how much of the paper was reached, models in the package, figures
run by run, every run with its commands, rows without figures, runs that were cut off.
"""

import shlex
from collections.abc import Sequence
from contextlib import suppress
from statistics import mean

from beamtree.classifier.model_folder import PRETRAINED
from beamtree.data.task import find_task
from beamtree.paper.published import LABELS, OPTIONAL, TABLES, Figure
from beamtree.paper.remarks import COSTS, Cost, CutOff, Remarks, Target
from beamtree.paper.runs import EARLY, SplitFigures, TrainedRun, data_marks, marked_title
from beamtree.paper.table import NOTHING, Table, TableCell, line
from beamtree.paper.table_rows import (
    Row,
    RowKey,
    Rows,
    Summary,
    in_task_order,
    of_task,
    row_of,
    runs_of,
    training_command,
)
from beamtree.saving.folder import WEIGHTS, hash_weights


def targets_table(targets: Sequence[Target], rows: Rows) -> Table:
    """Each target beside what was reached by the recipe as shipped, and by how much."""
    lines = []
    met: dict[bool, list[bool]] = {False: [], True: []}  # with the paper's settings, with options
    for target in sorted(targets, key=lambda target: target.row in OPTIONAL):
        table, key = TABLES[target.task], RowKey(target.task, target.row)
        row = rows.get(key, Row(key))
        published = table.rows.get(OPTIONAL.get(target.row, target.row), {})
        for split, least in target.accuracy.items():
            ours = row.summary(split)
            reached = ours is not None and ours.rounded >= least
            met[target.row in OPTIONAL].append(reached)
            verdict = "not measured" if ours is None else f"short by {least - ours.rounded:.2f}"
            lines.append(
                line(
                    f"{table.title}: {LABELS[target.row]}",
                    table.columns.get(split, split),
                    TableCell("met", best=True) if reached else verdict,
                    f"{least:g}",
                    *row.cells([split]),
                    str(published.get(split, NOTHING)),
                )
            )
    caption = f"{sum(met[False])} of {len(met[False])} met with the paper's settings"
    if met[True]:
        caption += f"; {sum(met[True])} of {len(met[True])} with options, chosen by looking at these splits"
    caption += ". Accuracy in %, median (ListOps) or mean of the seeds."
    headers = ["row", "split", "target", "at least", "ours", "paper"]
    return Table("targets", "Targets", caption, headers, lines, words=range(3))


def glance_table(tasks: Sequence[str], rows: Rows, remarks: Remarks) -> Table:
    """A line for every row of the paper that was measured with its settings: is it as good as the paper's?"""
    lines = []
    for task in tasks:
        ours = _published_rows(task, rows)
        title = marked_title(TABLES[task], runs_of(ours))
        measured = [line(title, *cells) for row in ours.values() if (cells := _at_a_glance(row))]
        lines += measured or [line(title, "no run yet", *[NOTHING] * 5)]
    caption = (
        "Accuracy in %, the mean over the test splits that the paper has: its own, ours (median or mean of "
        "the seeds) and our worst seed's. A split is at the paper's level if ours is at least its figure "
        "minus one of its standard deviations."
    )
    headers = ["task", "model", "paper", "ours", "worst seed", "seeds", "splits at the paper's level"]
    said = remarks.on("")
    return Table("glance", "At a glance", caption, headers, lines, words=range(2), remarks=said)


def _at_a_glance(row: Row) -> list[TableCell | str]:
    """Nothing for a row without a figure beside one of the paper's."""
    measured = _beside_paper(row)
    if not measured:
        return []
    seeds = [[one.figures(split) for split, _, _ in measured] for one in row.members]
    whole = [mean(figures.accuracy for figures in seed if figures) for seed in seeds if all(seed)]
    return [
        row.label,
        f"{mean(paper.value for _, _, paper in measured):.1f}",
        f"{mean(ours.rounded for _, ours, _ in measured):.1f}",
        f"{100 * min(whole):.1f}" if len(whole) > 1 else NOTHING,
        str(len(row.members)),
        f"{_reached(measured)} of {len(measured)}",
    ]


def _published_rows(task: str, rows: Rows) -> Rows:
    """Ours of the paper's rows, with its settings."""
    published = TABLES[task].rows
    return {key: row for key, row in of_task(task, rows).items() if key.plain and key.name in published}


def _beside_paper(row: Row) -> list[tuple[str, Summary, Figure]]:
    """The splits that both the paper and we have a figure of."""
    published = TABLES[row.key.task].rows[row.key.name]
    return [
        (split, found, figure)
        for split, figure in published.items()
        if (found := row.summary(split)) is not None
    ]


def _reached(measured: Sequence[tuple[str, Summary, Figure]]) -> int:
    return sum(ours.rounded >= paper.value - paper.deviation for _, ours, paper in measured)


def coverage_table(tasks: Sequence[str], rows: Rows, remarks: Remarks) -> Table:
    """Of the paper's rows and figures of each task: how many were measured, how many reached."""
    lines = []
    for task in tasks:
        table = TABLES[task]
        ours = _published_rows(task, rows)
        by_row = [found for row in ours.values() if (found := _beside_paper(row))]
        measured = [figures for found in by_row for figures in found]
        runs = runs_of(ours)
        alike = "as in the paper" if find_task(task).words else "by the paper's rules"
        lines.append(
            line(
                table.title,
                ", ".join(data_marks(task, runs)) or (alike if runs else NOTHING),
                f"{len(by_row)} of {len(table.rows)}",
                f"{len(measured)} of {sum(map(len, table.rows.values()))}",
                f"{_reached(measured)} of {len(measured)}" if measured else NOTHING,
                str(len(runs)),
                f"{sum(run.end == EARLY for run in runs)} of {len(runs)}" if runs else NOTHING,
            )
        )
    caption = (
        "Reached: at least the paper's figure minus one of its standard deviations; rows with the settings "
        "of the shipped recipes only."
    )
    headers = ["task", "data", "rows measured", "figures measured", "reached", "runs", "early stop"]
    said = remarks.on("")
    return Table("summary", "In short", caption, headers, lines, words=range(2), remarks=said)


def shipped_table(runs: Sequence[TrainedRun]) -> Table:
    """Found by their weights: an evaluation keeps the hash of those that it measured."""
    lines = []
    for file in sorted(PRETRAINED.glob(f"*/{WEIGHTS}")):
        digest = hash_weights(file.parent)
        for number, run in enumerate(runs, start=1):
            same = [one for one in run.evaluations if one.weights == digest and one.search == (None, False)]
            for split in in_task_order(run.recipe.task.name, {split for one in same for split in one.splits}):
                found = {one.device == "cpu": one.splits[split] for one in same[::-1] if split in one.splits}
                here, on_cpu = found.get(False), found.get(True)
                lines.append(
                    line(
                        file.parent.name,
                        split,
                        _percent(here, "accuracy"),
                        _percent(on_cpu, "accuracy"),
                        _percent(here, "f1"),
                        _percent(on_cpu, "f1"),
                        _percent(here or on_cpu, "exact"),
                        TableCell(str(number), runs=(number,)),
                    )
                )
    caption = (
        "The figures of the run that a model's weights come from, and of the same weights on a CPU: "
        "accuracy, unlabelled bracketing F1 of the trees against the gold trees, and the share of gold "
        "trees, in %."
    )
    measures = ["accuracy", "on a CPU", "bracketing F1", "bracketing F1 on a CPU", "gold trees"]
    headers = ["model", "split", *measures, "run"]
    return Table("shipped", "Models in the package", caption, headers, lines, words=range(2))


def _percent(figures: SplitFigures | None, name: str) -> str:
    share = None if figures is None else getattr(figures, name)
    return NOTHING if share is None else f"{100 * share:.2f}"


def splits_table(task: str, rows: Rows) -> Table:
    """Every run on every split it was evaluated on, with Wilson's interval."""
    ours = of_task(task, rows)
    splits = in_task_order(task, {split for row in ours.values() for split in row.splits})
    lines = []
    for key, row in ours.items():
        for member in row.members:
            if member.evaluations:
                cells = [_with_interval(member.figures(split)) for split in splits]
                alone = Row(key, [member])
                lines.append(line(alone.label, str(member.run.seed), *cells, alone.run_numbers))
    title = f"{TABLES[task].title if task in TABLES else task}: run by run"
    caption = (
        "Accuracy in % with Wilson's 95 % interval, which covers only the draw of the test split. Examples: "
        + "; ".join(f"{split} {_sizes(ours, split)}" for split in splits)
        + "."
    )
    return Table(f"{task}-splits", title, caption, ["model", "seed", *splits, "run"], lines)


def _with_interval(figures: SplitFigures | None) -> TableCell:
    if figures is None:
        return TableCell()
    low, high = figures.interval
    text = f"{100 * figures.accuracy:.2f} [{100 * low:.1f}–{100 * high:.1f}]"
    return TableCell(text, hint=f"{figures.examples:,} examples")


def _sizes(ours: Rows, split: str) -> str:
    sizes = {figures.examples for row in ours.values() for _, figures in row.figures(split)}
    return " or ".join(f"{size:,}" for size in sorted(sizes))


def runs_table(runs: Sequence[TrainedRun]) -> Table:
    """Every run that was named, whether it counts or not, and the commands that repeat it."""
    lines = []
    for number, run in enumerate(runs, start=1):
        best = run.best
        lines.append(
            line(
                str(number),
                f"{run.recipe.task.name}: {row_of(run).label}",
                TableCell(str(run.path), code=True),
                TableCell("; ".join(_commands(run)), code=True),
                str(run.seed),
                f"{run.epochs} of {run.recipe.training.max_epochs}",
                run.end,
                str(best["epoch"]) if best else NOTHING,
                f"{best['dev_loss']:.4f}" if best else NOTHING,
                f"{100 * best['dev_accuracy']:.2f}" if best else NOTHING,
                f"{run.minutes:.1f}",
                run=number,
            )
        )
    headers = ["run", "row", "folder", "commands", "seed", "epochs", "end"]
    headers += ["best epoch", "dev loss", "dev accuracy", "minutes"]
    caption = "Every run given to the report. Dev figures are those of the best epoch, whose weights count."
    return Table("runs", "Runs", caption, headers, lines, words=range(4))


def _commands(run: TrainedRun) -> list[str]:
    """What repeats the run and its figures, in the folder in which it was evaluated."""
    train = training_command(run.recipe) or f"beamtree train {run.path / 'recipe.toml'}"
    if run.own_data is not None:
        train += f" --data {shlex.quote(run.own_data)}"
    kept = [evaluation.command for evaluation in run.evaluations if evaluation.command]
    evaluations = [f"{command} --save" for some in kept for command in some.split("; ")]
    with suppress(ValueError, IndexError):  # a stranger's command may be anything
        folder = shlex.split(evaluations[0])[2]
        if folder != f"runs/{shlex.split(train)[2]}-seed{run.seed}":
            train += f" --out {shlex.quote(folder)}"
    return [train, *evaluations]


def costs_table(costs: Sequence[Cost], rows: Rows) -> Table:
    """What a run would take, of the published rows that have no figure yet."""
    lines = []
    for cost in costs:
        table, key = TABLES[cost.task], RowKey(cost.task, cost.row)
        if key not in rows or not rows[key].splits.intersection(table.columns):
            figures = [f"{cost.milliseconds:g}", f"{cost.steps:,}", str(cost.epochs), f"{cost.minutes:,.0f}"]
            lines.append(line(f"{table.title}: {LABELS[cost.row]}", cost.measured, *figures))
    caption = (
        "Published rows without a figure of ours: the estimated time for one seed, from the time of a step."
    )
    headers = ["row", "how it is known", "ms a step", "steps an epoch", "epochs", "minutes"]
    return Table("costs", COSTS, caption, headers, lines, words=range(2))


def cut_off_table(runs: Sequence[CutOff]) -> Table:
    """Runs that were started and ended from outside; those that took their place are among the runs."""
    lines = [line(f"{run.task}: {LABELS[run.row]}", run.why, run.seeds, run.epochs) for run in runs]
    caption = "Started, but stopped from outside before they finished; none of them counts in a table above."
    headers = ["row", "why", "seeds", "epochs"]
    return Table("cut-off", "Runs that were cut off", caption, headers, lines, words=range(2))
