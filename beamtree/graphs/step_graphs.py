"""One step of a recurrence as a CUDA graph: hundreds of small kernels, started together at every replay.

Ordered Memory and CRvNN are long chains of tiny products: on a GPU they wait for launches, not for numbers.
A step is a function of constants (weights, sums to add to) and inputs; its graph is captured once for each
shape, on buffers of its own, and serves sequences of any length.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Hashable, Sequence
from functools import partial
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from beamtree.kernels.runtime import capturing

Outputs = tuple[Tensor, ...]
Step = Callable[..., Outputs]  # (constants, *inputs, **options) -> outputs; may add to constants in place


class StepGraphs:
    """The graphs of one module, at most `capacity`, the longest unused dropped first.

    Copies and pickles of the module start with none. Graphs hold no state between runs, so several forwards
    may come before their backwards. Each stream has graphs of its own; threads on one stream take turns.
    """

    def __init__(self, capacity: int = 8) -> None:
        self.capacity = capacity
        self._graphs: OrderedDict[tuple[Any, ...], _ReplayedStep] = OrderedDict()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type, tuple[int]]:
        return StepGraphs, (self.capacity,)

    def __len__(self) -> int:
        return len(self._graphs)

    def run(self, step: Step, constants: Sequence[Tensor], *, replay: bool, **options: Hashable) -> "Run":
        """`step` with its constants filled in, to be called in a `with`, always with the same shapes.

        With `replay` it runs as a graph where it can: on a GPU, unless the caller is capturing one.
        """
        return Run(self, step, constants, replay, options)

    def find(
        self, step: Step, constants: Sequence[Tensor], inputs: Sequence[Tensor], options: dict[str, Hashable]
    ) -> "_ReplayedStep":
        shapes = tuple((tuple(tensor.shape), tensor.dtype) for tensor in (*constants, *inputs))
        key = (step, shapes, *sorted(options.items()), *surroundings(inputs[0].device))
        with self._lock:
            if key not in self._graphs:
                self._graphs[key] = _ReplayedStep(partial(step, **options), constants, inputs)
            self._graphs.move_to_end(key)
            while len(self._graphs) > self.capacity:
                self._graphs.popitem(last=False)
            return self._graphs[key]


class Run:
    """A step in use. It and `constants`, which it reads and adds to, are valid inside the `with` only."""

    def __init__(
        self,
        graphs: StepGraphs,
        step: Step,
        constants: Sequence[Tensor],
        replay: bool,
        options: dict[str, Hashable],
    ) -> None:
        self.constants = constants
        self._graphs, self._step, self._replay, self._options = graphs, step, replay, options
        self._replayed: _ReplayedStep | None = None
        self._turn: Generator[None, None, None] | None = None

    def __enter__(self) -> "Run":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._turn is not None:
            self._turn.close()

    def __call__(self, *inputs: Tensor) -> Outputs:
        """The outputs, which are the caller's to keep."""
        if self._replayed is None and self._replay and may_replay(inputs[0]):
            replayed = self._graphs.find(self._step, self.constants, inputs, self._options)
            self._turn = replayed.turn()  # ours to end before it begins: a thread may be stopped anywhere
            next(self._turn)
            replayed.load(self.constants)
            self._replayed, self.constants = replayed, replayed.constants
        if self._replayed is not None:
            return self._replayed(*inputs)
        return self._step(self.constants, *inputs, **self._options)


class _ReplayedStep:
    def __init__(self, step: Step, constants: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        self._lock = threading.Lock()
        # Buffers made in inference mode could not be written to outside of it.
        with torch.inference_mode(False), torch.no_grad():
            self.constants = [_buffer_like(tensor) for tensor in constants]
            self._inputs = [_buffer_like(tensor) for tensor in inputs]
            call = partial(step, self.constants, *self._inputs)
            ((self._replay, self._outputs),) = capture([call], inputs[0].device)

    def turn(self) -> Generator[None, None, None]:
        """Begins when no other is underway; ends when it is closed, or when nobody has it any more."""
        with self._lock:
            yield

    def load(self, constants: Sequence[Tensor]) -> None:
        _copy(self.constants, constants)

    def __call__(self, *inputs: Tensor) -> Outputs:
        _copy(self._inputs, inputs)
        self._replay()
        fresh = [torch.empty_like(output) for output in self._outputs]
        _copy(fresh, self._outputs)
        return tuple(fresh)


def _copy(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """One kernel a type; together, different types would be copied one by one."""
    pairs = list(zip(targets, sources, strict=True))
    for dtype in {target.dtype: None for target in targets}:
        alike = [pair for pair in pairs if pair[0].dtype == dtype]
        torch._foreach_copy_([target for target, _ in alike], [source for _, source in alike])


def _buffer_like(tensor: Tensor) -> Tensor:
    return torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)


def may_replay(tensor: Tensor) -> bool:
    return tensor.is_cuda and not torch.cuda.is_current_stream_capturing()


def surroundings(device: torch.device) -> tuple[Hashable, ...]:
    """What a graph depends on besides its shapes: where it runs, and which kernels PyTorch would choose."""
    stream = torch.cuda.current_stream(device).cuda_stream
    matmul = torch.backends.cuda.matmul
    precision = getattr(matmul, "fp32_precision", None) or torch.get_float32_matmul_precision()
    return device, stream, precision, torch.are_deterministic_algorithms_enabled()


# By device and by the stream on which the graphs are replayed.
_capturing_streams: dict[tuple[torch.device, int], torch.cuda.Stream] = {}


def _capturing_stream(device: torch.device) -> torch.cuda.Stream:
    """Always the same: the libraries keep tens of megabytes for every stream that ever made a product."""
    key = device, torch.cuda.current_stream().cuda_stream
    if key not in _capturing_streams:
        _capturing_streams[key] = torch.cuda.Stream()
    return _capturing_streams[key]


def capture(
    calls: Sequence[Callable[[], Outputs]], device: torch.device, pool: Any = None
) -> list[tuple[Callable[[], None], Outputs]]:
    """For each call a function that replays its kernels, and the buffers that hold its outputs afterwards."""
    captured = []
    with capturing.one_at_a_time, capturing.undisturbed(), torch.cuda.device(device):
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
            graph, outputs = capturing.capture(call, stream, pool)
            captured.append((graph.replay, outputs))
    return captured
