"""A whole recursion, forward and backward, as two CUDA graphs a shape: thousands of kernels, two launches.

For encoders that leave their gradient to autograd: a training step of theirs waits for launches, not for
numbers. The graphs of a module share their memory, so it holds what one step needs, the largest.
"""

import threading
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from beamtree.generic import NO_SECOND_DERIVATIVE
from beamtree.rivals import step_graphs

Recursion = Callable[[Tensor, Tensor], Tensor]  # leaves (B, n, d), lengths (B,) -> root (B, d)

LONGEST = 128  # beyond, a graph has too many kernels, and they have enough to do
MULTIPLE = 8  # lengths are padded to, so that few of them have graphs of their own


class WholeGraphs:
    """The graphs of one module, at most `capacity`, the longest unused dropped first.

    One pass uses them at a time. A forward that comes while another still waits for its backward runs as
    usual, kernel by kernel, and so does one under autocast, without gradients or inside another capture.
    Copies and pickles of the module start with no graphs. A capacity of 0 turns them off, as does a capture
    that fails, with a warning.
    """

    def __init__(self, capacity: int = 32) -> None:
        self.capacity = capacity
        self._graphs: OrderedDict[tuple[Any, ...], _Captured] = OrderedDict()
        self._lock = threading.Lock()
        self._pools: dict[tuple[Hashable, ...], Any] = {}
        # The latest, while anything may still ask for it.
        self._pass: Callable[[], _Pass | None] = lambda: None

    def __reduce__(self) -> tuple[type, tuple[int]]:
        return WholeGraphs, (self.capacity,)

    def __len__(self) -> int:
        return len(self._graphs)

    def run(
        self,
        recursion: Recursion,
        leaves: Tensor,
        lengths: Tensor,
        reads: Sequence[nn.Module],
        options: tuple[Hashable, ...],
        static: Recursion | None = None,
    ) -> Tensor:
        """recursion(leaves, lengths), which reads the parameters of these modules and nothing else that
        changes but these options.

        `static` is the recursion in a form that can be captured, where its own cannot.
        """
        if not self._may_replay(leaves):
            return recursion(leaves, lengths)
        leaves = F.pad(leaves, (0, 0, 0, -leaves.shape[1] % MULTIPLE))
        with self._lock:
            latest = self._pass()
            if latest is not None and latest.waits:
                return recursion(leaves, lengths)
            parts = nn.ModuleList(reads)
            try:
                captured = self._find(static or recursion, leaves, lengths, parts, options)
            except RuntimeError as error:
                self.capacity = 0
                warnings.warn(f"beamtree: no CUDA graphs, slower but as exact: {error}", stacklevel=2)
                return recursion(leaves, lengths)
            this = _Pass()
            self._pass = weakref.ref(this)
        root: Tensor = _Replay.apply(self, captured, this, leaves, lengths, *parts.parameters())
        return root

    def is_latest(self, one: "_Pass") -> bool:
        return self._pass() is one

    def _may_replay(self, leaves: Tensor) -> bool:
        return (
            self.capacity > 0
            and 1 < leaves.shape[1] <= LONGEST
            and torch.is_grad_enabled()
            and not torch.is_autocast_enabled(leaves.device.type)
            and not torch.compiler.is_compiling()
            and step_graphs.may_replay(leaves)
        )

    def _find(
        self,
        recursion: Recursion,
        leaves: Tensor,
        lengths: Tensor,
        reads: nn.ModuleList,
        options: tuple[Hashable, ...],
    ) -> "_Captured":
        addresses = tuple((w.data_ptr(), w.requires_grad) for w in reads.parameters())
        surroundings = step_graphs.surroundings(leaves.device)
        key = (tuple(leaves.shape), leaves.dtype, addresses, *options, *surroundings)
        if key not in self._graphs:
            device_and_stream = surroundings[:2]  # only one stream's kernels keep an order
            if device_and_stream not in self._pools:
                self._pools[device_and_stream] = torch.cuda.graph_pool_handle()
            pool = self._pools[device_and_stream]
            self._graphs[key] = _Captured(recursion, leaves, lengths, reads, pool)
        self._graphs.move_to_end(key)
        while len(self._graphs) > self.capacity:
            self._graphs.popitem(last=False)
        return self._graphs[key]


class _Pass:
    """A forward and its backward. It waits from the one to the other, or until nobody can ask for it."""

    waits = True


class _Reading(nn.Module):
    """The recursion as a module, so that its parameters can be replaced during a call."""

    def __init__(self, recursion: Recursion, reads: nn.ModuleList) -> None:
        super().__init__()
        self.recursion, self.reads = recursion, reads

    def forward(self, leaves: Tensor, lengths: Tensor) -> Tensor:
        return self.recursion(leaves, lengths)


class _Captured:
    def __init__(
        self, recursion: Recursion, leaves: Tensor, lengths: Tensor, reads: nn.ModuleList, pool: Any
    ) -> None:
        self.leaves, self.lengths = leaves.detach().clone().requires_grad_(), lengths.clone()
        # Autograd runs what belongs to a leaf on the stream where the leaf was first used, and a capture must
        # not leave its own: so the parameters are other leaves here, of the same memory.
        weights = {name: w.detach().requires_grad_(w.requires_grad) for name, w in reads.named_parameters()}
        wanted = [self.leaves, *(w for w in weights.values() if w.requires_grad)]
        called = _Reading(recursion, reads)
        held: list[Tensor] = []

        def forward() -> tuple[Tensor, ...]:
            named = {f"reads.{name}": w for name, w in weights.items()}
            held[:] = [torch.func.functional_call(called, named, (self.leaves, self.lengths))]
            return (held[0].detach(),)

        def backward() -> tuple[Tensor, ...]:
            return torch.autograd.grad(
                held.pop(), wanted, self.grad_root, allow_unused=True, materialize_grads=True
            )

        self.grad_root = torch.zeros_like(leaves[:, 0])
        with torch.enable_grad():
            (self.go_forward, (self.root,)), (self.go_back, self.gradients) = step_graphs.capture(
                (forward, backward), leaves.device, pool
            )


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, graphs: WholeGraphs, captured: _Captured, this: _Pass, leaves: Tensor, *rest: Tensor
    ) -> Tensor:
        lengths, *weights = rest
        captured.leaves.detach().copy_(leaves)
        captured.lengths.copy_(lengths)
        captured.go_forward()
        ctx.graphs, ctx.captured, ctx.this = graphs, captured, this
        ctx.wanted = [w.requires_grad for w in weights]
        ctx.save_for_backward(*weights)  # so that PyTorch sees whether they were changed in between
        return captured.root.clone()

    @staticmethod
    def backward(ctx: Any, grad_root: Tensor) -> tuple[Any, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(NO_SECOND_DERIVATIVE)
        if not (ctx.this.waits and ctx.graphs.is_latest(ctx.this)):
            raise RuntimeError(
                "beamtree: what this recursion kept for its backward pass is gone: it runs as CUDA graphs, "
                "whose memory serves one backward pass. Instead of retain_graph=True call the encoder again"
            )
        _ = ctx.saved_tensors
        captured = ctx.captured
        captured.grad_root.copy_(grad_root)
        captured.go_back()
        ctx.this.waits = False
        fresh = [torch.empty_like(gradient) for gradient in captured.gradients]
        torch._foreach_copy_(fresh, list(captured.gradients))
        to_leaves, *rest = fresh
        found = iter(rest)
        return None, None, None, to_leaves, None, *(next(found) if wants else None for wants in ctx.wanted)
