"""How many threads a piece of work is worth.

PyTorch shares even a product of a hundred rows between all threads, which then wait for each other: fast on
an idle machine, but where others compute too a single wait may take as long as the whole work.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Event

import torch
from torch import Tensor

from beamtree.pytorch.tracing import is_compiling

WORTH_SHARING = 10_000_000  # multiplications between two waits: some tenths of a millisecond
WORTH_A_THREAD = 25_000_000  # multiplications that a new thread is started for: about a millisecond


def threads_for(multiplications: int, x: Tensor) -> AbstractContextManager[None]:
    """One thread for PyTorch within the block, if so many multiplications of x, on a CPU, are few."""
    if is_compiling() or x.device.type != "cpu" or multiplications >= WORTH_SHARING:
        return nullcontext()
    return nullcontext() if torch.get_num_threads() == 1 else _one_thread()


@contextmanager
def _one_thread() -> Iterator[None]:
    """PyTorch keeps the number for each thread: those that compute beside this one keep theirs. Only a thread
    that meets PyTorch for the first time within the block would begin with one."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(before)


def share(
    count: int, most: int, multiplications: int, run: Callable[[range, Callable[[], bool]], None]
) -> None:
    """Call `run` for groups of at most `most`, on as many of PyTorch's threads as the work is worth.

    For what lets go of Python's lock. `run` gets its group, and a function that says when to stop early.
    """
    threads = max(1, min(count, torch.get_num_threads(), multiplications // WORTH_A_THREAD))
    groups = -(-count // (most * threads)) * threads  # as many for each thread
    waiting = iter([range(count * i // groups, count * (i + 1) // groups) for i in range(groups)])
    stop = Event()

    def work() -> None:
        for group in waiting:  # a thread takes the next one as soon as it is done with its last
            if not stop.is_set():
                run(group, stop.is_set)

    if threads == 1:
        return work()
    with ThreadPoolExecutor(threads - 1) as others:
        ends = [others.submit(work) for _ in range(threads - 1)]
        try:
            work()
            for end in ends:
                end.result()
        except BaseException:
            stop.set()
            raise
