"""The tables of a report without published figures: other splits, trees compared with gold trees, models in
the package, figures run by run, and every run with its commands.
"""

import shlex
from collections.abc import Sequence
from contextlib import suppress

from beamtree.classifier.model_folder import PRETRAINED
from beamtree.files.bounded import hash_files
from beamtree.paper.evaluations import AS_TRAINED, SplitFigures
from beamtree.paper.published import TABLES, PaperTable
from beamtree.paper.remarks import Remarks
from beamtree.paper.runs import TrainedRun
from beamtree.paper.table import NOTHING, Line, Table, TableCell
from beamtree.paper.table_rows import ABOUT, Row, Rows, in_task_order, row_of, training_command
from beamtree.saving.folder import WEIGHTS


def other_splits_table(table: PaperTable, ours: Rows) -> Table:
    """Splits that the paper's table does not have: dev, fresh draws, originals of edited texts, own files."""
    measured = {split for row in ours.values() for split in row.splits}
    splits = in_task_order(table.task, measured.difference(table.columns))
    lines: list[Line] = [
        [key.label, *row.cells(splits), *row.about]
        for key, row in ours.items()
        if row.splits.intersection(splits)
    ]
    caption = f"Accuracy in %: {table.statistic} of the seeds ± population standard deviation."
    name, title = f"{table.task}-others", f"{table.title}: other splits"
    return Table(name, title, caption, ["model", *splits, *ABOUT], lines)


def trees_table(table: PaperTable, ours: Rows, remarks: Remarks) -> Table:
    """Bracketing F1 against the gold trees and the share of trees equal to them; then trees of no model."""
    lines: list[Line] = []
    for row in ours.values():
        cells = [_trees(row, split) for split in table.columns]
        if any(cell.text != NOTHING for cell in cells):
            lines.append([row.label, *cells, row.run_numbers])
    for unlearnt in remarks.trees if lines else ():
        if unlearnt.task == table.task:
            f1 = [unlearnt.f1.get(split) for split in table.columns]
            shown = [NOTHING if one is None else f"{one:.2f}" for one in f1]
            lines.append([f"{unlearnt.shape}, no model", *shown, NOTHING])
    caption = (
        "Unlabelled bracketing F1 of the best trees against the gold trees in %, over the whole split: spans "
        "of two or more tokens, except the whole sentence. In brackets the share of sentences whose tree "
        "equals the gold tree. Sentences of one or two tokens have only one tree and are left out. "
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


def shipped_table(runs: Sequence[TrainedRun]) -> Table:
    """The shipped models, matched to runs by the hash of the weights that an evaluation measured."""
    lines: list[Line] = []
    for file in sorted(PRETRAINED.glob(f"*/{WEIGHTS}")):
        digest = hash_files(file)
        for run in runs:
            same = [one for one in run.evaluations if one.weights == digest and one.search == AS_TRAINED]
            for split in in_task_order(run.recipe.task.name, {split for one in same for split in one.splits}):
                found = {one.device == "cpu": one.splits[split] for one in same[::-1] if split in one.splits}
                here, on_cpu = found.get(False), found.get(True)
                lines.append(
                    [
                        file.parent.name,
                        split,
                        _percent(here, "accuracy"),
                        _percent(on_cpu, "accuracy"),
                        _percent(here, "f1"),
                        _percent(on_cpu, "f1"),
                        _percent(here or on_cpu, "exact"),
                        TableCell(str(run.number), runs=(run.number,)),
                    ]
                )
    caption = (
        "The figures of the run that a model's weights come from, and of the same weights on a CPU: "
        "accuracy, unlabelled bracketing F1 of the trees against the gold trees, and the share of trees "
        "equal to them, in %."
    )
    measures = ["accuracy", "on a CPU", "bracketing F1", "bracketing F1 on a CPU", "gold trees"]
    headers = ["model", "split", *measures, "run"]
    return Table("shipped", "Models in the package", caption, headers, lines, words=range(2))


def _percent(figures: SplitFigures | None, name: str) -> str:
    share = None if figures is None else getattr(figures, name)
    return NOTHING if share is None else f"{100 * share:.2f}"


def splits_table(task: str, ours: Rows) -> Table:
    """Every run on every split it was evaluated on, with Wilson's interval."""
    splits = in_task_order(task, {split for row in ours.values() for split in row.splits})
    lines: list[Line] = []
    for key, row in ours.items():
        for run in row.runs:
            if run.evaluations:
                cells = [_with_interval(run.figures(split)) for split in splits]
                alone = Row(key, [run])
                lines.append([alone.label, str(run.seed), *cells, alone.run_numbers])
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
    lines: list[Line] = []
    for run in runs:
        best = run.best
        lines.append(
            [
                TableCell(str(run.number), describes=run.number),
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
            ]
        )
    headers = ["run", "row", "folder", "commands", "seed", "epochs", "end"]
    headers += ["best epoch", "dev loss", "dev accuracy", "minutes"]
    caption = "Every run given to the report. Dev figures are those of the best epoch; its weights are kept."
    return Table("runs", "Runs", caption, headers, lines, words=range(4))


def _commands(run: TrainedRun) -> list[str]:
    """The commands that repeat the run and its evaluations, in the folder in which it was evaluated."""
    train = training_command(run.recipe) or f"beamtree train {run.path / 'recipe.toml'}"
    if run.own_data is not None:
        train += f" --data {shlex.quote(run.own_data)}"
    kept = [evaluation.command for evaluation in run.evaluations if evaluation.command]
    evaluations = [f"{command} --save" for some in kept for command in some.split("; ")]
    with suppress(ValueError, IndexError):  # a saved command may be any text
        folder = shlex.split(evaluations[0])[2]
        if folder != f"runs/{shlex.split(train)[2]}-seed{run.seed}":
            train += f" --out {shlex.quote(folder)}"
    return [train, *evaluations]
