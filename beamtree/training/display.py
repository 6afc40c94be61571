"""The display of a run: a live line in a terminal, elsewhere a plain line now and then."""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from beamtree.printable import printable

_MEASURED = 5.0  # seconds of steps from which an epoch's time is estimated
_LOG_SECONDS, _LOG_SHARE = 30.0, 0.1  # a log's next line: so much later, and so much of an epoch further on


class EverySoOften:
    """Decides when a log gets its next line: after `seconds`, and after another `share` of the work."""

    def __init__(
        self,
        seconds: float,
        share: float = 0.0,
        *,
        done: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.seconds, self.share, self.clock = seconds, share, clock
        self.last_time, self.last_done = clock(), done

    def due(self, done: float = 0.0) -> bool:
        """Whether a line is due now, with this share of the work done; if so, it counts as written."""
        now = self.clock()
        if now - self.last_time < self.seconds or done - self.last_done < self.share - 1e-9:
            return False
        self.last_time, self.last_done = now, done
        return True


def in_words(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class Display(AbstractContextManager["Display"]):
    """Epochs, loss, accuracy, speed and time left; give a `Console(quiet=True)` for silence.

    `run` is the name of one run among many: it is shown next to the bar, and no line is printed per epoch.
    """

    def __init__(
        self,
        console: Console | None = None,
        *,
        run: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.console, self.run, self.clock = console or Console(), run, clock
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
        self._headed = self._estimated = False

    def __enter__(self) -> "Display":
        self._estimated = False  # the run that begins has no estimate yet
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def begin_epoch(self, epoch: int, max_epochs: int, steps: int, done: int) -> None:
        if self._task is not None:
            self._bar.remove_task(self._task)
        name = f"epoch {epoch}/{max_epochs}"
        if self.run is not None:
            name = f"{self.run}, {name}"
        self._task = self._bar.add_task(name, total=steps, completed=done, figures="")
        self._place, self._steps, self._epochs_left = _place(epoch, max_epochs), steps, max_epochs - epoch + 1
        self._first_look: tuple[int, float] | None = None  # at which step, and when
        self._log = EverySoOften(_LOG_SECONDS, _LOG_SHARE, done=done / steps, clock=self.clock)

    def show(self, step: int, loss: float, accuracy: float, tokens_per_second: float) -> None:
        if self._task is None:
            return
        figures = f"loss {loss:.4f} accuracy {accuracy:.1%} {tokens_per_second:,.0f} tokens/s"
        self._bar.update(self._task, completed=step, figures=figures)
        now = self.clock()
        if self._first_look is None:  # steps before it are not counted: the first may compile
            self._first_look = step, now
        first, began = self._first_look
        seconds = self._steps * (now - began) / max(step - first, 1)  # per epoch
        if not self._estimated and now - began >= _MEASURED:
            self._estimated = True
            self.say(
                f"an epoch takes about {in_words(seconds)}, without its dev examples; at most "
                f"{self._epochs_left} to go: {in_words(seconds * self._epochs_left)}"
            )
        share = step / self._steps
        if not self.live and step < self._steps and self._log.due(share):
            left = f", about {in_words(seconds * (1 - share))} left" if step > first else ""
            self.say(f"{self._place}  {share:.0%}: {figures}{left}")

    def end_epoch(self, record: Mapping[str, Any], max_epochs: int) -> None:
        if self.run is not None:
            return
        if not self._headed:
            macro = "  macro-F1" if "dev_macro_f1" in record else ""
            self.say(f"  epoch     loss  accuracy  dev loss  dev accuracy{macro}  tokens/s  seconds")
            self._headed = True
        self.say(
            _place(record["epoch"], max_epochs)
            + f"{record['train_loss']:9.4f}{record['train_accuracy']:10.1%}{record['dev_loss']:10.4f}"
            f"{record['dev_accuracy']:14.2%}"
            + (f"{record['dev_macro_f1']:10.2%}" if "dev_macro_f1" in record else "")
            + f"{record['tokens_per_second']:10,.0f}{record['seconds']:9.1f}"
            + ("  best" if record["best"] else "")
        )

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self.console.print(printable(text), highlight=False, markup=False, soft_wrap=True)


def _place(epoch: int, max_epochs: int) -> str:
    return f"{epoch:>{len(str(max_epochs))}}/{max_epochs}".rjust(7)
