"""Run by run: every split with its interval, every run with its commands, every run that was cut off."""

from collections.abc import Callable, Iterable, Sequence

from beamtree.data.task import find_task
from beamtree.report.layout import NOTHING, Cell, Line, Table
from beamtree.report.paper import LABELS, TABLES
from beamtree.report.remarks import CutOff
from beamtree.report.rows import training_command
from beamtree.report.runs import TrainedRun
from beamtree.report.seeds import Rows, run_numbers


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
    splits = in_task_order(task, measured)
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
                    Line([Cell(key.label), Cell(str(member.run.seed)), *cells, run_numbers([member])])
                )
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


def in_task_order(task: str, splits: Iterable[str]) -> list[str]:
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


def cut_off_table(runs: Sequence[CutOff]) -> Table:
    """Runs that were started and cut off; those that took their place are among the runs."""
    lines = []
    for run in runs:
        reached = ", ".join(f"{split} {percent:g}" for split, percent in run.accuracy.items())
        words = [Cell(f"{run.task}: {LABELS[run.row]}"), Cell(run.why), Cell(reached or NOTHING)]
        lines.append(Line([*words, Cell(str(run.seed)), Cell(str(run.epochs))]))
    caption = (
        "Started as well, and ended from outside before their time. None of them counts in a table above; "
        "accuracy in % is what they had reached, where it was measured."
    )
    headers = ["row", "why it ended", "accuracy", "seed", "epochs"]
    return Table("cut-off", "Runs that were cut off", caption, headers, lines, words=3)
