"""CUDA graphs: whether they are wanted; capturing, one at a time, undisturbed and cleared up on failure; and
the cache that every module which runs as graphs has of its own, as has the fused search.
"""

import gc
import math
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from beamtree.pytorch.derivatives import is_transformed

Result = TypeVar("Result")

# PyTorch allows one capture at a time in a process. A `with` of the lock itself, not of a function that takes
# it, releases it wherever the thread is stopped.
one_at_a_time = threading.RLock()

_wanted = True


class cuda_graphs:  # noqa: N801, written as torch.set_grad_enabled is
    """Turn CUDA graphs off or on again, in the whole process, for all that would run as one on a GPU.

    `beamtree.cuda_graphs(False)` holds until the next call, `with beamtree.cuda_graphs(False):` until the end
    of the block. Results are the same up to rounding; without graphs kernels are launched one by one, those
    of the beam search included, which is slower. It helps to find a fault, and profilers that do not look
    into graphs. Graphs that were captured before are kept.
    """

    def __init__(self, mode: bool = True) -> None:
        global _wanted
        self._before, _wanted = _wanted, bool(mode)

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _wanted
        _wanted = self._before


def are_wanted() -> bool:
    """Whether graphs are on, see `cuda_graphs`."""
    return _wanted


def may_replay(tensor: Tensor) -> bool:
    """Whether what reads this tensor may run as a graph, which it may not while the caller captures one."""
    return (
        _wanted and tensor.is_cuda and not torch.cuda.is_current_stream_capturing() and not is_transformed()
    )


def surroundings(device: torch.device) -> tuple[Hashable, ...]:
    """What a graph depends on besides its shapes: where it runs, and which kernels PyTorch would choose."""
    stream = torch.cuda.current_stream(device).cuda_stream
    matmul = torch.backends.cuda.matmul
    precision = getattr(matmul, "fp32_precision", None) or torch.get_float32_matmul_precision()
    return device, stream, precision, torch.are_deterministic_algorithms_enabled()


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


# By device and by the stream on which the graphs are replayed.
_capturing_streams: dict[tuple[torch.device, int], torch.cuda.Stream] = {}


def _capturing_stream(device: torch.device) -> torch.cuda.Stream:
    """Always the same: the libraries keep tens of megabytes for every stream that ever made a product."""
    key = device, torch.cuda.current_stream().cuda_stream
    if key not in _capturing_streams:
        _capturing_streams[key] = torch.cuda.Stream()
    return _capturing_streams[key]


def warm_up_and_capture(
    calls: Sequence[Callable[[], Result]], device: torch.device, pool: Any = None
) -> list[tuple[Callable[[], None], Result]]:
    """For each call a function that replays its kernels, and the buffers that hold its outputs afterwards."""
    captured = []
    with one_at_a_time, undisturbed(), torch.cuda.device(device):
        # Kernels are compiled and libraries set up at the first call, which a capture would refuse. Not on
        # the stream of the captures: a product there works in memory in which graphs do theirs, and another
        # thread may be replaying one.
        for call in (*calls, *calls):
            call()
        stream = _capturing_stream(device)
        for call in calls:
            # What the allocator holds would be of no use to a graph, which has memory of its own.
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            graph, outputs = capture(call, stream, pool)
            captured.append((graph.replay, outputs))
    return captured


def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """One kernel a type; together, different types would be copied one by one."""
    pairs = list(zip(targets, sources, strict=True))
    for dtype in {target.dtype: None for target in targets}:
        alike = [pair for pair in pairs if pair[0].dtype == dtype]
        torch._foreach_copy_([target for target, _ in alike], [source for _, source in alike])


def copies_of(tensors: Sequence[Tensor]) -> list[Tensor]:
    """What a graph leaves in its buffers, for the caller to keep."""
    fresh = [torch.empty_like(tensor) for tensor in tensors]
    copy_all(fresh, tensors)
    return fresh


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


class Captured(Protocol):
    """Graphs that are kept under one key; whoever uses them has a lock of theirs meanwhile."""

    @property
    def nbytes(self) -> int:
        """Of their buffers."""


Entry = TypeVar("Entry", bound=Captured)


class SharedMemory:
    """What the graphs of one cache on one stream work in, so one of them runs at a time."""

    def __init__(self) -> None:
        self.pool = torch.cuda.graph_pool_handle()
        self.turn = threading.Lock()


class GraphCache(Generic[Entry]):
    """At most `capacity` entries of at most `bytes_at_most` together, the longest unused dropped first.

    A capacity of 0 turns the graphs off, as does a capture that fails, with a warning. Copies and pickles
    start with none. A thread may be stopped anywhere: locks are held by a `with` alone, and what is half made
    is in nobody's hands.
    """

    of_what = ""  # whose graphs they are, for the warning

    def __init__(self, capacity: int, bytes_at_most: float = math.inf) -> None:
        self.capacity, self.bytes_at_most = capacity, bytes_at_most
        self._entries: OrderedDict[Hashable, Entry] = OrderedDict()
        self._memory: dict[tuple[Hashable, ...], SharedMemory] = {}
        self._look_up = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.capacity,)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def nbytes(self) -> int:
        return sum(entry.nbytes for entry in self._entries.values())

    def memory(self, device: torch.device) -> SharedMemory:
        """For a capture on the current stream: only one stream's kernels keep an order."""
        device_and_stream = surroundings(device)[:2]
        if device_and_stream not in self._memory:
            self._memory[device_and_stream] = SharedMemory()
        return self._memory[device_and_stream]

    def find(self, key: Hashable, capture: Callable[[], Entry | None]) -> Entry | None:
        """The entry of a key; None where there can be none, after a warning if its capture failed."""
        if self.capacity == 0:
            return None
        try:
            return self.get(key, capture)
        except RuntimeError as error:
            self.give_up(str(error))
            return None

    def get(self, key: Hashable, capture: Callable[[], Entry | None]) -> Entry | None:
        """The entry of a key, which is captured where there is none and `capture` does not return None.

        Where it fails nothing has changed.
        """
        entry = self._used(key)
        if entry is not None:
            return entry
        # The turn to capture comes before that to look up: a call that somebody else warms up for a capture
        # may have graphs of this cache.
        with one_at_a_time, undisturbed():
            entry = self._used(key)
            if entry is None:
                # Buffers made in inference mode could not be written to outside of it.
                with torch.inference_mode(False), torch.no_grad():
                    entry = capture()
                if entry is not None:
                    with self._look_up:
                        self._entries[key] = entry
                        self._drop_the_longest_unused()
        return entry

    def _used(self, key: Hashable) -> Entry | None:
        with self._look_up:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
                self._drop_the_longest_unused()
            return entry

    def _drop_the_longest_unused(self) -> None:
        while len(self._entries) > self.capacity or (
            self.bytes_at_most < math.inf and self.nbytes > self.bytes_at_most
        ):
            self._entries.popitem(last=False)

    def give_up(self, reason: str) -> None:
        self.capacity = 0
        with self._look_up:
            self._entries.clear()
        warnings.warn(f"beamtree: no CUDA graphs{self.of_what}, slower but as exact: {reason}", stacklevel=2)
