"""What the user sees of a run: a live line in a terminal, one plain line an epoch elsewhere."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from beamtree.printable import printable


class Display(AbstractContextManager["Display"]):
    """Epochs, loss, accuracy, speed and time left; give a `Console(quiet=True)` for silence."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console()
        self.live = self.console.is_terminal and not self.console.quiet
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total}"),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.live,
            transient=True,
        )
        self._task: TaskID | None = None
        self._headed = False

    def __enter__(self) -> "Display":
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def begin_epoch(self, epoch: int, max_epochs: int, steps: int, done: int) -> None:
        if self._task is not None:
            self._bar.remove_task(self._task)
        name = f"epoch {epoch}/{max_epochs}"
        self._task = self._bar.add_task(name, total=steps, completed=done, figures="")

    def show(self, step: int, loss: float, accuracy: float, tokens_per_second: float) -> None:
        if self._task is not None:
            figures = f"loss {loss:.4f} accuracy {accuracy:.1%} {tokens_per_second:,.0f} tokens/s"
            self._bar.update(self._task, completed=step, figures=figures)

    def end_epoch(self, record: Mapping[str, Any], max_epochs: int) -> None:
        if not self._headed:
            macro = "  macro-F1" if "dev_macro_f1" in record else ""
            self.say(f"  epoch     loss  accuracy  dev loss  dev accuracy{macro}  tokens/s  seconds")
            self._headed = True
        self.say(
            f"{record['epoch']:>{len(str(max_epochs))}}/{max_epochs}".rjust(7)
            + f"{record['train_loss']:9.4f}{record['train_accuracy']:10.1%}{record['dev_loss']:10.4f}"
            f"{record['dev_accuracy']:14.2%}"
            + (f"{record['dev_macro_f1']:10.2%}" if "dev_macro_f1" in record else "")
            + f"{record['tokens_per_second']:10,.0f}{record['seconds']:9.1f}"
            + ("  best" if record["best"] else "")
        )

    def say(self, text: str) -> None:
        """A line that stays."""
        self.console.print(printable(text), highlight=False, markup=False, soft_wrap=True)
