"""Figures for the eye: split by split, by length and by depth, label by label, seed by seed, beside simpler
classifiers; tables and pictures."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table
from rich.text import Text

from beamtree.cli.conventions import name, new_table
from beamtree.data.task import Task
from beamtree.errors import MissingExtraError
from beamtree.paper.plots import Point, draw_accuracy, draw_confusion, draw_learning_curve
from beamtree.printable import printable
from beamtree.training.baseline import Company, Competitor, verdict
from beamtree.training.classes import IMBALANCED, Confusion
from beamtree.training.evaluate import SplitResult, Tally, pool
from beamtree.training.run_folder import RunFolder

Part = Table | Text

_MOST_LABELS = 30  # in a table
_WIDEST = 12  # labels in a matrix, which a terminal can show


def split_tables(title: str, task: Task, results: Sequence[SplitResult]) -> Iterator[Table]:
    """Of all splits, then of all of them together by length and by depth."""
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


def _tallies(title: str, first: str, rows: Sequence[tuple[str, Tally]], gold: bool) -> Table:
    heads = {"examples": "", "accuracy %": "bold green", "95 %\ninterval": "bright_black", "loss": ""}
    heads |= {"bracketing\nF1 %": "cyan", "exact\n%": "cyan"} if gold else {}
    table = new_table(title, first, *heads, words=int(first == "split"), styles=heads, no_wrap=True)
    for row, tally in rows:
        low, high = tally.interval
        table.add_row(
            name(row),
            f"{tally.examples:,}",
            _percent(tally.accuracy),
            f"{_percent(low)}–{_percent(high)}",
            f"{tally.loss:.4f}",
            *((_percent(tally.trees.f1), _percent(tally.trees.exact_match)) if gold else ()),
        )
    return table


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}"


def draw_splits(results: Sequence[SplitResult], folder: Path, title: str) -> list[Path]:
    """Pictures of accuracy by length and, where there are brackets, by depth."""
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
    """What to look at first, beside what naming one label would reach."""
    label, share = confusion.majority
    alone = f"its most frequent label, {printable(label)!r}: {share:.1%}"
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


def class_tables(confusion: Confusion, split: str) -> Iterator[Part]:
    """The labels with precision, recall and F1; the matrix, or the most frequent mistakes of many labels."""
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
            shares = map(_percent, (score.precision, score.recall, score.f1))
            table.add_row(name(score.label), f"{score.examples:,}", *shares)
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


def company_parts(this: Competitor, others: Sequence[Competitor], split: str) -> Iterator[Part]:
    """The model beside simpler ways to label the same rows, and one line that says which is best."""
    table = new_table(f"beside it, on the same rows of {split}", "", "accuracy %", "macro-F1 %", "seconds")
    for one in (this, *others):
        shares = map(_percent, (one.confusion.accuracy, one.confusion.macro_f1))
        table.add_row(name(one.name), *shares, f"{one.seconds:.1f}" if one.seconds else "")
    yield table
    yield name(verdict(this, others, split), "bold")


def members_table(result: SplitResult) -> Table:
    """An ensemble beside each of its members, their median and the worst of them."""
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


def result_parts(
    result: SplitResult, title: str, seconds: float, company: Company | None, others: Sequence[Competitor]
) -> Iterator[Part]:
    """A split of a user's own data label by label and beside other classifiers; an ensemble seed by seed."""
    if result.confusion is not None:
        yield from class_tables(result.confusion, result.name)
        if company is not None:
            yield from company_parts(Competitor(title, result.confusion, seconds), others, result.name)
            if company.missing:  # what to install for a fuller comparison
                yield name(company.missing)
    if result.members:
        yield members_table(result)


def draw_run(
    run: RunFolder, histories: Mapping[str, Sequence[Mapping[str, Any]]], confusion: Confusion
) -> list[Path]:
    """The learning curve of each seed in its folder and the confusion matrix; none without matplotlib."""
    try:
        curves = [
            draw_learning_curve(history, RunFolder(run.path / member).pictures[0])
            for member, history in histories.items()
        ]
        return [*curves, draw_confusion(confusion, run.pictures[1])]
    except MissingExtraError:
        return []
