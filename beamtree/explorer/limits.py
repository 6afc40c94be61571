"""What a request may cost, and its computation in a thread of its own: few at a time, none longer than
allowed, none for a client that left.

A computation that is no longer wanted is stopped as Ctrl-C stops a program: an exception is raised between
two of its bytecodes. It reaches every encoder, whatever its loop, within one of its tensor operations.
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

_LOOK_EVERY = 0.1  # seconds between two looks whether the client is still there
_TELL_EVERY = 0.5  # seconds between two tries to stop a computation


@dataclass(frozen=True)
class Limits:
    max_tokens: int = 1000  # of a sentence
    max_beam_size: int = 20
    max_request_bytes: int = 65536
    seconds: float = 20.0  # of one computation; a request waits at most as long for its turn
    # Computations at once. They hold the interpreter's lock most of the time: more would only wait for it.
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


class BusyError(Exception):
    """No worker became free in time, or too many wait for one already."""


class TooSlowError(Exception):
    """The computation was stopped at the time limit."""


class ClientLeftError(Exception):
    """Nobody waits for the answer any more."""


class _Stopped(BaseException):
    """Raised inside a computation; no `except Exception` of the libraries it calls may hold it up."""


class Computation:
    """One call in one thread. `done` is called in that thread at its end, whatever that end was."""

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
        """End it soon, or never begin it; what it would have returned is lost."""
        with self._lock:
            if not self._wanted:
                return
            self._wanted = False
        if self._tell():
            threading.Thread(target=self._tell_again, daemon=True, name="beamtree-explorer-stop").start()

    def _tell(self) -> bool:
        """Raise in its thread that it is stopped; whether there was something to stop."""
        with self._lock:
            if self._running:
                ident = ctypes.c_ulong(self._thread.ident or 0)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(_Stopped))
            return self._running

    def _tell_again(self) -> None:
        """What is raised inside a finalizer or a weak reference's callback is lost."""
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
            # Not before: an exception raised outside of `_run` would be caught by nobody.
            self._running = True
        try:
            self.result = self._call()
        except Exception as error:
            self.error = error
        self._leave()

    def _leave(self) -> None:
        """From here on it is not told to stop. If it was a moment ago, it hears that here at the latest."""
        while self._running:
            with suppress(_Stopped), self._lock:
                self._running = False


class Workshop:
    """Hands calls to threads and answers with what they return."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._free = asyncio.Semaphore(limits.workers)
        self._admitted = 0  # computing or waiting
        self._running: set[Computation] = set()

    async def do(self, call: Callable[[], bytes], client_left: Callable[[], Awaitable[bool]]) -> bytes:
        """The call's result, or its exception; BusyError, TooSlowError or ClientLeftError without either."""
        if self._admitted >= self.limits.workers + self.limits.waiting:
            raise BusyError
        loop = asyncio.get_running_loop()
        ended = loop.create_future()

        def end() -> None:
            with suppress(RuntimeError):  # the loop may be closed by now
                loop.call_soon_threadsafe(self._end, computation, ended)

        computation = Computation(call, end)
        self._admitted += 1
        turn = asyncio.ensure_future(self._free.acquire())
        try:
            await self._wait(turn, client_left, BusyError)
            computation.start()
        except BaseException:
            self._admitted -= 1
            if not turn.cancel():  # it had come
                self._free.release()
            raise
        self._running.add(computation)
        try:
            await self._wait(ended, client_left, TooSlowError)
        finally:
            computation.stop()
        if computation.error is not None:
            raise computation.error
        if computation.result is None:  # stopped by `close`
            raise TooSlowError
        return computation.result

    def close(self) -> None:
        """Stop all that runs, and wait for it a little: a thread may not outlive the interpreter."""
        running = list(self._running)
        for computation in running:
            computation.stop()
        for computation in running:
            computation.join(2.0)

    async def _wait(
        self, event: asyncio.Future[Any], client_left: Callable[[], Awaitable[bool]], late: type[Exception]
    ) -> None:
        """Until it comes; as long as the client stays, and until it is late."""
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
