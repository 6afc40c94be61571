"""SIGKILL at a chosen point: before, inside and after each write, before and after each flush and rename.

Points are numbered in the order in which a process reaches them, so that each can be struck in turn.
"""

import io
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


class Points:
    """Counts the points of this process and strikes at one of them."""

    def __init__(self, strike_at: int | None = None, log: Path | None = None) -> None:
        self.strike_at, self.reached = strike_at, 0
        self.log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND) if log is not None else None

    def reach(self, what: str) -> None:
        if self.log is not None:
            os.write(self.log, f"{what}\n".encode())
        if self.reached == self.strike_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.reached += 1

    def install(self) -> None:
        """Put points around what the writers of beamtree call."""
        for name in ("fsync", "replace"):
            setattr(os, name, self._around(name, getattr(os, name)))
        io.open = self._watching(io.open)  # which os.fdopen and pathlib call

    def _around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def struck(*arguments: Any) -> Any:
            self.reach(f"before {name}")
            result = function(*arguments)
            self.reach(f"after {name}")
            return result

        return struck

    def _watching(self, opener: Callable[..., Any]) -> Callable[..., Any]:
        def watched(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            opened = opener(file, mode, *arguments, **options)
            return WatchedFile(opened, self) if mode in ("wb", "a") else opened

        return watched


class WatchedFile:
    """A file whose writes are points."""

    def __init__(self, file: Any, points: Points) -> None:
        self._file, self._points = file, points

    def write(self, data: Any) -> int:
        half = len(data) // 2
        self._points.reach("before write")
        self._file.write(data[:half])
        self._file.flush()
        self._points.reach("inside write")
        self._file.write(data[half:])
        self._file.flush()
        self._points.reach("after write")
        return len(data)

    def writelines(self, lines: Iterable[Any]) -> None:
        pieces = list(lines)
        if pieces:
            self.write(type(pieces[0])().join(pieces))

    def __enter__(self) -> "WatchedFile":
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
