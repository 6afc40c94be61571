"""A whole computation as two CUDA graphs for each shape, forward and backward: thousands of kernels, two
launches.

For computations whose gradient comes from autograd: the time of their training steps goes into launches. The
graphs of a module share their memory, so together they take as much as the largest one.
"""

import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from beamtree.graphs.cache_key import has_hooks
from beamtree.pytorch import capturing
from beamtree.pytorch.capturing import GraphCache
from beamtree.pytorch.derivatives import refuse_double_backward
from beamtree.pytorch.tracing import is_compiling

Computation = Callable[..., Tensor]

MOST_CAPTURES = 2  # times the capacity; then no more, as new shapes might never end
LONGEST = 128  # tokens; for longer sequences a graph has too many kernels, and a GPU is busy without one
MULTIPLE = 8  # lengths are padded to multiples of this, so that there are few graphs


class WholeGraphs(GraphCache["_Captured"]):
    """The graphs of one module. One pass, a forward and its backward, uses them at a time.

    A forward pass runs kernel by kernel, as usual, if another one still waits for its backward pass; without
    gradients; under autocast or activation checkpointing; if the module has hooks; inside another capture;
    and with a new shape after many others.
    """

    def __init__(self, capacity: int = 32) -> None:
        super().__init__(capacity)
        self._captured = 0  # how many graphs so far
        self._beginning = threading.Lock()  # held while a pass begins
        # A weak reference to the latest pass, which lives while somebody can still ask for its backward.
        self._pass: Callable[[], _Pass | None] = lambda: None

    def may_replay(self, tokens: Tensor) -> bool:
        """Return True if sequences (B, n, d) like these may run as graphs, under the present settings."""
        return (
            self.capacity > 0
            and not is_compiling()
            and capturing.may_replay(tokens)
            and tokens.shape[0] > 0
            and 1 < tokens.shape[1] <= LONGEST
            and torch.is_grad_enabled()
            and not torch.is_autocast_enabled(tokens.device.type)
            and not _saves_elsewhere()
            and not parametrize._cache_enabled  # a graph would read this block's cached weights for ever
        )

    def padding(self, tokens: Tensor) -> int:
        """By how many tokens to pad sequences for `run`; 0 if it would not replay a graph."""
        return -tokens.shape[1] % MULTIPLE if self.may_replay(tokens) else 0

    def run(
        self,
        computation: Computation,
        inputs: Sequence[Tensor],
        reads: Sequence[nn.Module],
        options: tuple[Hashable, ...] = (),
        static: Computation | None = None,
    ) -> Tensor:
        """computation(*inputs), as graphs if possible. The first input are sequences (B, n, d).

        Apart from its inputs the computation may depend only on the parameters and dropouts of the modules in
        `reads`, and on `options`. `static` is a form of it that can be captured, if it cannot be itself.
        """
        if (
            not self.may_replay(inputs[0])
            or any(has_hooks(part) for module in reads for part in module.modules())
            or self._waits_for_a_backward()
        ):
            return computation(*inputs)
        parts = nn.ModuleList(reads)
        captured = self._find_computation(static or computation, inputs, parts, options)
        if captured is None:
            return computation(*inputs)
        with self._beginning:
            if self._waits_for_a_backward():
                return computation(*inputs)
            this = _Pass()
            self._pass = weakref.ref(this)
        output: Tensor = _Replay.apply(self, captured, this, len(inputs), *inputs, *parts.parameters())
        return output

    def _waits_for_a_backward(self) -> bool:
        latest = self._pass()
        return latest is not None and latest.waits

    def is_latest(self, one: "_Pass") -> bool:
        return self._pass() is one

    def _find_computation(
        self,
        computation: Computation,
        inputs: Sequence[Tensor],
        reads: nn.ModuleList,
        options: tuple[Hashable, ...],
    ) -> "_Captured | None":
        device = inputs[0].device
        shapes = tuple((tuple(tensor.shape), tensor.dtype) for tensor in inputs)
        addresses = tuple((w.data_ptr(), w.requires_grad) for w in reads.parameters())
        dropouts = tuple((part.training, part.p) for part in reads.modules() if isinstance(part, nn.Dropout))
        key = (shapes, addresses, dropouts, *options, *capturing.surroundings(device))

        def capture() -> _Captured | None:
            if self._captured >= MOST_CAPTURES * self.capacity:
                return None
            self._captured += 1
            return _Captured(computation, inputs, reads, self.memory(device).pool)

        return self.find(key, capture)


def lengthen(tensor: Tensor, by: int, axis: int = 1, value: float = 0.0) -> Tensor:
    """Pad an axis at its end."""
    return F.pad(tensor, (0, 0) * (tensor.dim() - 1 - axis) + (0, by), value=value) if by else tensor


def _saves_elsewhere() -> bool:
    """Return True if hooks decide where tensors for the backward pass are saved, as in activation
    checkpointing and offloading. A graph would ignore them."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda ignore_tracing: None)
    return top(False) is not None


class _Pass:
    """A forward pass and its backward pass. It `waits` between the two."""

    waits = True


class _AsModule(nn.Module):
    """The computation as a module, so that its parameters can be replaced during a call."""

    def __init__(self, computation: Computation, reads: nn.ModuleList) -> None:
        super().__init__()
        self.computation, self.reads = computation, reads

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.computation(*inputs)


class _Captured:
    """The two graphs of one computation, and their buffers."""

    def __init__(
        self, computation: Computation, inputs: Sequence[Tensor], reads: nn.ModuleList, pool: Any
    ) -> None:
        self.inputs = [
            tensor.detach().clone().requires_grad_(tensor.is_floating_point()) for tensor in inputs
        ]
        # Autograd handles a leaf on the stream on which it was first used, but a capture must not leave its
        # own stream. So the parameters are replaced by new leaves with the same memory.
        weights = {name: w.detach().requires_grad_(w.requires_grad) for name, w in reads.named_parameters()}
        wanted = [tensor for tensor in (*self.inputs, *weights.values()) if tensor.requires_grad]
        called = _AsModule(computation, reads)
        held: list[Tensor] = []  # the output, until its backward
        self.grad_output = torch.empty(0)  # made by the first backward

        def forward() -> Tensor:
            named = {f"reads.{name}": w for name, w in weights.items()}
            held.append(torch.func.functional_call(called, named, tuple(self.inputs)))
            return held[0].detach()

        def backward() -> tuple[Tensor, ...]:
            output = held.pop()
            if not self.grad_output.numel():
                self.grad_output = torch.zeros_like(output)
            return torch.autograd.grad(
                output, wanted, self.grad_output, allow_unused=True, materialize_grads=True
            )

        calls: list[Callable[[], Any]] = [forward, backward]
        with torch.enable_grad():
            (self.go_forward, self.output), (self.go_back, self.gradients) = capturing.warm_up_and_capture(
                calls, inputs[0].device, pool
            )
        held_apart = (*self.inputs, self.output, self.grad_output, *self.gradients)
        self.nbytes = sum(tensor.nbytes for tensor in held_apart)


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, graphs: WholeGraphs, captured: _Captured, this: _Pass, count: int, *given: Tensor
    ) -> Tensor:
        inputs, weights = given[:count], given[count:]
        capturing.copy_all([buffer.detach() for buffer in captured.inputs], inputs)
        captured.go_forward()
        ctx.graphs, ctx.captured, ctx.this = graphs, captured, this
        ctx.wanted = [buffer.requires_grad for buffer in captured.inputs] + [w.requires_grad for w in weights]
        ctx.save_for_backward(*weights)  # so that PyTorch sees whether they were changed in between
        return captured.output.clone()

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Any, ...]:
        refuse_double_backward()
        if not (ctx.this.waits and ctx.graphs.is_latest(ctx.this)):
            raise RuntimeError(
                "beamtree: the values saved for this backward pass are gone: the module runs as CUDA graphs, "
                "whose memory serves one backward pass. Call the module again instead of retain_graph=True"
            )
        _ = ctx.saved_tensors
        captured = ctx.captured
        captured.grad_output.copy_(grad_output)
        captured.go_back()
        fresh = capturing.copies_of(captured.gradients)
        ctx.this.waits = False  # only now: a forward pass in another thread would overwrite the gradients
        found = iter(fresh)
        return None, None, None, None, *(next(found) if wanted else None for wanted in ctx.wanted)
