"""Tables and pictures of results: by split, length, depth, label and seed, and compared with simpler
classifiers."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table
from rich.text import Text

from beamtree.cli.conventions import name, new_table
from beamtree.data.task import Task
from beamtree.errors import MissingExtraError
from beamtree.printable import printable
from beamtree.training.baseline import Comparison, verdict
from beamtree.training.classes import IMBALANCED, Confusion
from beamtree.training.evaluate import SplitResult, Tally, pool
from beamtree.training.plots import Point, draw_accuracy, draw_confusion, draw_learning_curve
from beamtree.training.run_folder import RunFolder

Part = Table | Text

_MOST_LABELS = 30  # in a table
_WIDEST = 12  # labels in a confusion matrix, so that it fits a terminal


def split_tables(title: str, task: Task, results: Sequence[SplitResult]) -> Iterator[Table]:
    """A table by split, then tables by length and by depth over all splits together."""
    gold = task.gold_merges is not None
    yield _tallies(f"{title} on {task.name}", "split", [(r.name, r.total) for r in results], gold)
    whole = pool(results)
    together = ", all splits together" if len(results) > 1 else ""
    longer = "longer sentence of a pair" if task.sentences > 1 else "tokens"
    by_length = [(f"{low}–{high}", tally) for (low, high), tally in sorted(whole.by_length.items())]
    by_depth = [(str(depth), tally) for depth, tally in sorted(whole.by_depth.items())]
    if len(by_length) > 1:
        yield _tallies(f"by length ({longer}){together}", "tokens", by_length, gold)
    if len(by_depth) > 1:
        yield _tallies(f"by depth (open brackets){together}", "depth", by_depth, gold)


def _tallies(title: str, first: str, tallies: Sequence[tuple[str, Tally]], gold: bool) -> Table:
    heads = {"examples": "", "accuracy %": "bold green", "95 %\ninterval": "bright_black", "loss": ""}
    heads |= {"bracketing\nF1 %": "cyan", "exact\n%": "cyan"} if gold else {}
    table = new_table(title, first, *heads, words=int(first == "split"), styles=heads)
    rows = []
    for row, tally in tallies:
        low, high = tally.interval
        rows.append(
            (
                row,
                f"{tally.examples:,}",
                _percent(tally.accuracy),
                f"{_percent(low)}–{_percent(high)}",
                f"{tally.loss:.4f}",
                *((_percent(tally.trees.f1), _percent(tally.trees.exact_match)) if gold else ()),
            )
        )
    for row, *figures in rows:
        table.add_row(name(row), *figures)
    # In a narrow terminal names of splits are folded and heads cut, figures never.
    for column, cells in zip(table.columns, zip(*rows, strict=True), strict=True):
        column.min_width = max(map(len, cells))
        column.no_wrap = all(len(line) <= column.min_width for line in str(column.header).splitlines())
    if first == "split":
        names = table.columns[0]
        names.min_width, names.no_wrap, names.overflow = len(first), False, "fold"
    return table


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}"


def draw_splits(results: Sequence[SplitResult], folder: Path, title: str) -> list[Path]:
    """Draw accuracy by length and, for tasks with brackets, by depth; return the paths."""
    lengths, depths = {}, {}
    for result in results:
        lengths[result.name] = [
            Point((low + high) / 2, tally.accuracy, *tally.interval)
            for (low, high), tally in sorted(result.by_length.items())
        ]
        if result.by_depth:
            depths[result.name] = [
                Point(depth, tally.accuracy, *tally.interval)
                for depth, tally in sorted(result.by_depth.items())
            ]
    stem = folder / "accuracy-by-length"
    written = draw_accuracy(lengths, title=title, x_label="length (tokens)", stem=stem, log_x=True)
    if depths:
        stem = folder / "accuracy-by-depth"
        written += draw_accuracy(depths, title=title, x_label="depth (open brackets)", stem=stem)
    return written


def headline(confusion: Confusion, split: str) -> str:
    """Macro-F1 and accuracy, with the accuracy of always naming the most frequent label."""
    label, share = confusion.majority
    alone = f"always its most frequent label, {printable(label)!r}: {share:.1%}"
    return f"{split}: macro-F1 {confusion.macro_f1:.1%}, accuracy {confusion.accuracy:.1%} ({alone})"


def warning(confusion: Confusion) -> str | None:
    """A sentence for when accuracy alone would mislead, else None."""
    label, share = confusion.majority
    if share <= IMBALANCED:
        return None
    return (
        f"{printable(label)!r} has {share:.0%} of these rows, so accuracy says little: look at macro-F1 and "
        "at the recall of the other labels"
    )


def class_tables(confusion: Confusion, split: str) -> Iterator[Part]:
    """Precision, recall and F1 by label; the confusion matrix or, for many labels, the commonest mistakes."""
    yield name(headline(confusion, split), "bold")
    if told := warning(confusion):
        yield name(told, "yellow")
    yield _scores(confusion)
    yield _matrix(confusion) if len(confusion.labels) <= _WIDEST else _mistakes(confusion)


def _scores(confusion: Confusion) -> Table:
    shown = sorted(confusion.scores, key=lambda score: -score.examples)[:_MOST_LABELS]
    more = len(confusion.labels) > len(shown)
    title = "by label" + (f", the {len(shown)} most frequent (eval --json has all)" if more else "")
    heads = ("label", "examples", "precision %", "recall %", "F1 %")
    table = new_table(title, *heads, styles={"F1 %": "bold green"})
    for score in confusion.scores:
        if score in shown:
            met = score.examples or score.predicted  # a label that is neither counts nowhere
            shares = (
                score.precision if met else None,
                score.recall if score.examples else None,
                score.f1 if met else None,
            )
            table.add_row(name(score.label), f"{score.examples:,}", *map(_percent, shares))
    table.add_section()
    counted = [score for score in confusion.scores if score.examples or score.predicted]
    columns = zip(*((score.precision, score.recall, score.f1) for score in counted), strict=True)
    means = [_percent(sum(column) / len(column)) for column in columns]
    table.add_row("macro", f"{confusion.examples:,}", *means)
    return table


def _matrix(confusion: Confusion) -> Table:
    table = new_table("confusion matrix", "true \\ predicted", *map(name, confusion.labels))
    for i, (label, row) in enumerate(zip(confusion.labels, confusion.counts, strict=True)):
        table.add_row(
            name(label), *(name(f"{n:,}", "bold green" if i == j else "") for j, n in enumerate(row))
        )
    return table


def _mistakes(confusion: Confusion) -> Table:
    labels = confusion.labels
    wrong = [
        (count, labels[i], labels[j])
        for i, row in enumerate(confusion.counts)
        for j, count in enumerate(row)
        if i != j and count
    ]
    table = new_table("the most frequent mistakes", "true", "predicted", "examples", words=2)
    for count, gold, given in sorted(wrong, key=lambda mistake: -mistake[0])[:_WIDEST]:
        table.add_row(name(gold), name(given), f"{count:,}")
    return table


def comparison_parts(comparison: Comparison, split: str) -> Iterator[Part]:
    """The model and simpler classifiers on the same rows, and a line that says which is best."""
    table = new_table(
        f"compared on the same rows of {split}", "", "accuracy %", "macro-F1 %", "trained in (s)"
    )
    for one in (comparison.model, *comparison.others):
        shares = map(_percent, (one.confusion.accuracy, one.confusion.macro_f1))
        table.add_row(name(one.name), *shares, f"{one.seconds:.1f}" if one.seconds else "")
    yield table
    yield name(verdict(comparison.model, comparison.others, split), "bold")
    if comparison.missing:
        yield name(comparison.missing)


def members_table(result: SplitResult) -> Table:
    """Each member of an ensemble, their median, the worst of them, and the ensemble."""
    measures = {"accuracy %": lambda one: one.total.accuracy}
    if result.confusion is not None:
        measures["macro-F1 %"] = lambda one: one.confusion.macro_f1
    table = new_table(f"seed by seed on {result.name}", "", *measures)
    each = list(result.members.values())
    rows = {title: [measure(one) for measure in measures.values()] for title, one in result.members.items()}
    rows["median"] = [median(map(measure, each)) for measure in measures.values()]
    rows["worst"] = [min(map(measure, each)) for measure in measures.values()]
    rows["together"] = [measure(result) for measure in measures.values()]
    for title, shares in rows.items():
        if title in ("median", "together"):
            table.add_section()
        style = "bold green" if title == "together" else ""
        table.add_row(name(title), *(name(_percent(share), style) for share in shares))
    return table


def result_parts(result: SplitResult, comparison: Comparison | None) -> Iterator[Part]:
    """A user's own data by label and compared with other classifiers; an ensemble by seed."""
    if result.confusion is not None:
        yield from class_tables(result.confusion, result.name)
        if comparison is not None:
            yield from comparison_parts(comparison, result.name)
    if result.members:
        yield members_table(result)


def draw_run(
    run: RunFolder, histories: Mapping[str, Sequence[Mapping[str, Any]]], confusion: Confusion
) -> list[Path]:
    """Draw each seed's learning curve and the confusion matrix; return no paths without matplotlib."""
    try:
        curves = [
            draw_learning_curve(history, RunFolder(run.path / member).pictures[0])
            for member, history in histories.items()
        ]
        return [*curves, draw_confusion(confusion, run.pictures[1])]
    except MissingExtraError:
        return []
