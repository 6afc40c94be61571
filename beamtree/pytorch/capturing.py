"""CUDA graphs: the switch that turns them off, how they are captured, and the class of their caches.

Captures happen one at a time, undisturbed, and are cleaned up if they fail. Every module that runs as graphs
has a cache of its own, and so do the kernels of the search and of its gradient.
"""

import gc
import math
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from beamtree.pytorch.derivatives import is_transformed

Result = TypeVar("Result")

# PyTorch allows one capture at a time in a process. Write `with one_at_a_time`, not a context manager around
# it: only the lock itself is sure to be released if the thread is interrupted at any point.
one_at_a_time = threading.RLock()

_wanted = True


class cuda_graphs:  # noqa: N801, named like torch.set_grad_enabled
    """Turn CUDA graphs off, or on again, in the whole process.

    `beamtree.cuda_graphs(False)` holds until the next call, `with beamtree.cuda_graphs(False):` until the end
    of the block. Without graphs all kernels are launched one by one, those of the beam search included. That
    is slower, with the same results up to rounding; it helps in debugging, and with profilers that do not
    look into graphs. Graphs captured earlier are kept.
    """

    def __init__(self, mode: bool = True) -> None:
        global _wanted
        self._before, _wanted = _wanted, bool(mode)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        global _wanted
        _wanted = self._before


def are_wanted() -> bool:
    """Return True if graphs are on (see `cuda_graphs`)."""
    return _wanted


def may_replay(tensor: Tensor) -> bool:
    """Return True if code that reads this tensor may run as a graph; not inside a capture of the caller's."""
    return (
        _wanted and tensor.is_cuda and not torch.cuda.is_current_stream_capturing() and not is_transformed()
    )


def surroundings(device: torch.device) -> tuple[Hashable, ...]:
    """What a graph depends on besides shapes: where it runs, and which kernels PyTorch would choose."""
    stream = torch.cuda.current_stream(device).cuda_stream
    matmul = torch.backends.cuda.matmul
    precision = getattr(matmul, "fp32_precision", None) or torch.get_float32_matmul_precision()
    return device, stream, precision, torch.are_deterministic_algorithms_enabled()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Keep the garbage collector off during a capture: garbage may hold CUDA graphs, events or streams, and
    freeing one of them would break the capture."""
    collects = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if collects:
            gc.enable()


# Keyed by device and by the stream on which the graphs are replayed.
_capturing_streams: dict[tuple[torch.device, int], torch.cuda.Stream] = {}


def _capturing_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream to capture on, always the same one: the libraries keep tens of megabytes for every stream
    that has ever run a matrix product."""
    key = device, torch.cuda.current_stream().cuda_stream
    if key not in _capturing_streams:
        _capturing_streams[key] = torch.cuda.Stream()
    return _capturing_streams[key]


def warm_up_and_capture(
    calls: Sequence[Callable[[], Result]], device: torch.device, pool: Any = None
) -> list[tuple[Callable[[], None], Result]]:
    """Capture each call. Returns, for each, a function that replays its kernels and the buffers that then
    hold its outputs."""
    captured = []
    with one_at_a_time, undisturbed(), torch.cuda.device(device):
        # The first call compiles kernels and sets up libraries, which a capture would refuse. It must not run
        # on the capturing stream: products there use the same workspace as the graphs captured on it, and
        # another thread may be replaying one of those.
        for call in (*calls, *calls):
            call()
        stream = _capturing_stream(device)
        for call in calls:
            # A graph has a memory pool of its own and cannot use what the allocator holds: free it.
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            graph, outputs = capture(call, stream, pool)
            captured.append((graph.replay, outputs))
    return captured


def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy with one kernel per dtype; tensors of mixed dtypes would be copied one by one."""
    pairs = list(zip(targets, sources, strict=True))
    for dtype in {target.dtype: None for target in targets}:
        alike = [pair for pair in pairs if pair[0].dtype == dtype]
        torch._foreach_copy_([target for target, _ in alike], [source for _, source in alike])


def copies_of(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies of a graph's output buffers, for the caller to keep."""
    fresh = [torch.empty_like(tensor) for tensor in tensors]
    copy_all(fresh, tensors)
    return fresh


def capture(
    call: Callable[[], Result], stream: torch.cuda.Stream, pool: Any = None
) -> tuple[torch.cuda.CUDAGraph, Result]:
    """Capture what the call launches. Returns the graph and the result of the call."""
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
    # The capture cannot be ended. The allocator is then still recording, and the random generator counts as
    # in use until another capture succeeds: stop the recording, and make a small capture.
    with suppress(RuntimeError):
        torch._C._cuda_endAllocateToPool(device.index, pool)
    with suppress(RuntimeError), torch.cuda.stream(torch.cuda.Stream(device)):
        number = torch.zeros((), device=device)
        other = torch.cuda.CUDAGraph()
        other.capture_begin(capture_error_mode="thread_local")
        number.add_(1)
        other.capture_end()


class Captured(Protocol):
    """Graphs kept under one key. They have a lock, which a caller holds while it uses them."""

    @property
    def nbytes(self) -> int:
        """The size of their buffers."""


Entry = TypeVar("Entry", bound=Captured)


class SharedMemory:
    """The memory pool that one cache's graphs share on one stream, so that only one runs at a time."""

    def __init__(self) -> None:
        self.pool = torch.cuda.graph_pool_handle()
        self.turn = threading.Lock()


class GraphCache(Generic[Entry]):
    """At most `capacity` entries, of at most `bytes_at_most` in total; the least recently used go first.

    A capacity of 0 turns the graphs off; so does, in `find`, a capture that fails, with a warning. Copies and
    pickles start empty. A thread may be interrupted anywhere, so locks are held by `with` only, and an entry
    is added only when it is finished.
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
        """The memory for a capture on the current stream. Each stream has its own, because kernels run in
        order within one stream only."""
        device_and_stream = surroundings(device)[:2]
        if device_and_stream not in self._memory:
            self._memory[device_and_stream] = SharedMemory()
        return self._memory[device_and_stream]

    def find(self, key: Hashable, capture: Callable[[], Entry | None]) -> Entry | None:
        """As `get`, but a capture that fails turns the graphs off, with a warning. None if there is no
        entry."""
        if self.capacity == 0:
            return None
        try:
            return self.get(key, capture)
        except RuntimeError as error:
            self.give_up(str(error))
            return None

    def get(self, key: Hashable, capture: Callable[[], Entry | None]) -> Entry | None:
        """The entry of a key, captured if it is missing; None if `capture` returns None.

        If the capture raises an error, the cache is unchanged.
        """
        entry = self._used(key)
        if entry is not None:
            return entry
        # Take the capture lock first, then the look-up lock: another thread may hold the capture lock and,
        # while it warms up a call, look up graphs in this same cache.
        with one_at_a_time, undisturbed():
            entry = self._used(key)
            if entry is None:
                # Buffers made in inference mode cannot be written to outside it.
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
        warnings.warn(
            f"beamtree: no CUDA graphs{self.of_what}, slower but just as exact: {reason}", stacklevel=2
        )
