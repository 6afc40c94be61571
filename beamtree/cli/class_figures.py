"""Label by label, for the eye: macro-F1 first, a table of the labels, which is taken for which, pictures."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from beamtree.cli.conventions import name, new_table
from beamtree.errors import MissingExtraError
from beamtree.printable import printable
from beamtree.training.baseline import Competitor, verdict
from beamtree.training.classes import IMBALANCED, Confusion

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from beamtree.training.evaluate import SplitResult
    from beamtree.training.run_folder import RunFolder

_MOST_LABELS = 30  # in a table
_WIDEST = 12  # labels in a matrix, which a terminal can show


def headline(confusion: Confusion, split: str) -> str:
    """What to look at first, beside what naming one label would reach."""
    label, share = confusion.majority
    alone = f"always {printable(label)!r}: {share:.1%}"
    return f"{split}: macro-F1 {confusion.macro_f1:.1%}, accuracy {confusion.accuracy:.1%} ({alone})"


def warning(confusion: Confusion) -> str | None:
    """A sentence where accuracy alone would mislead."""
    label, share = confusion.majority
    if share <= IMBALANCED:
        return None
    return (
        f"{printable(label)!r} has {share:.0%} of these rows, so accuracy says little: look at macro-F1 and "
        "at the recall of the others"
    )


def class_tables(confusion: Confusion, split: str) -> "Iterator[Table | Text]":
    """The labels with precision, recall and F1; the matrix, or the most frequent mistakes of many labels."""
    yield name(headline(confusion, split), "bold")
    if told := warning(confusion):
        yield name(told, "yellow")
    yield _scores(confusion)
    yield _matrix(confusion) if len(confusion.labels) <= _WIDEST else _mistakes(confusion)


def _scores(confusion: Confusion) -> "Table":
    scores = sorted(confusion.scores, key=lambda score: -score.examples)[:_MOST_LABELS]
    more = len(confusion.labels) - len(scores)
    table = new_table(
        "by label" + (f", the {len(scores)} most frequent (eval --json has all)" if more else "")
    )
    table.add_column("label")
    for head in ("examples", "precision %", "recall %", "F1 %"):
        table.add_column(head, justify="right", style="bold green" if head == "F1 %" else "")
    kept = {score.label for score in scores}
    for score in confusion.scores:
        if score.label in kept:
            shares = (score.precision, score.recall, score.f1)
            table.add_row(
                name(score.label), f"{score.examples:,}", *(f"{100 * share:.1f}" for share in shares)
            )
    table.add_section()
    table.add_row(name("macro"), f"{confusion.examples:,}", *_macro(confusion))
    return table


def _macro(confusion: Confusion) -> list[str]:
    counted = [score for score in confusion.scores if score.examples or score.predicted]
    mean = [
        sum(column) / max(1, len(counted)) for column in zip(*(score[3:] for score in counted), strict=True)
    ]
    return [f"{100 * share:.1f}" for share in mean]


def _matrix(confusion: Confusion) -> "Table":
    table = new_table("confusion matrix")
    table.add_column("true \\ predicted")
    for label in confusion.labels:
        table.add_column(name(label), justify="right")
    for i, (label, row) in enumerate(zip(confusion.labels, confusion.counts, strict=True)):
        table.add_row(
            name(label), *(name(f"{n:,}", "bold green" if i == j else "") for j, n in enumerate(row))
        )
    return table


def _mistakes(confusion: Confusion) -> "Table":
    labels = confusion.labels
    wrong = [
        (count, labels[i], labels[j])
        for i, row in enumerate(confusion.counts)
        for j, count in enumerate(row)
        if i != j and count
    ]
    table = new_table("the most frequent mistakes")
    for head in ("true", "predicted", "examples"):
        table.add_column(head, justify="right" if head == "examples" else "left")
    for count, gold, given in sorted(wrong, key=lambda mistake: -mistake[0])[:_WIDEST]:
        table.add_row(name(gold), name(given), f"{count:,}")
    return table


def company_parts(
    model: Competitor, others: Sequence[Competitor], split: str, missing: str | None = None
) -> "Iterator[Table | Text]":
    """The model beside simpler ways to label the same rows, and one line that says which is best.

    `missing` tells what to install for a fuller comparison.
    """
    table = new_table(f"beside it, on the same rows of {split}")
    table.add_column("")
    for head in ("accuracy %", "macro-F1 %", "seconds"):
        table.add_column(head, justify="right")
    for one in (model, *others):
        figures = (f"{100 * share:.1f}" for share in (one.confusion.accuracy, one.confusion.macro_f1))
        table.add_row(name(one.name), *figures, f"{one.seconds:.1f}" if one.seconds else "")
    yield table
    yield name(verdict(model, others, split), "bold")
    if missing:
        yield name(missing)


def members_table(result: "SplitResult") -> "Table":
    """An ensemble beside each of its members, their median and the worst of them."""
    measures = {"accuracy %": lambda one: one.total.accuracy}
    if result.confusion is not None:
        measures["macro-F1 %"] = lambda one: one.confusion.macro_f1
    table = new_table(f"seed by seed on {result.name}")
    table.add_column("")
    for head in measures:
        table.add_column(head, justify="right")
    each = list(result.members.values())
    rows = {name: [measure(one) for measure in measures.values()] for name, one in result.members.items()}
    rows["median"] = [median(map(measure, each)) for measure in measures.values()]
    rows["worst"] = [min(map(measure, each)) for measure in measures.values()]
    rows["together"] = [measure(result) for measure in measures.values()]
    for title, shares in rows.items():
        if title in ("median", "together"):
            table.add_section()
        style = "bold green" if title == "together" else ""
        table.add_row(name(title), *(name(f"{100 * share:.1f}", style) for share in shares))
    return table


def draw_run(
    run: "RunFolder", histories: Mapping[str, Sequence[Mapping[str, Any]]], confusion: Confusion
) -> list[Path]:
    """The learning curve of each seed in its folder and the confusion matrix; none without matplotlib."""
    from beamtree.paper.plots import draw_confusion, draw_learning_curve
    from beamtree.training.run_folder import RunFolder

    try:
        curves = [
            draw_learning_curve(history, RunFolder(run.path / name).pictures[0])
            for name, history in histories.items()
        ]
        return [*curves, draw_confusion(confusion, run.pictures[1])]
    except MissingExtraError:
        return []
