"""Threads that are stopped at a point of their work, as the explorer stops a computation nobody waits for."""

import ctypes
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

Result = TypeVar("Result")


class Stopped(BaseException):
    pass


def stop(thread: threading.Thread) -> None:
    """Raise `Stopped` in it, between two of its bytecodes."""
    assert thread.ident is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Stopped))


def stopped_while_waiting(call: Callable[[], object], seconds: float = 0.3) -> threading.Thread:
    """A thread that waits in `call` and is to be stopped as soon as it has what it waits for."""

    def work() -> None:
        with suppress(Stopped):
            call()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    time.sleep(seconds)
    assert thread.is_alive(), "it did not wait"
    stop(thread)
    return thread


def answers(call: Callable[[], Result], seconds: float = 10.0) -> Result:
    """What `call` returns, in a thread of its own; fails where it never does."""
    found: list[Result] = []
    thread = threading.Thread(target=lambda: found.append(call()), daemon=True)
    thread.start()
    thread.join(seconds)
    assert found, "it waits for ever"
    return found[0]
