"""GT-GRC and EGT-GRC on a GPU: the tree comes from a search with one beam, the gradient goes straight through
the choices."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from beamtree.kernels import fused_recursion as fused
from beamtree.kernels.runtime.products import precision_of
from beamtree.parts.weights import Weights
from beamtree.pytorch.derivatives import refuse_double_backward
from beamtree.pytorch.launch import aligned
from beamtree.pytorch.precision import without_autocast

LONGEST = 4096  # places of a list that one program holds


def supports(leaves: Tensor, weights: Sequence[Tensor]) -> bool:
    """Return True if the kernels cover this case; zoo/straight_through.py covers every case."""
    return (
        1 < leaves.shape[1] <= LONGEST
        and fused.supports(leaves, weights, 1)
        and not torch.cuda.is_current_stream_capturing()
    )


def straight_through(call: fused.FusedSearchCall) -> tuple[Tensor, Tensor, Tensor]:
    """Roots (B, d), merges (B, n−1) and nodes (B, n−1 or 0, d), each at the step that made it. The call must
    have one beam and n > 1."""
    if torch.is_grad_enabled():
        found: tuple[Tensor, Tensor, Tensor] = _StraightThrough.apply(*call.flat())
        return found
    roots, _, nodes, _, merges, *_ = fused.run_search(call, cleared=False)
    return roots[:, 0], merges[:, 0], nodes[:, 0]


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor, ...]:
        call = fused.FusedSearchCall.of(given)
        roots, _, nodes, _, merges, *tape = fused.run_search(call, cleared=True)
        root, merges, nodes = roots[:, 0], merges[:, 0], nodes[:, 0]
        ctx.mark_non_differentiable(merges)
        ctx.save_for_backward(call.lengths, call.seed, merges, *tape, *call.weights)
        ctx.options = (call.noisy, call.dropout, call.product_dtype)
        return root, merges, nodes

    @staticmethod
    def backward(ctx: Any, grad_roots: Tensor, _: Tensor, grad_nodes: Tensor) -> tuple[Any, ...]:
        refuse_double_backward()
        from beamtree.kernels.straight_replay import replay

        lengths, seed, merges, *saved = ctx.saved_tensors
        tape, weights = saved[: fused.TAPE], saved[fused.TAPE :]
        noisy, dropout, product_dtype = ctx.options
        with torch.cuda.device_of(grad_roots), without_autocast(grad_roots):
            to_leaves, *to_weights = replay(
                grad_roots,
                grad_nodes.contiguous(),
                lengths.contiguous(),
                merges,
                fused.FusedTape(*tape),
                Weights.of(aligned(w) for w in weights),
                seed,
                noisy=noisy,
                dropout=dropout,
                precision=precision_of(product_dtype),
            )
        return to_leaves, *[None] * 7, *to_weights
