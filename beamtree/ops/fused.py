"""The recursion's fast path on a GPU as two registered operators: `beamtree::fused_search`, `beamtree::fused_replay`.

Both take and return tensors only, so that compilers and distributed training see units. The Triton kernels are
imported when the first of them runs.
"""

from typing import Any

import torch
from torch import Tensor

BEAMS_AT_MOST = 32
NARROWEST, WIDEST = 16, 1024

Outputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def supports(leaves: Tensor, weights: list[Tensor], beam_size: int) -> bool:
    """Whether the kernels cover this case; the plain engine covers every case."""
    return (
        leaves.is_cuda
        and leaves.numel() > 0
        and beam_size <= BEAMS_AT_MOST
        and NARROWEST <= leaves.shape[2] <= WIDEST
        and all(x.dtype == torch.float32 and x.device == leaves.device for x in (leaves, *weights))
        and not torch.cuda.is_current_stream_capturing()
        and torch.cuda.get_device_capability(leaves.device) >= (8, 0)
    )


def product_precision() -> str:
    """How the cell's products are rounded: by autocast, else by PyTorch's float32 setting."""
    if torch.is_autocast_enabled("cuda"):
        return "bf16" if torch.get_autocast_dtype("cuda") == torch.bfloat16 else "fp16"
    return "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"


@torch.library.custom_op("beamtree::fused_search", mutates_args=())
def fused_search(
    leaves: Tensor,  # (B, n, d)
    lengths: Tensor,  # (B,)
    weights: list[Tensor],  # the cell's six, the scorer's four
    seed: Tensor,
    beam_size: int,
    noisy: bool,
    dropout: float,
    precision: str,
) -> Outputs:
    """Roots (B, K, d), relative scores (B, K), offset (B,) float64, merges (B, K, n−1); then the tape."""
    from beamtree.ops.fused_search import Weights, search

    roots, relative, offset, merges, tape = search(
        leaves.contiguous(),
        lengths.contiguous(),
        Weights(*(_aligned(w) for w in weights)),
        seed,
        beam_size=beam_size,
        dropout=dropout,
        noisy=noisy,
        precision=precision,
    )
    return roots, relative, offset, merges, *tape


@fused_search.register_fake
def _(
    leaves: Tensor,
    lengths: Tensor,
    weights: list[Tensor],
    seed: Tensor,
    beam_size: int,
    noisy: bool,
    dropout: float,
    precision: str,
) -> Outputs:
    B, n, d = leaves.shape
    K, H = beam_size, weights[6].shape[0]
    new = leaves.new_empty
    total = n + (n - 1) * K
    return (
        new(B, K, d),
        new(B, K),
        new(B, dtype=torch.float64),
        lengths.new_empty(B, K, n - 1),
        new(B, total, d),
        new(B, total, 2 * H),
        new(B, n - 1, K, 4, dtype=torch.int32),
        new(B, n - 1, K, 4),
        new(B, n - 1, K, dtype=torch.int32),
        new(B, K, n - 1, dtype=torch.int32),
        new(B, K, n - 1),
    )


@torch.library.custom_op("beamtree::fused_replay", mutates_args=())
def fused_replay(
    grad_roots: Tensor,
    grad_relative: Tensor,
    relative: Tensor,
    lengths: Tensor,
    tape: list[Tensor],
    weights: list[Tensor],
    seed: Tensor,
    n: int,
    dropout: float,
    precision: str,
) -> list[Tensor]:
    """Gradients of the leaves, then of the ten weights."""
    from beamtree.ops.fused_replay import replay
    from beamtree.ops.fused_search import Tape, Weights

    if grad_roots.is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "beamtree: the backward pass asks the device once how many nodes survived, so it cannot be captured in "
            "an outer CUDA graph; the search already runs in graphs of its own"
        )
    return replay(
        grad_roots.contiguous(),
        grad_relative.contiguous(),
        relative,
        lengths.contiguous(),
        Tape(*tape),
        Weights(*(_aligned(w) for w in weights)),
        seed,
        n=n,
        dropout=dropout,
        precision=precision,
        deterministic=torch.are_deterministic_algorithms_enabled(),
    )


@fused_replay.register_fake
def _(
    grad_roots: Tensor,
    grad_relative: Tensor,
    relative: Tensor,
    lengths: Tensor,
    tape: list[Tensor],
    weights: list[Tensor],
    seed: Tensor,
    n: int,
    dropout: float,
    precision: str,
) -> list[Tensor]:
    B, _, d = grad_roots.shape
    return [grad_roots.new_empty(B, n, d), *(torch.empty_like(w) for w in weights)]


def _aligned(weight: Tensor) -> Tensor:
    """The kernels read 16 bytes at a time."""
    weight = weight.contiguous()
    return weight.clone() if weight.data_ptr() % 16 else weight


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
    leaves, lengths, weights, seed, _, _, dropout, precision = inputs
    _, relative, *rest = output
    ctx.mark_non_differentiable(*rest)
    ctx.save_for_backward(lengths, seed, relative, *weights, *rest[2:])
    ctx.n, ctx.dropout, ctx.precision, ctx.weights = leaves.shape[1], dropout, precision, len(weights)


def _differentiate(ctx: Any, grad_roots: Tensor, grad_relative: Tensor, *_: Tensor) -> tuple[Any, ...]:
    lengths, seed, relative, *saved = ctx.saved_tensors
    weights, tape = saved[: ctx.weights], saved[ctx.weights :]
    grad_leaves, *grad_weights = torch.ops.beamtree.fused_replay(
        grad_roots, grad_relative, relative, lengths, tape, weights, seed, ctx.n, ctx.dropout, ctx.precision
    )
    return grad_leaves, None, grad_weights, None, None, None, None, None


def _refuse(ctx: Any, *grads: Any) -> None:
    raise RuntimeError(
        "beamtree: the beam-tree recursion has no second derivative; call backward or autograd.grad without "
        "create_graph=True"
    )


fused_search.register_autograd(_differentiate, setup_context=_remember)
fused_replay.register_autograd(_refuse)
