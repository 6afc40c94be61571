"""The models that come with the package: what the runs that made them measured, on a GPU and on the CPU."""

from collections.abc import Sequence

from beamtree.classifier.model import PRETRAINED
from beamtree.paper.report.layout import NOTHING, Cell, Line, Table
from beamtree.paper.report.runs import Evaluation, SplitFigures, TrainedRun
from beamtree.paper.report.seeds import in_task_order
from beamtree.saving.folder import WEIGHTS, hash_weights


def shipped_table(runs: Sequence[TrainedRun]) -> Table:
    """Found by their weights: an evaluation keeps the hash of those that it measured."""
    lines = []
    for file in sorted(PRETRAINED.glob(f"*/{WEIGHTS}")):
        digest = hash_weights(file.parent)
        for number, run in enumerate(runs, start=1):
            found = [one for one in run.evaluations if one.weights == digest and one.search == (None, False)]
            splits = {split for one in found for split in one.splits}
            for split in in_task_order(run.recipe.task.name, splits):
                lines.append(Line([Cell(file.parent.name), Cell(split), *_cells(found, split), _run(number)]))
    caption = (
        "The figures of the run whose weights each of them is, and of the same weights on a CPU: accuracy, "
        "unlabelled bracketing F1 of its trees against the gold trees, and the share of gold trees, in %."
    )
    headers = ["model", "split", "accuracy", "on a CPU", "F1", "F1 on a CPU", "gold trees", "run"]
    return Table("shipped", "Models in the package", caption, headers, lines, words=2)


def _cells(evaluations: Sequence[Evaluation], split: str) -> list[Cell]:
    first, on_cpu = (
        next((one.splits[split] for one in evaluations if split in one.splits and wanted(one)), None)
        for wanted in (lambda one: one.device != "cpu", lambda one: one.device == "cpu")
    )
    some = first or on_cpu
    return [
        Cell(_percent(first, "accuracy")),
        Cell(_percent(on_cpu, "accuracy")),
        Cell(_percent(first, "f1")),
        Cell(_percent(on_cpu, "f1")),
        Cell(_percent(some, "exact")),
    ]


def _percent(figures: SplitFigures | None, name: str) -> str:
    share = None if figures is None else getattr(figures, name)
    return NOTHING if share is None else f"{100 * share:.2f}"


def _run(number: int) -> Cell:
    return Cell(str(number), runs=(number,))
