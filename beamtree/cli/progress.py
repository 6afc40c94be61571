"""How far a command has come: a bar on standard error that leaves nothing behind, and none in a log."""

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)


def count_up(unit: str, *, wanted: bool = True) -> Progress:
    """A bar that counts examples, lines or whatever `unit` says."""
    return show_progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeRemainingColumn(),
        wanted=wanted,
    )


def show_progress(*columns: ProgressColumn, wanted: bool = True) -> Progress:
    console = Console(stderr=True)
    return Progress(*columns, console=console, disable=not (wanted and console.is_terminal), transient=True)
