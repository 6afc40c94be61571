"""One step of a recurrence as a CUDA graph: hundreds of small kernels, launched together by every replay.

Ordered Memory and CRvNN are long chains of tiny products, whose time on a GPU goes into launches. A step is a
function of constants (weights, and sums that it adds to) and inputs. Its graph is captured once for each
shape, with its own buffers, and serves sequences of any length.
"""

import threading
from collections.abc import Callable, Generator, Hashable, Sequence
from functools import partial

import torch
from torch import Tensor

from beamtree.pytorch import capturing
from beamtree.pytorch.capturing import GraphCache

Outputs = tuple[Tensor, ...]
Step = Callable[..., Outputs]  # (constants, *inputs, **options) -> outputs; may add to constants in place


class StepGraphs(GraphCache["_ReplayedStep"]):
    """The graphs of one module's steps.

    They hold no state between runs, so several forward passes may come before their backward passes. Each
    stream has its own graphs; threads on one stream take turns.
    """

    def __init__(self, capacity: int = 8) -> None:
        super().__init__(capacity)

    def run(self, step: Step, constants: Sequence[Tensor], *, replay: bool, **options: Hashable) -> "StepRun":
        """`step` with its constants filled in, to be called inside `with`, always with the same shapes.

        With `replay` it runs as a graph if possible: on a GPU, unless the caller is capturing a graph.
        """
        call = partial(step, **options)

        def find(inputs: Sequence[Tensor]) -> _ReplayedStep | None:
            shapes = tuple((tuple(tensor.shape), tensor.dtype) for tensor in (*constants, *inputs))
            key = (step, shapes, *sorted(options.items()), *capturing.surroundings(inputs[0].device))
            return self.find(key, lambda: _ReplayedStep(call, constants, inputs))

        return StepRun(call, constants, find if replay else None)


class StepRun:
    """A step in use. It is valid only inside the `with`, and so are `constants`, which it reads and adds
    to."""

    def __init__(
        self,
        step: Step,
        constants: Sequence[Tensor],
        find: "Callable[[Sequence[Tensor]], _ReplayedStep | None] | None",
    ) -> None:
        self.constants = constants
        self._step, self._find = step, find
        self._replayed: _ReplayedStep | None = None
        self._turn: Generator[None, None, None] | None = None

    def __enter__(self) -> "StepRun":
        return self

    def __exit__(self, *_: object) -> None:
        if self._turn is not None:
            self._turn.close()

    def __call__(self, *inputs: Tensor) -> Outputs:
        """The outputs; the caller may keep them."""
        if self._find is not None and capturing.may_replay(inputs[0]):
            replayed = self._find(inputs)
            if replayed is not None:
                # Keep the generator before it takes the lock: if the thread is interrupted in between,
                # `__exit__` can still close it.
                self._turn = replayed.turn()
                next(self._turn)
                capturing.copy_all(replayed.constants, self.constants)
                self._replayed, self.constants = replayed, replayed.constants
        self._find = None  # decided for good: a step adds to its constants, so these must stay the same
        if self._replayed is not None:
            return self._replayed(*inputs)
        return self._step(self.constants, *inputs)


class _ReplayedStep:
    """A step captured on buffers of its own."""

    def __init__(self, step: Step, constants: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        self._lock = threading.Lock()
        self.constants = [_buffer_like(tensor) for tensor in constants]
        self._inputs = [_buffer_like(tensor) for tensor in inputs]
        call = partial(step, self.constants, *self._inputs)
        ((self._replay, self._outputs),) = capturing.warm_up_and_capture([call], inputs[0].device)
        self.nbytes = sum(tensor.nbytes for tensor in (*self.constants, *self._inputs, *self._outputs))

    def turn(self) -> Generator[None, None, None]:
        """Hold the lock from the first `next` until the generator is closed or garbage-collected."""
        with self._lock:
            yield

    def __call__(self, *inputs: Tensor) -> Outputs:
        capturing.copy_all(self._inputs, inputs)
        self._replay()
        return tuple(capturing.copies_of(self._outputs))


def _buffer_like(tensor: Tensor) -> Tensor:
    return torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
