"""CUDA graphs for a user's own cell and scorer: a step of the search, and pulling the gradients of a level.

If their kernels are launched one by one, the GPU waits for the host. A graph repeats whatever Python decided
when it was captured, so everything that could change these decisions is part of its key.
"""

import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils._python_dispatch import TorchDispatchMode

from beamtree.engine.autograd_parts import AutogradCell, AutogradScore
from beamtree.engine.randomness import Randomness
from beamtree.engine.record import Tape
from beamtree.graphs.cache_key import module_key
from beamtree.graphs.static_search import StaticSearch
from beamtree.pytorch import capturing
from beamtree.pytorch.capturing import GraphCache, SharedMemory
from beamtree.pytorch.launch import power_of_two

CAPACITY = 16  # graphs of one cell, at most
BYTES_AT_MOST = 1 << 30  # of buffers, for all graphs of one cell
SHORTEST = 16  # tokens that the smallest graph has room for
_BESIDE_A_NODE = 160  # bytes, at most, of links, scores and lists for each node, besides its vector
PULLED_ROWS = (64, 512, 4096)  # sizes of the pull graphs; larger levels keep a GPU busy without

_DECIDED = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


class Graphs(NamedTuple):
    """The graphs that one recursion replays."""

    search: "SearchGraph"
    pulls: tuple["PullGraph", ...]


def find_graphs(
    cell: nn.Module,
    scorer: nn.Module,
    leaves: Tensor,  # (B, n, d)
    beam_size: int,
    randomness: Randomness | None,
    pins: Tensor | None,
) -> Graphs | None:
    """Graphs for an input, which the caller then pads to `search.shape`; None if it cannot run as graphs."""
    if not (
        leaves.shape[1] > 1 and leaves.shape[0] and type(leaves) is Tensor and capturing.may_replay(leaves)
    ):
        return None
    if parametrize._cache_enabled:  # a graph would read this block's cached weights for ever
        return None
    if getattr(cell, "_is_replica", False):  # DataParallel makes new replicas for every call
        return None
    state = module_key(cell, leaves.device), module_key(scorer, leaves.device)
    if None in state:
        return None
    with _owners_lock:
        owned = _owners.setdefault(cell, CellGraphs())
    return owned.find_recursion(
        AutogradCell(cell, ()), AutogradScore(scorer, ()), state, leaves, beam_size, randomness, pins
    )


def padded_sizes(B: int, n: int, pins: int | None) -> tuple[int, int, int | None]:
    """Rounded sizes, so that few graphs suffice: lengths up to a power of two, batches up to a multiple of an
    eighth of the power of two below."""
    eighth = max(1, (1 << B.bit_length() - 1) // 8)
    wider = pins if pins is None else power_of_two(pins)
    return -(-B // eighth) * eighth, max(SHORTEST, power_of_two(n)), wider


class CellGraphs(GraphCache["SearchGraph | PullGraph"]):
    """The graphs of one cell, freed with it."""

    of_what = " of your cell and scorer"

    def __init__(self, capacity: int = CAPACITY) -> None:
        super().__init__(capacity, BYTES_AT_MOST)
        self._asked = self._captured = 0

    def find_recursion(
        self,
        cell: AutogradCell,
        score: AutogradScore,
        state: Hashable,
        leaves: Tensor,
        beam_size: int,
        randomness: Randomness | None,
        pins: Tensor | None,
    ) -> Graphs | None:
        B, n, d = leaves.shape
        B, n, P = padded_sizes(B, n, None if pins is None else pins.shape[1])
        noisy, dropout, hidden = False, 0.0, 0
        if randomness is not None:
            noisy, dropout, hidden = randomness.noisy, randomness.dropout, randomness.hidden_size
        kind = leaves.device.type
        cast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        key = (d, leaves.dtype, dropout, hidden, cast, state, *capturing.surroundings(leaves.device))
        make_buffers = partial(
            StaticSearch, beam_size=beam_size, noisy=noisy, dropout=dropout, hidden_size=hidden, pins=P
        )
        self._asked += 1

        def capture_search() -> SearchGraph | None:
            if self._captured >= 2 * CAPACITY and 2 * self._captured > self._asked:
                raise RuntimeError("shapes or weights change too often")
            rows = B * (n + beam_size * n)
            if rows * (d * leaves.element_size() + _BESIDE_A_NODE) > self.bytes_at_most:
                return None
            self._captured += 1
            buffers = make_buffers(leaves.new_empty(B, n, d))
            return SearchGraph(buffers, cell, score, self.memory(leaves.device))

        def capture_pull(rows: int) -> PullGraph:
            return PullGraph(
                rows, cell, leaves, hidden if dropout > 0.0 else None, self.memory(leaves.device)
            )

        search = self.find((key, B, n, beam_size, noisy, P), capture_search)
        if not isinstance(search, SearchGraph):
            return None
        pulls = []
        for rows in PULLED_ROWS if torch.is_grad_enabled() else ():
            pull = self.find((key, rows), partial(capture_pull, rows))
            pulls += [pull] if isinstance(pull, PullGraph) else []
        return Graphs(search, tuple(pulls))


_owners: weakref.WeakKeyDictionary[nn.Module, CellGraphs] = weakref.WeakKeyDictionary()
_owners_lock = threading.Lock()


class SearchGraph:
    """A step of the search as a graph, and the drawing of random numbers as another."""

    def __init__(
        self,
        buffers: StaticSearch,
        cell: AutogradCell,
        score: AutogradScore,
        memory: SharedMemory,
    ) -> None:
        self.buffers, self.turn = buffers, memory.turn
        self.nbytes = buffers.nbytes
        calls: list[Callable[[], Any]] = [partial(buffers.step, cell, score)]
        calls += [buffers.draw] if buffers.steps_drawn else []
        self._step, *self._draw = (replay for replay, _ in _capture(calls, buffers.nodes.device, memory))

    @property
    def shape(self) -> tuple[int, int, int | None]:
        """How many sequences, tokens and pinned spans there is room for."""
        B, _, n = self.buffers.sizes
        fence = self.buffers.fence
        return B, n, None if fence is None else fence.pins.shape[1]

    @torch.no_grad()
    def run(
        self,
        leaves: Tensor,
        lengths: Tensor,
        score: AutogradScore,
        steps: int,
        randomness: Randomness | None,
        pins: Tensor | None,
    ) -> tuple[Tape, Tensor]:
        """The tape of a search of this many steps, and the heights of its nodes."""
        with self.turn:
            self.buffers.load(leaves, lengths, score, randomness, pins)
            for t in range(steps):
                for draw in self._draw if self._draw and t % self.buffers.steps_drawn == 0 else ():
                    draw()
                self._step()
            self.buffers.refuse_if_stuck()
            return self.buffers.tape(steps)


class PullGraph:
    """Takes the gradients of at most `rows` parents to those of their children."""

    def __init__(
        self,
        rows: int,
        cell: AutogradCell,
        like: Tensor,
        hidden_size: int | None,
        memory: SharedMemory,
    ) -> None:
        d = like.shape[-1]
        self.rows, self.turn = rows, memory.turn
        wide = torch.promote_types(like.dtype, torch.float32)
        children, keep = like.new_zeros(rows, 2, d), None
        self.inputs = [like.new_zeros(rows, d, dtype=wide), children]
        if hidden_size is not None:
            keep = like.new_zeros(rows, hidden_size)
            self.inputs.append(keep)
        cell.recompute(children, keep)
        ((self._replay, (self.pulled,)),) = _capture(
            [lambda: (cell.pull(slice(None), self.inputs[0]),)], like.device, memory
        )
        self.nbytes = sum(tensor.nbytes for tensor in (*self.inputs, self.pulled))

    def __call__(self, *inputs: Tensor) -> Tensor:  # gradients, children, masks if there are any
        count = inputs[0].shape[0]
        with self.turn:
            torch._foreach_copy_([buffer[:count] for buffer in self.inputs], list(inputs))
            self._replay()
            return self.pulled[:count].clone()


class CapturedCell(AutogradCell):
    """A cell whose small levels are pulled by graphs."""

    def __init__(
        self, cell: Callable[..., Tensor], parameters: Sequence[Tensor], pulls: Sequence[PullGraph]
    ) -> None:
        super().__init__(cell, parameters)
        self.pulls = pulls

    def pull(self, rows: slice, grad: Tensor) -> Tensor:
        for graph in self.pulls:
            if grad.shape[0] <= graph.rows:
                masks = () if self.keep is None else (self.keep[rows],)
                return graph(grad, self.children[rows], *masks)
        return super().pull(rows, grad)


def _capture(
    calls: Sequence[Callable[[], Any]], device: torch.device, memory: SharedMemory
) -> list[tuple[Callable[[], None], Any]]:
    kind = device.type
    cast, casts = torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
    # Without autocast's cache, from which weights cast earlier would be frozen into the graph; and without
    # the caller's hooks for saved tensors, as checkpointing or offloading must not apply inside a pull.
    kept_as_it_is = torch.autograd.graph.saved_tensors_hooks(_same, _same)
    with kept_as_it_is, torch.autocast(kind, cast, casts, cache_enabled=False):
        with _NothingDecided():
            for call in calls:
                call()
        return capturing.warm_up_and_capture(calls, device, memory.pool)


def _same(tensor: Tensor) -> Tensor:
    return tensor


class _NothingDecided(TorchDispatchMode):
    """Refuses operators that make the host wait for the device, with a clear error: a capture would just
    fail."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        by_number = func is torch.ops.aten.index.Tensor and not any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
        if any(tag in getattr(func, "tags", ()) for tag in _DECIDED) and not by_number:
            raise RuntimeError(f"{func} makes the host wait for the device")
        return func(*args, **(kwargs or {}))
