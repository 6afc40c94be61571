"""A whole computation, forward and backward, as two CUDA graphs a shape: thousands of kernels, two launches.

For what leaves its gradient to autograd: a training step of such waits for launches, not for numbers. The
graphs of a module share their memory, so it holds what one step needs, the largest.
"""

import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from beamtree.graphs.cache_key import has_hooks
from beamtree.pytorch import capturing
from beamtree.pytorch.capturing import GraphCache
from beamtree.pytorch.derivatives import refuse_double_backward
from beamtree.pytorch.tracing import is_compiling

Outputs = tuple[Tensor, ...]
Computation = Callable[..., Outputs]

MOST_CAPTURES = 2  # times the capacity: shapes without end would be captured without end
LONGEST = 128  # beyond, a graph has too many kernels, and they have enough to do
MULTIPLE = 8  # lengths are padded to, so that few of them have graphs of their own


class WholeGraphs(GraphCache["_Captured"]):
    """The graphs of one module, which one pass uses at a time.

    A forward that comes while another still waits for its backward runs as usual, kernel by kernel, and so
    does one without gradients, under autocast or activation checkpointing, of a module with hooks, inside
    another capture, or of a new shape after many others.
    """

    def __init__(self, capacity: int = 32) -> None:
        super().__init__(capacity)
        self._captured = 0  # so far
        self._beginning = threading.Lock()  # of a pass
        # The latest, while anything may still ask for it.
        self._pass: Callable[[], _Pass | None] = lambda: None

    def may_replay(self, tokens: Tensor) -> bool:
        """Whether graphs are for such sequences (B, n, d), and for now."""
        return (
            self.capacity > 0
            and not is_compiling()
            and capturing.may_replay(tokens)
            and tokens.shape[0] > 0
            and 1 < tokens.shape[1] <= LONGEST
            and torch.is_grad_enabled()
            and not torch.is_autocast_enabled(tokens.device.type)
            and not _saves_elsewhere()
        )

    def padding(self, tokens: Tensor) -> int:
        """How much longer sequences should be for `run`; nothing where it would not replay."""
        return -tokens.shape[1] % MULTIPLE if self.may_replay(tokens) else 0

    def run(
        self,
        computation: Computation,
        inputs: Sequence[Tensor],
        reads: Sequence[nn.Module],
        options: tuple[Hashable, ...] = (),
        static: Computation | None = None,
    ) -> Outputs:
        """computation(*inputs), sequences (B, n, d) first, which reads the parameters and dropouts of these
        modules and nothing else that changes but these options.

        `static` is the computation in a form that can be captured, where its own cannot.
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
        found: Outputs = _Replay.apply(self, captured, this, len(inputs), *inputs, *parts.parameters())
        return found

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
    """Whether what the backward pass needs is kept by hooks, as activation checkpointing and offloading do: a
    graph would keep it nevertheless."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda ignore_tracing: None)
    return top(False) is not None


class _Pass:
    """A forward and its backward. It waits from the one to the other, or until nobody can ask for it."""

    waits = True


class _AsModule(nn.Module):
    """The computation as a module, so that its parameters can be replaced during a call."""

    def __init__(self, computation: Computation, reads: nn.ModuleList) -> None:
        super().__init__()
        self.computation, self.reads = computation, reads

    def forward(self, *inputs: Tensor) -> Outputs:
        return self.computation(*inputs)


class _Captured:
    def __init__(
        self, computation: Computation, inputs: Sequence[Tensor], reads: nn.ModuleList, pool: Any
    ) -> None:
        self.inputs = [
            tensor.detach().clone().requires_grad_(tensor.is_floating_point()) for tensor in inputs
        ]
        # Autograd runs what belongs to a leaf on the stream where the leaf was first used, and a capture must
        # not leave its own: so the parameters are other leaves here, of the same memory.
        weights = {name: w.detach().requires_grad_(w.requires_grad) for name, w in reads.named_parameters()}
        wanted = [tensor for tensor in (*self.inputs, *weights.values()) if tensor.requires_grad]
        called = _AsModule(computation, reads)
        held: list[Tensor] = []
        self.grad_outputs: list[Tensor] = []
        self.differentiable: list[bool] = []

        def forward() -> Outputs:
            named = {f"reads.{name}": w for name, w in weights.items()}
            found = torch.func.functional_call(called, named, tuple(self.inputs))
            held[:] = [output for output in found if output.requires_grad]
            self.differentiable = [output.requires_grad for output in found]
            return tuple(output.detach() for output in found)

        def backward() -> Outputs:
            if not self.grad_outputs:
                self.grad_outputs = [torch.zeros_like(output) for output in held]
            outputs = held[:]
            held.clear()
            return torch.autograd.grad(
                outputs, wanted, self.grad_outputs, allow_unused=True, materialize_grads=True
            )

        with torch.enable_grad():
            (self.go_forward, self.outputs), (self.go_back, self.gradients) = capturing.warm_up_and_capture(
                (forward, backward), inputs[0].device, pool
            )
        held_apart = (*self.inputs, *self.outputs, *self.grad_outputs, *self.gradients)
        self.nbytes = sum(tensor.nbytes for tensor in held_apart)


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, graphs: WholeGraphs, captured: _Captured, this: _Pass, count: int, *given: Tensor
    ) -> Outputs:
        inputs, weights = given[:count], given[count:]
        capturing.copy_all([buffer.detach() for buffer in captured.inputs], inputs)
        captured.go_forward()
        ctx.graphs, ctx.captured, ctx.this = graphs, captured, this
        ctx.wanted = [buffer.requires_grad for buffer in captured.inputs] + [w.requires_grad for w in weights]
        ctx.save_for_backward(*weights)  # so that PyTorch sees whether they were changed in between
        fresh = capturing.copies_of(captured.outputs)
        pairs = zip(fresh, captured.differentiable, strict=True)
        ctx.mark_non_differentiable(*(output for output, differentiable in pairs if not differentiable))
        return tuple(fresh)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Any, ...]:
        refuse_double_backward()
        if not (ctx.this.waits and ctx.graphs.is_latest(ctx.this)):
            raise RuntimeError(
                "beamtree: what this computation kept for its backward pass is gone: it runs as CUDA graphs, "
                "whose memory serves one backward pass. Instead of retain_graph=True call the module again"
            )
        _ = ctx.saved_tensors
        captured = ctx.captured
        pairs = zip(grad_outputs, captured.differentiable, strict=True)
        capturing.copy_all(captured.grad_outputs, [grad for grad, carries in pairs if carries])
        captured.go_back()
        fresh = capturing.copies_of(captured.gradients)
        ctx.this.waits = False  # only now: another thread's forward would write where the gradients are
        found = iter(fresh)
        return None, None, None, None, *(next(found) if wanted else None for wanted in ctx.wanted)
