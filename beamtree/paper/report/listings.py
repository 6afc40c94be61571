"""Run by run: every split with its interval, every run with its commands, every run that was cut off."""

import shlex
from collections.abc import Sequence
from contextlib import suppress

from beamtree.paper.report.layout import Cell, Line, Table
from beamtree.paper.report.published import LABELS, TABLES
from beamtree.paper.report.remarks import Cost, CutOff
from beamtree.paper.report.rows import RowKey, row_of, training_command
from beamtree.paper.report.runs import TrainedRun
from beamtree.paper.report.seeds import Rows, marked_label, measured_splits, run_numbers

COSTS = "Rows without figures"


def splits_table(task: str, rows: Rows) -> Table:
    """Every run on every split it was evaluated on, with Wilson's interval."""
    chosen = {key: members for key, members in rows.items() if key.task == task}
    splits = measured_splits(task, chosen)
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
                label, seed = marked_label(key, [member]), Cell(str(member.run.seed))
                lines.append(Line([label, seed, *cells, run_numbers([member])]))
    title = f"{TABLES[task].title if task in TABLES else task}: run by run"
    caption = (
        "Accuracy in % with Wilson's 95 % interval, which covers the draw of the test split alone. Examples: "
        + "; ".join(f"{split} {_sizes(chosen, split)}" for split in splits)
        + "."
    )
    return Table(f"{task}-splits", title, caption, ["model", "seed", *splits, "run"], lines)


def _sizes(rows: Rows, split: str) -> str:
    found = [member.figures(split) for members in rows.values() for member in members]
    return " or ".join(f"{size:,}" for size in sorted({one.examples for one in found if one is not None}))


def runs_table(runs: Sequence[TrainedRun]) -> Table:
    """Every run that was named, whether it counts or not, and the commands that make it anew."""
    lines = []
    for number, run in enumerate(runs, start=1):
        best = run.best
        commands = _commands(run)
        figures = [
            Cell(str(run.seed)),
            Cell(f"{run.epochs} of {run.recipe.training.max_epochs}"),
            Cell(run.end),
            Cell(str(best["epoch"])) if best else Cell(),
            Cell(f"{best['dev_loss']:.4f}") if best else Cell(),
            Cell(f"{100 * best['dev_accuracy']:.2f}") if best else Cell(),
            Cell(f"{run.minutes:.1f}"),
        ]
        row = Cell(f"{run.recipe.task.name}: {row_of(run).label}")
        words = [row, Cell(str(run.path), code=True), Cell("; ".join(commands), code=True)]
        lines.append(Line([Cell(str(number)), *words, *figures], run=number))
    headers = ["run", "row", "folder", "commands", "seed", "epochs", "end"]
    headers += ["best epoch", "dev loss", "dev accuracy", "minutes"]
    caption = "Every run named to the report. Dev figures are those of the best epoch, whose weights count."
    return Table("runs", "Runs", caption, headers, lines, words=4)


def _commands(run: TrainedRun) -> list[str]:
    """What makes the run and its figures anew, in the folder in which it was evaluated."""
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
        columns = TABLES[cost.task].columns
        if any(one.figures(split) for one in rows.get(RowKey(cost.task, cost.row), ()) for split in columns):
            continue
        figures = [f"{cost.milliseconds:g}", f"{cost.steps:,}", str(cost.epochs), f"{cost.minutes:,.0f}"]
        words = [f"{TABLES[cost.task].title}: {LABELS[cost.row]}", cost.measured]
        lines.append(Line([*map(Cell, words), *map(Cell, figures)]))
    caption = "Published rows without a figure of ours: the time of one seed, by the time of a step."
    headers = ["row", "how it is known", "ms a step", "steps an epoch", "epochs", "minutes"]
    return Table("costs", COSTS, caption, headers, lines, words=2)


def cut_off_table(runs: Sequence[CutOff]) -> Table:
    """Runs that were started and ended from outside; those that took their place are among the runs."""
    lines = []
    for run in runs:
        words = [Cell(f"{run.task}: {LABELS[run.row]}"), Cell(run.why)]
        lines.append(Line([*words, Cell(run.seeds), Cell(run.epochs)]))
    caption = (
        "Started as well, and ended from outside before their time: none of them counts in a table above."
    )
    headers = ["row", "why", "seeds", "epochs"]
    return Table("cut-off", "Runs that were cut off", caption, headers, lines, words=2)
