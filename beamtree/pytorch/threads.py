"""Chooses how many threads a piece of work runs on.

PyTorch divides even a product of a hundred rows among all threads, which then wait for each other. That is
fast on an idle machine; but if others compute on it too, one such wait can take as long as the work itself.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Event

import torch
from torch import Tensor

from beamtree.pytorch.tracing import is_compiling

WORTH_SHARING = 10_000_000  # multiplications between two waits: some tenths of a millisecond
WORTH_A_THREAD = 25_000_000  # multiplications that justify another thread: about a millisecond


def threads_for(multiplications: int, x: Tensor) -> AbstractContextManager[None]:
    """Limit PyTorch to one thread within the block if x is on a CPU and the multiplications are few."""
    if is_compiling() or x.device.type != "cpu" or multiplications >= WORTH_SHARING:
        return nullcontext()
    return nullcontext() if torch.get_num_threads() == 1 else _one_thread()


@contextmanager
def _one_thread() -> Iterator[None]:
    """PyTorch keeps this number per thread, so other threads are not affected, except one that first uses
    PyTorch while the block runs: it starts with one thread."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(before)


def share(
    count: int, most: int, multiplications: int, run: Callable[[range, Callable[[], bool]], None]
) -> None:
    """Call `run` for groups of at most `most` items, on as many of PyTorch's threads as the work justifies.

    For work that releases the GIL. `run` gets its group and a function that says whether to stop early.
    """
    threads = max(1, min(count, torch.get_num_threads(), multiplications // WORTH_A_THREAD))
    groups = -(-count // (most * threads)) * threads  # the same number for each thread
    waiting = iter([range(count * i // groups, count * (i + 1) // groups) for i in range(groups)])
    stop = Event()

    def work() -> None:
        for group in waiting:  # shared: a thread takes the next group as soon as it has finished one
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
