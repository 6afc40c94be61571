"""The recursion's fast path on a GPU, for the built-in cell and scorer in float32.

A compiler sees two registered operators, `beamtree::fused_search` and `beamtree::fused_replay`, tensors in,
tensors out. Eager code calls the same two functions through an autograd function, which costs the host
less. The Triton kernels are imported when the first search runs.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from beamtree.kernels.runtime.products import float32_precision
from beamtree.kernels.weights import Weights
from beamtree.pytorch.precision import without_autocast
from beamtree.pytorch.registry import HAS_TRITON, has_kernels, register
from beamtree.pytorch.tracing import is_compiling

BEAMS_AT_MOST = 32
NARROWEST, WIDEST = 16, 1024
TAPE = 3  # tensors of the tape, after the five outputs that users see
Outputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def supports(leaves: Tensor, weights: Sequence[Tensor], beam_size: int) -> bool:
    """Whether the kernels cover this case; the plain engine covers every case."""
    return (
        leaves.is_cuda
        and leaves.shape[0] > 0
        and beam_size <= BEAMS_AT_MOST
        and NARROWEST <= leaves.shape[2] <= WIDEST
        and all(x.dtype == torch.float32 for x in (leaves, *weights))
        and (HAS_TRITON if is_compiling() else has_kernels(leaves.device))
    )


def fused_recursion(
    leaves: Tensor,  # (B, n, d)
    lengths: Tensor,  # (B,)
    weights: Weights[Any],
    beam_size: int,
    seed: Tensor | None,
    noisy: bool,
    dropout: float,
    product_dtype: torch.dtype,  # of the cell's products: half under autocast
    need_nodes: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Roots (B, K, d), scores relative to the best beam (B, K), inner nodes (B, K, n−1 or 0, d), offset (B,)
    and merges (B, K, n−1)."""
    if seed is None:
        seed = lengths  # nobody reads it; a tensor of its own would cost a launch
    options = (beam_size, noisy, dropout, product_dtype, need_nodes)
    if is_compiling():
        return torch.ops.beamtree.fused_search(leaves, lengths, seed, *options, weights.flat())[:5]
    if not torch.is_grad_enabled():
        return run_search(leaves, lengths, seed, *options, weights.flat(), record=False)[:5]
    return _Recursion.apply(leaves, lengths, seed, *options, *weights.flat())


def precision_of(product_dtype: torch.dtype) -> str:
    """How products are rounded: as autocast says, else as PyTorch's setting for float32 does."""
    if product_dtype == torch.float32:
        return float32_precision()
    return "bf16" if product_dtype == torch.bfloat16 else "fp16"


def _refuse_capture(x: Tensor) -> None:
    if x.is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "beamtree: the beam-tree recursion cannot be captured in an outer CUDA graph: its search replays "
            "graphs of its own, and its backward pass asks the device once how many nodes survived"
        )


def _search(
    leaves: Tensor,
    lengths: Tensor,
    seed: Tensor,
    beam_size: int,
    noisy: bool,
    dropout: float,
    product_dtype: torch.dtype,
    need_nodes: bool,
    weights: list[Tensor],
) -> Outputs:
    options = (beam_size, noisy, dropout, product_dtype, need_nodes)
    return run_search(leaves, lengths, seed, *options, weights, record=True)


def run_search(
    leaves: Tensor,
    lengths: Tensor,
    seed: Tensor,
    beam_size: int,
    noisy: bool,
    dropout: float,
    product_dtype: torch.dtype,
    need_nodes: bool,
    weights: list[Tensor],
    *,
    record: bool,
) -> Outputs:
    """The search; without `record` its tape has no meaning, and is not cleared before."""
    from beamtree.kernels.entangled import entangled_search
    from beamtree.kernels.search import fused_search

    named = Weights.of(aligned(w) for w in weights)
    search: Callable[..., Any] = entangled_search.search if named.entangled else fused_search.search
    _refuse_capture(leaves)
    with torch.cuda.device_of(leaves), without_autocast(leaves):
        found, tape = search(
            leaves.contiguous(),
            lengths.contiguous(),
            named,
            seed,
            beam_size=beam_size,
            dropout=dropout,
            noisy=noisy,
            precision=precision_of(product_dtype),
            record=record,
        )
        inner = fused_search.inner_nodes(tape, beam_size, need_nodes)
    return found.roots, found.relative, inner, found.offset, found.merges, *tape


def _replay(
    grad_roots: Tensor,
    grad_relative: Tensor,
    grad_inner: Tensor,
    relative: Tensor,
    lengths: Tensor,
    seed: Tensor,
    n: int,
    dropout: float,
    product_dtype: torch.dtype,
    tape: list[Tensor],
    weights: list[Tensor],
) -> list[Tensor]:
    from beamtree.kernels.entangled import entangled_replay
    from beamtree.kernels.replay import fused_replay
    from beamtree.kernels.search import fused_search

    named = Weights.of(aligned(w) for w in weights)
    replay: Callable[..., list[Tensor]] = entangled_replay.replay if named.entangled else fused_replay.replay
    _refuse_capture(grad_roots)
    with torch.cuda.device_of(grad_roots), without_autocast(grad_roots):
        return replay(
            grad_roots.contiguous(),
            grad_relative.contiguous(),
            grad_inner.contiguous(),
            relative,
            lengths.contiguous(),
            fused_search.Tape(*tape),
            named,
            seed,
            n=n,
            dropout=dropout,
            precision=precision_of(product_dtype),
            deterministic=torch.are_deterministic_algorithms_enabled(),
        )


def aligned(weight: Tensor) -> Tensor:
    """The kernels read 16 bytes at a time."""
    weight = weight.contiguous()
    return weight.clone() if weight.data_ptr() % 16 else weight


class _Recursion(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, leaves: Tensor, lengths: Tensor, seed: Tensor, *rest: Any) -> tuple[Tensor, ...]:
        beam_size, noisy, dropout, product_dtype, need_nodes, *weights = rest
        roots, relative, inner, offset, merges, *tape = _search(
            leaves, lengths, seed, beam_size, noisy, dropout, product_dtype, need_nodes, weights
        )
        ctx.mark_non_differentiable(offset, merges)
        ctx.save_for_backward(relative, lengths, seed, *tape, *weights)
        ctx.options = (leaves.shape[1], dropout, product_dtype)
        return roots, relative, inner, offset, merges

    @staticmethod
    def backward(
        ctx: Any, grad_roots: Tensor, grad_relative: Tensor, grad_inner: Tensor, *_: Tensor
    ) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            refuse_second_derivative(ctx)
        relative, lengths, seed, *saved = ctx.saved_tensors
        n, dropout, product_dtype = ctx.options
        to_leaves, *to_weights = _replay(
            grad_roots,
            grad_relative,
            grad_inner,
            relative,
            lengths,
            seed,
            n,
            dropout,
            product_dtype,
            saved[:TAPE],
            saved[TAPE:],
        )
        return to_leaves, *[None] * 7, *to_weights


def search_shapes(
    leaves: Tensor,
    lengths: Tensor,
    seed: Tensor,
    beam_size: int,
    noisy: bool,
    dropout: float,
    product_dtype: torch.dtype,
    need_nodes: bool,
    weights: list[Tensor],
) -> Outputs:
    B, n, d = leaves.shape
    K = beam_size
    new = leaves.new_empty
    made = B * (n - 1) * K
    return (
        new(B, K, d),
        new(B, K),
        new(B, K, n - 1 if need_nodes else 0, d),
        new(B, dtype=torch.float64),
        lengths.new_empty(B, K, n - 1),
        new(B, n + (n - 1) * K, d),
        new(5 * made + (made + 3) // 4 * 4, dtype=torch.int32),
        new(5 * made),
    )


def _replay_apart(
    grad_roots: Tensor,
    grad_relative: Tensor,
    grad_inner: Tensor,
    relative: Tensor,
    lengths: Tensor,
    seed: Tensor,
    n: int,
    dropout: float,
    product_dtype: torch.dtype,
    tape: list[Tensor],
    weights: list[Tensor],
) -> list[Tensor]:
    """An operator's outputs must not share memory."""
    grads = _replay(
        grad_roots,
        grad_relative,
        grad_inner,
        relative,
        lengths,
        seed,
        n,
        dropout,
        product_dtype,
        tape,
        weights,
    )
    return [grads[0], *(grad.clone() for grad in grads[1:])]


def _replay_shapes(
    grad_roots: Tensor,
    grad_relative: Tensor,
    grad_inner: Tensor,
    relative: Tensor,
    lengths: Tensor,
    seed: Tensor,
    n: int,
    dropout: float,
    product_dtype: torch.dtype,
    tape: list[Tensor],
    weights: list[Tensor],
) -> list[Tensor]:
    B, _, d = grad_roots.shape
    return [grad_roots.new_empty(B, n, d), *(torch.empty_like(w) for w in weights)]


def keep_tape(
    ctx: Any,
    output: Outputs,
    leaves: Tensor,
    lengths: Tensor,
    seed: Tensor,
    dropout: float,
    product_dtype: torch.dtype,
    weights: list[Tensor],
) -> None:
    """What `replay_tape` needs of an operator that leaves the tape of a search."""
    _, relative, _, *rest = output
    ctx.mark_non_differentiable(*rest)
    ctx.save_for_backward(relative, lengths, seed, *rest[2:], *weights)
    ctx.options = (leaves.shape[1], dropout, product_dtype)


def replay_tape(ctx: Any, grads: tuple[Tensor, ...]) -> tuple[Tensor, list[Tensor]]:
    """Gradients of the leaves and of the weights."""
    relative, lengths, seed, *saved = ctx.saved_tensors
    to_leaves, *to_weights = torch.ops.beamtree.fused_replay(
        *grads[:3], relative, lengths, seed, *ctx.options, saved[:TAPE], saved[TAPE:]
    )
    return to_leaves, to_weights


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
    leaves, lengths, seed, _, _, dropout, product_dtype, _, weights = inputs
    keep_tape(ctx, output, leaves, lengths, seed, dropout, product_dtype, weights)


def _differentiate(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
    to_leaves, to_weights = replay_tape(ctx, grads)
    return to_leaves, *[None] * 7, to_weights


def refuse_second_derivative(ctx: Any, *grads: Any) -> None:
    raise RuntimeError(
        "beamtree: the beam-tree recursion has no second derivative; call backward or autograd.grad without "
        "create_graph=True"
    )


# A compiler that makes CUDA graphs leaves these operators outside of them.
TAGS = [torch.Tag.cudagraph_unsafe] if hasattr(torch.Tag, "cudagraph_unsafe") else []
register("fused_search", _search, search_shapes, _differentiate, _remember, TAGS)
register("fused_replay", _replay_apart, _replay_shapes, refuse_second_derivative, tags=TAGS)
