"""The recursion's fast path on a GPU, for the built-in cell and scorer in float32.

A compiler sees two registered operators, `beamtree::fused_search` and `beamtree::fused_replay`, with tensors
in and tensors out. Eager code calls the same two functions through an autograd function, which costs less
host time. The Triton kernels are imported when the first search runs.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from beamtree.kernels.runtime.products import precision_of
from beamtree.parts.weights import Weights
from beamtree.pytorch.derivatives import refuse_double_backward, refuse_second_derivative
from beamtree.pytorch.launch import HAS_TRITON, aligned, has_kernels
from beamtree.pytorch.precision import without_autocast
from beamtree.pytorch.registry import register
from beamtree.pytorch.tracing import is_compiling

BEAMS_AT_MOST = 32
NARROWEST, WIDEST = 16, 1024
SEEN, TAPE = 5, 3  # the outputs that users see, and the tensors of the tape that follow them
Outputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


class FusedTape(NamedTuple):
    """The record of a search, for its gradient. Nodes are numbered within their sequence: leaves from 0 to
    n−1, and n + t·K + k is the node that step t made in slot k, the beam's index after that step."""

    nodes: Tensor  # (B, n + (n−1)·K, d)
    integers: Tensor  # int32: links (B, n−1, K, 4), slots (B, K, n−1), heights (B, n−1, K)
    floats: Tensor  # energies, the recorded scores (B, n−1, K, 4); log Z of each lineage (B, K, n−1)

    @staticmethod
    def of(nodes: Tensor, K: int, make: Callable[..., Tensor]) -> "FusedTape":
        """A tape for a node store; `make` allocates its records (`new_zeros` or `new_empty`)."""
        made = _merges(nodes, K)
        return FusedTape(nodes, make(5 * made + padded(made), dtype=torch.int32), make(5 * made))

    def parts(self, K: int) -> tuple[Tensor, ...]:
        """Links, slots, heights, energies and log Z, each flat."""
        made = _merges(self.nodes, K)
        links, slots, heights = self.integers.split((4 * made, padded(made), made))
        energies, log_z = self.floats.split((4 * made, made))
        return links, slots[:made], heights, energies, log_z


def longest(nodes: Tensor, K: int) -> int:
    """n of a node store (B, n + (n−1)·K, d)."""
    return (nodes.shape[1] + K) // (1 + K)


def padded(words: int) -> int:
    """A number of 4-byte words, rounded up so that what follows starts at a multiple of 16 bytes."""
    return (words + 3) // 4 * 4


def _merges(nodes: Tensor, K: int) -> int:
    return nodes.shape[0] * K * (longest(nodes, K) - 1)


class FusedSearchCall(NamedTuple):
    """The arguments of `beamtree::fused_search`."""

    leaves: Tensor  # (B, n, d)
    lengths: Tensor  # (B,)
    seed: Tensor  # read only with noise or dropout; else any tensor
    beam_size: int
    noisy: bool
    dropout: float
    product_dtype: torch.dtype  # of the cell's products: half under autocast
    need_nodes: bool
    weights: list[Tensor]

    def flat(self) -> tuple[Any, ...]:
        """The arguments for an autograd function, which does not see tensors inside a list."""
        return *self[:-1], *self.weights

    @staticmethod
    def of(given: tuple[Any, ...]) -> "FusedSearchCall":
        options = len(FusedSearchCall._fields) - 1
        return FusedSearchCall._make((*given[:options], list(given[options:])))


class FusedReplayCall(NamedTuple):
    """The arguments of `beamtree::fused_replay`."""

    grad_roots: Tensor  # (B, K, d)
    grad_relative: Tensor  # (B, K)
    grad_inner: Tensor  # (B, K, n−1 or 0, d)
    relative: Tensor  # (B, K)
    lengths: Tensor  # (B,)
    seed: Tensor
    n: int
    dropout: float
    product_dtype: torch.dtype
    tape: list[Tensor]
    weights: list[Tensor]


def supports(leaves: Tensor, weights: Sequence[Tensor], beam_size: int) -> bool:
    """Return True if the kernels cover this case; the plain engine covers every case."""
    return (
        leaves.is_cuda
        and leaves.shape[0] > 0
        and beam_size <= BEAMS_AT_MOST
        and NARROWEST <= leaves.shape[2] <= WIDEST
        and all(x.dtype == torch.float32 for x in (leaves, *weights))
        and (HAS_TRITON if is_compiling() else has_kernels(leaves.device))
    )


def fused_recursion(call: FusedSearchCall) -> tuple[Tensor, ...]:
    """Roots (B, K, d), scores relative to the best beam (B, K), inner nodes (B, K, n−1 or 0, d), offset (B,)
    and merges (B, K, n−1)."""
    if is_compiling():
        return torch.ops.beamtree.fused_search(*call)[:SEEN]
    if not torch.is_grad_enabled():
        return run_search(call, cleared=False)[:SEEN]
    return _FusedRecursion.apply(*call.flat())


def _refuse_capture(x: Tensor) -> None:
    if x.is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "beamtree: the beam-tree recursion cannot be captured in an outer CUDA graph: its search replays "
            "graphs of its own, and its backward pass has to read from the device how many nodes survived"
        )


def _search(call: FusedSearchCall) -> Outputs:
    return run_search(call, cleared=True)


def run_search(call: FusedSearchCall, *, cleared: bool) -> Outputs:
    """Run the search. Unless the tape is `cleared` before, entries that no step writes are undefined."""
    from beamtree.kernels.search import fused_search

    weights = Weights.of(aligned(w) for w in call.weights)
    _refuse_capture(call.leaves)
    with torch.cuda.device_of(call.leaves), without_autocast(call.leaves):
        found, tape = fused_search.search(
            call.leaves.contiguous(),
            call.lengths.contiguous(),
            weights,
            call.seed,
            beam_size=call.beam_size,
            dropout=call.dropout,
            noisy=call.noisy,
            precision=precision_of(call.product_dtype),
            cleared=cleared,
        )
        inner = fused_search.inner_nodes(tape, call.beam_size, call.need_nodes)
    return found.roots, found.relative, inner, found.offset, found.merges, *tape


def _search_shapes(call: FusedSearchCall) -> Outputs:
    return tape_shapes(call.leaves, call.lengths, call.beam_size, call.need_nodes)


def tape_shapes(leaves: Tensor, lengths: Tensor, K: int, need_nodes: bool) -> Outputs:
    """The outputs of an operator that leaves the tape of a search."""
    B, n, d = leaves.shape
    new = leaves.new_empty
    return (
        new(B, K, d),
        new(B, K),
        new(B, K, n - 1 if need_nodes else 0, d),
        new(B, dtype=torch.float64),
        lengths.new_empty(B, K, n - 1),
        *FusedTape.of(new(B, n + (n - 1) * K, d), K, new),
    )


def remember_tape(ctx: Any, call: Any, output: Outputs) -> None:
    """Save what the gradient needs, for any operator whose outputs end with the tape of a search and whose
    call has the field names of `FusedSearchCall`."""
    _, relative, _, *rest = output
    ctx.mark_non_differentiable(*rest)
    ctx.save_for_backward(relative, call.lengths, call.seed, *rest[-TAPE:], *call.weights)
    ctx.options = (call.leaves.shape[1], call.dropout, call.product_dtype)


def differentiate_tape(ctx: Any, *grads: Tensor) -> dict[str, Any]:
    to_leaves, *to_weights = torch.ops.beamtree.fused_replay(*_replay_call(ctx, grads))
    return {"leaves": to_leaves, "weights": to_weights}


def _replay_call(ctx: Any, grads: tuple[Tensor, ...]) -> FusedReplayCall:
    relative, lengths, seed, *saved = ctx.saved_tensors
    given = (*grads[:3], relative, lengths, seed, *ctx.options, saved[:TAPE], saved[TAPE:])
    return FusedReplayCall._make(given)


class _FusedRecursion(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor, ...]:
        call = FusedSearchCall.of(given)
        output = run_search(call, cleared=False)  # the gradient reads only leaves and nodes that were made
        remember_tape(ctx, call, output)
        return output[:SEEN]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        refuse_double_backward()
        to_leaves, *to_weights = _replay(_replay_call(ctx, grads))
        return to_leaves, *[None] * (len(FusedSearchCall._fields) - 2), *to_weights


def _replay(call: FusedReplayCall) -> list[Tensor]:
    from beamtree.kernels.replay.beam_replay import replay

    _refuse_capture(call.grad_roots)
    call = call._replace(
        grad_roots=aligned(call.grad_roots),
        grad_relative=call.grad_relative.contiguous(),
        grad_inner=aligned(call.grad_inner),
        lengths=call.lengths.contiguous(),
    )
    weights = Weights.of(aligned(w) for w in call.weights)
    deterministic = torch.are_deterministic_algorithms_enabled()
    with torch.cuda.device_of(call.grad_roots), without_autocast(call.grad_roots):
        return replay(call, weights, precision_of(call.product_dtype), deterministic=deterministic)


def _replay_apart(call: FusedReplayCall) -> list[Tensor]:
    """`_replay` as an operator, whose outputs must not share memory."""
    grads = _replay(call)
    return [grads[0], *(grad.clone() for grad in grads[1:])]


def _replay_shapes(call: FusedReplayCall) -> list[Tensor]:
    B, _, d = call.grad_roots.shape
    return [call.grad_roots.new_empty(B, call.n, d), *(torch.empty_like(w) for w in call.weights)]


# Tells a compiler that makes CUDA graphs to leave these operators out of them.
TAGS = [torch.Tag.cudagraph_unsafe] if hasattr(torch.Tag, "cudagraph_unsafe") else []
register("fused_search", _search, _search_shapes, differentiate_tape, remember_tape, TAGS)
register("fused_replay", _replay_apart, _replay_shapes, refuse_second_derivative, tags=TAGS)
