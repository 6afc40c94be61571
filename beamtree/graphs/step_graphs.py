"""One step of a recurrence as a CUDA graph: hundreds of small kernels, started together at every replay.

Ordered Memory and CRvNN are long chains of tiny products: on a GPU they wait for launches, not for numbers.
A step is a function of constants (weights, sums to add to) and inputs; its graph is captured once for each
shape, on buffers of its own, and serves sequences of any length.
"""

import threading
from collections.abc import Callable, Generator, Hashable, Sequence
from functools import partial
from types import TracebackType

import torch
from torch import Tensor

from beamtree.pytorch import capturing
from beamtree.pytorch.capturing import GraphCache

Outputs = tuple[Tensor, ...]
Step = Callable[..., Outputs]  # (constants, *inputs, **options) -> outputs; may add to constants in place


class StepGraphs(GraphCache["_ReplayedStep"]):
    """The graphs of one module's steps.

    They hold no state between runs, so several forwards may come before their backwards. Each stream has
    graphs of its own; threads on one stream take turns.
    """

    def __init__(self, capacity: int = 8) -> None:
        super().__init__(capacity)

    def run(self, step: Step, constants: Sequence[Tensor], *, replay: bool, **options: Hashable) -> "StepRun":
        """`step` with its constants filled in, to be called in a `with`, always with the same shapes.

        With `replay` it runs as a graph where it can: on a GPU, unless the caller is capturing one.
        """
        return StepRun(self, step, constants, replay, options)

    def find_step(
        self, step: Step, constants: Sequence[Tensor], inputs: Sequence[Tensor], options: dict[str, Hashable]
    ) -> "_ReplayedStep | None":
        shapes = tuple((tuple(tensor.shape), tensor.dtype) for tensor in (*constants, *inputs))
        key = (step, shapes, *sorted(options.items()), *capturing.surroundings(inputs[0].device))
        return self.find(key, lambda: _ReplayedStep(partial(step, **options), constants, inputs))


class StepRun:
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
        self._graphs, self._step, self._options = graphs, step, options
        self._undecided = replay
        self._replayed: _ReplayedStep | None = None
        self._turn: Generator[None, None, None] | None = None

    def __enter__(self) -> "StepRun":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._turn is not None:
            self._turn.close()

    def __call__(self, *inputs: Tensor) -> Outputs:
        """The outputs, which are the caller's to keep."""
        if self._undecided and capturing.may_replay(inputs[0]):
            replayed = self._graphs.find_step(self._step, self.constants, inputs, self._options)
            if replayed is not None:
                self._turn = replayed.turn()  # ours to end before it begins: a thread may be stopped anywhere
                next(self._turn)
                replayed.load(self.constants)
                self._replayed, self.constants = replayed, replayed.constants
        self._undecided = False  # the constants that a step adds to are not to be others later
        if self._replayed is not None:
            return self._replayed(*inputs)
        return self._step(self.constants, *inputs, **self._options)


class _ReplayedStep:
    def __init__(self, step: Step, constants: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        self._lock = threading.Lock()
        self.constants = [_buffer_like(tensor) for tensor in constants]
        self._inputs = [_buffer_like(tensor) for tensor in inputs]
        call = partial(step, self.constants, *self._inputs)
        ((self._replay, self._outputs),) = capturing.warm_up_and_capture([call], inputs[0].device)
        self.nbytes = sum(tensor.nbytes for tensor in (*self.constants, *self._inputs, *self._outputs))

    def turn(self) -> Generator[None, None, None]:
        """Begins when no other is underway; ends when it is closed, or when nobody has it any more."""
        with self._lock:
            yield

    def load(self, constants: Sequence[Tensor]) -> None:
        capturing.copy_all(self.constants, constants)

    def __call__(self, *inputs: Tensor) -> Outputs:
        capturing.copy_all(self._inputs, inputs)
        self._replay()
        return tuple(capturing.copies_of(self._outputs))


def _buffer_like(tensor: Tensor) -> Tensor:
    return torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
