"""The cache of CUDA graphs: every module that runs as graphs has one, and so has the fused search."""

import math
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, Protocol, TypeVar

import torch

from beamtree.pytorch.capturing import one_at_a_time, surroundings, undisturbed


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
