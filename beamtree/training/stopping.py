"""When a run stops before it is over: a signal, or a limit on time or steps. It can then be resumed."""

import signal
import threading
import time
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any


class Stopping(AbstractContextManager["Stopping"]):
    """Within the block a first SIGINT or SIGTERM asks for a clean stop; a second one interrupts at once."""

    def __init__(self, *, minutes: float | None = None, steps: int | None = None) -> None:
        self.minutes, self.steps = minutes, steps
        self.signal_number: int | None = None
        self.steps_taken = 0
        self._began = time.monotonic()
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "Stopping":
        # Python lets the main thread alone set handlers; elsewhere signals keep their meaning.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @property
    def reason(self) -> str | None:
        """Why to stop after this step, or None to go on."""
        if self.signal_number is not None:
            return f"stopped by {signal.Signals(self.signal_number).name}"
        if self.steps is not None and self.steps_taken >= self.steps:
            return f"stopped after {self.steps_taken} steps, as asked"
        if self.minutes is not None and time.monotonic() - self._began >= 60 * self.minutes:
            return f"stopped after {self.minutes:g} minutes, as asked"
        return None

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal_number is not None:
            raise KeyboardInterrupt
        self.signal_number = number
