"""Capturing CUDA graphs: one at a time, with the garbage collector held off, and cleared up on failure."""

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")

# PyTorch allows one capture at a time in a process. A `with` of the lock itself, not of a function that takes
# it, releases it wherever the thread is stopped.
one_at_a_time = threading.RLock()


@contextmanager
def undisturbed() -> Iterator[None]:
    """For the thread that captures: garbage may hold CUDA graphs, events or streams, and to free one of them
    in the middle of a capture breaks it."""
    collects = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if collects:
            gc.enable()


def capture(
    call: Callable[[], Result], stream: torch.cuda.Stream, pool: Any = None
) -> tuple[torch.cuda.CUDAGraph, Result]:
    """A graph of what the call launches, and what it returned."""
    graph = torch.cuda.CUDAGraph()
    pool = torch.cuda.graph_pool_handle() if pool is None else pool
    with one_at_a_time, undisturbed(), torch.cuda.stream(stream):
        try:
            graph.capture_begin(pool, capture_error_mode="thread_local")
            result = call()
            graph.capture_end()
        except BaseException:
            _abandon(graph, stream.device, pool)
            raise
    return graph, result


def _abandon(graph: torch.cuda.CUDAGraph, device: torch.device, pool: Any) -> None:
    """Leave a failed capture, so that the program can go on and the next capture succeeds."""
    with suppress(RuntimeError):
        graph.capture_end()
        return
    # A capture that cannot end leaves the allocator recording, and the random generator as if in use by it
    # until another capture ends well.
    with suppress(RuntimeError):
        torch._C._cuda_endAllocateToPool(device.index, pool)
    with suppress(RuntimeError), torch.cuda.stream(torch.cuda.Stream(device)):
        number = torch.zeros((), device=device)
        other = torch.cuda.CUDAGraph()
        other.capture_begin(capture_error_mode="thread_local")
        number.add_(1)
        other.capture_end()
