"""Split by split, by length and by depth, for the eye: tables of accuracy, loss and trees, and pictures."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from beamtree.cli.conventions import name, new_table

if TYPE_CHECKING:
    from rich.table import Table

    from beamtree.data.task import Task
    from beamtree.training.evaluate import SplitResult, Tally


def split_tables(title: str, task: "Task", results: Sequence["SplitResult"]) -> list["Table"]:
    """Of all splits, then of all of them together by length and by depth."""
    from beamtree.training.evaluate import pool

    gold = task.gold_merges is not None
    tables = [_table(f"{title} on {task.name}", "split", [(r.name, r.total) for r in results], gold)]
    whole = pool(results)
    together = ", all splits together" if len(results) > 1 else ""
    longer = "longer sentence of a pair" if task.sentences > 1 else "tokens"
    by_length = [(f"{low}–{high}", tally) for (low, high), tally in sorted(whole.by_length.items())]
    by_depth = [(str(depth), tally) for depth, tally in sorted(whole.by_depth.items())]
    if len(by_length) > 1:
        tables.append(_table(f"by length ({longer}){together}", "tokens", by_length, gold, align="right"))
    if len(by_depth) > 1:
        tables.append(_table(f"by depth (open brackets){together}", "depth", by_depth, gold, align="right"))
    return tables


def _table(
    title: str, first: str, rows: list[tuple[str, "Tally"]], gold: bool, align: Any = "left"
) -> "Table":
    table = new_table(title)
    table.add_column(first, justify=align, no_wrap=True)
    for head, style in (
        ("examples", ""),
        ("accuracy %", "bold green"),
        ("95 %\ninterval", "bright_black"),
        ("loss", ""),
        *((("bracketing\nF1 %", "cyan"), ("exact\n%", "cyan")) if gold else ()),
    ):
        table.add_column(head, justify="right", style=style, no_wrap=True)
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


def draw_splits(results: Sequence["SplitResult"], folder: Path, title: str) -> list[Path]:
    """Pictures of accuracy by length and, where there are brackets, by depth."""
    from beamtree.paper.plots import Point, draw_accuracy

    def point(x: float, tally: "Tally") -> Point:
        return Point(x, tally.accuracy, *tally.interval)

    lengths = {
        result.name: [
            point((low + high) / 2, tally) for (low, high), tally in sorted(result.by_length.items())
        ]
        for result in results
    }
    depths = {
        result.name: [point(depth, tally) for depth, tally in sorted(result.by_depth.items())]
        for result in results
        if result.by_depth
    }
    written = draw_accuracy(
        lengths, title=title, x_label="length (tokens)", stem=folder / "accuracy-by-length", log_x=True
    )
    if depths:
        written += draw_accuracy(
            depths, title=title, x_label="depth (open brackets)", stem=folder / "accuracy-by-depth"
        )
    return written
