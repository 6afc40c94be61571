"""Threads that are stopped at a point of their work, as the explorer stops a computation nobody waits for."""

import ctypes
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

Result = TypeVar("Result")


class Stopped(BaseException):
    pass


@contextmanager
def untraced() -> Iterator[None]:
    """Nothing here is traced, by coverage for one. In Python 3.11 a traced thread enters no function while
    another has been told to stop and cannot hear it yet: if that one waits for a lock that the first holds,
    both wait for ever."""
    here, in_new_threads = sys.gettrace(), threading.gettrace()
    sys.settrace(None)
    threading.settrace(None)  # type: ignore[arg-type]
    try:
        yield
    finally:
        threading.settrace(in_new_threads)  # type: ignore[arg-type]
        sys.settrace(here)


def stop(thread: threading.Thread) -> None:
    """Raise `Stopped` in it, between two of its bytecodes."""
    assert thread.ident is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Stopped))


def ends(thread: threading.Thread, seconds: int = 20) -> bool:
    """Whether it ends, told again where it did not hear: what a finalizer raises is lost."""
    for _ in range(seconds):
        thread.join(1)
        if not thread.is_alive():
            return True
        stop(thread)
    return False


def stop_wherever(work: Callable[[], object], check: Callable[[], object]) -> None:
    """Two threads work at the same time, on and on; `check` after each has been stopped, a hundred times."""
    draw = random.Random(0)

    def work_on_and_on() -> None:
        with suppress(Stopped):
            start.wait()
            while True:
                work()

    for _ in range(100):
        start = threading.Barrier(3)
        threads = [threading.Thread(target=work_on_and_on, daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        start.wait()
        for thread in threads:
            time.sleep(draw.random() / 1000)
            stop(thread)
        for thread in threads:
            assert ends(thread)
        check()


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
