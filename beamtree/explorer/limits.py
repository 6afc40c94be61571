"""Limits of a request, and its computation in a thread: only a few run at once, none longer than allowed, and
none for a client that has left.

A computation that is no longer wanted is stopped as Ctrl-C stops a program: an exception is raised between
two bytecodes. This works for every encoder, and takes no longer than one tensor operation.
"""

import asyncio
import ctypes
import math
import os
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any

from beamtree.errors import BeamtreeError
from beamtree.explorer.api import Problem

_LOOK_EVERY = 0.1  # seconds between two checks that the client is still there
_TELL_EVERY = 0.5  # seconds between two attempts to stop a computation


@dataclass(frozen=True)
class Limits:
    max_tokens: int = 1000  # of a sentence
    max_beam_size: int = 20
    max_request_bytes: int = 65536
    seconds: float = 20.0  # for one computation; a request waits for its turn at most as long
    # Computations at once. They hold the GIL most of the time, so more of them would only wait for it.
    workers: int = field(default_factory=lambda: min(4, os.cpu_count() or 1))
    waiting: int = 16  # requests that may wait for a worker

    def __post_init__(self) -> None:
        for limit in fields(self):
            least = 0 if limit.name == "waiting" else 1 if limit.name != "seconds" else 0.001
            value = getattr(self, limit.name)
            if not least <= value < math.inf:
                raise BeamtreeError(
                    f"the limit {limit.name} must be at least {least} and finite, got {value}"
                )


class ClientLeftError(Exception):
    """The client no longer waits for the answer."""


class _Stopped(BaseException):
    """Raised inside a computation. Not an Exception, so no `except Exception` in a library catches it."""


class Computation:
    """One call in a thread of its own. `done` is called in that thread at the end, however the call ended."""

    def __init__(self, call: Callable[[], bytes], done: Callable[[], None]) -> None:
        self.result: bytes | None = None
        self.error: Exception | None = None
        self._call, self._done = call, done
        self._lock = threading.Lock()
        self._wanted, self._running = True, False
        self._thread = threading.Thread(target=self._run, daemon=True, name="beamtree-explorer")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the call soon, or do not start it. Its result is lost."""
        with self._lock:
            if not self._wanted:
                return
            self._wanted = False
        if self._tell():
            threading.Thread(target=self._tell_again, daemon=True, name="beamtree-explorer-stop").start()

    def _tell(self) -> bool:
        """Raise _Stopped in the thread if the call is running. Return whether it was."""
        with self._lock:
            if self._running:
                ident = ctypes.c_ulong(self._thread.ident or 0)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(_Stopped))
            return self._running

    def _tell_again(self) -> None:
        """Repeat until the call ends: an exception raised in a finalizer or a weakref callback is lost."""
        self.join(_TELL_EVERY)
        while self._tell():
            self.join(_TELL_EVERY)

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def _run(self) -> None:
        try:
            self._compute()
        except _Stopped:
            pass
        finally:
            self._leave()
            self._done()

    def _compute(self) -> None:
        with self._lock:
            if not self._wanted:
                return
            # Only now: nothing would catch an exception raised outside of `_run`.
            self._running = True
        try:
            self.result = self._call()
        except Exception as error:
            self.error = error
        self._leave()

    def _leave(self) -> None:
        """From here on, no exception is raised in the thread. One that is already pending arrives here."""
        while self._running:
            with suppress(_Stopped), self._lock:
                self._running = False


class Workshop:
    """Runs calls in threads, and returns their results."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._free = asyncio.Semaphore(limits.workers)
        self._admitted = 0  # running or waiting
        self._running: set[Computation] = set()

    async def do(self, call: Callable[[], bytes], client_left: Callable[[], Awaitable[bool]]) -> bytes:
        """The call's result or exception; without either, a Problem (busy, too_slow) or ClientLeftError."""
        busy = Problem("busy", "The explorer is busy with other requests. Try again in a moment.")
        advice = "Try a shorter text or fewer beams."
        too_slow = Problem("too_slow", f"Stopped at the time limit of {self.limits.seconds:g} s. {advice}")
        if self._admitted >= self.limits.workers + self.limits.waiting:
            raise busy
        loop = asyncio.get_running_loop()
        ended = loop.create_future()

        def end() -> None:
            with suppress(RuntimeError):  # the loop may be closed by now
                loop.call_soon_threadsafe(self._end, computation, ended)

        computation = Computation(call, end)
        self._admitted += 1
        turn = asyncio.ensure_future(self._free.acquire())
        try:
            await self._wait(turn, client_left, busy)
            computation.start()
        except BaseException:
            self._admitted -= 1
            if not turn.cancel():  # the turn had already come
                self._free.release()
            raise
        self._running.add(computation)
        try:
            await self._wait(ended, client_left, too_slow)
        finally:
            computation.stop()
        if computation.error is not None:
            raise computation.error
        if computation.result is None:  # stopped by `close`
            raise too_slow
        return computation.result

    def close(self) -> None:
        """Stop all running calls and wait a little for them: no thread may outlive the interpreter."""
        running = list(self._running)
        for computation in running:
            computation.stop()
        for computation in running:
            computation.join(2.0)

    async def _wait(
        self, event: asyncio.Future[Any], client_left: Callable[[], Awaitable[bool]], late: Problem
    ) -> None:
        """Wait for the event. Raise ClientLeftError if the client leaves, `late` at the time limit."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.limits.seconds
        while True:
            if await client_left():
                raise ClientLeftError
            if event.done():
                return
            remaining = deadline - loop.time()
            if remaining <= 0:
                raise late
            await asyncio.wait({event}, timeout=min(remaining, _LOOK_EVERY))

    def _end(self, computation: Computation, ended: asyncio.Future[None]) -> None:
        self._running.discard(computation)
        self._admitted -= 1
        self._free.release()
        ended.set_result(None)
