"""Trees known beforehand on a GPU: two registered operators, `beamtree::compose` and `beamtree::decompose`,
a cooperative launch over all levels each. Nothing waits for the device.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from beamtree.kernels.fused_recursion import TAGS
from beamtree.kernels.runtime.products import HALF
from beamtree.kernels.weights import CellWeights
from beamtree.pytorch.derivatives import refuse_second_derivative
from beamtree.pytorch.launch import blocks, launch, power_of_two
from beamtree.pytorch.precision import without_autocast
from beamtree.pytorch.registry import register

# Of float32 in `high` too: for "tf32" Triton cuts numbers off where the library rounds them, which makes
# gradients up to eight times less exact than the plain path's.
EXACT = "tf32x3"
WIDE = 256  # beyond, a level's products are large enough for larger tiles


def compose_levels(
    leaves: Tensor,  # (B, n, d)
    children: Tensor,  # (N, 2) node rows, lowest merges first, −1 where there is no merge
    starts: Tensor,  # (levels + 1,) int32: the first merge of each level, and the end of the last
    height: Tensor,  # () int32: how many levels have merges
    keep: Tensor | None,  # (N, hidden) dropout masks
    product_dtype: torch.dtype,  # half under autocast
    weights: CellWeights,
) -> Tensor:
    """All nodes, (B·n + N, d): leaves first, then the merges; rows without a merge have no meaning."""
    call = ComposeCall(leaves, children, starts, height, keep, product_dtype, list(weights))
    nodes: Tensor = torch.ops.beamtree.compose(*call)
    return nodes


class ComposeCall(NamedTuple):
    """The arguments of `beamtree::compose`: those of `compose_levels`."""

    leaves: Tensor
    children: Tensor
    starts: Tensor
    height: Tensor
    keep: Tensor | None
    product_dtype: torch.dtype
    weights: list[Tensor]


class DecomposeCall(NamedTuple):
    """The arguments of `beamtree::decompose`."""

    grad: Tensor  # (B·n + N, d)
    nodes: Tensor  # (B·n + N, d)
    children: Tensor
    starts: Tensor
    height: Tensor
    keep: Tensor | None
    B: int
    product_dtype: torch.dtype
    weights: list[Tensor]


def _compose(call: ComposeCall) -> Tensor:
    from beamtree.kernels.given import given_kernels
    from beamtree.kernels.replay.cell_replay import by_levels

    leaves, children, starts, height, keep, product_dtype, weights = call
    B, n, d = leaves.shape
    N, units = children.shape[0], weights[0].shape[0]
    nodes = leaves.new_empty(B * n + N, d)
    nodes[: B * n] = leaves.reshape(-1, d)
    if N == 0:
        return nodes
    hidden = leaves.new_empty(N, units)
    w1, b1, w2, b2, gamma, beta = (w.contiguous() for w in weights)
    tensors = (nodes, children, hidden if keep is None else keep, w1, b1, w2, b2, gamma, beta, hidden)
    options = _tiles(d, units, product_dtype) | {"DROPS": keep is not None}
    with torch.cuda.device_of(leaves):
        by_levels(given_kernels.ascend_kernel, tensors, starts, height, B * n, options, up=True)
    return nodes


def _decompose(call: DecomposeCall) -> list[Tensor]:
    """Gradients of the leaves and of the cell's six parameters."""
    from beamtree.kernels.given import given_kernels
    from beamtree.kernels.replay import level_kernels
    from beamtree.kernels.replay.cell_replay import Descent, by_levels, through_cell

    grad, nodes, children, starts, height, keep, B, product_dtype, weights = call
    rows, d = nodes.shape
    N, units = children.shape[0], weights[0].shape[0]
    first_row = rows - N
    cell = CellWeights(*(w.contiguous() for w in weights))
    options = _tiles(d, units, product_dtype) | {"K": 1}
    parents = torch.zeros(rows, 1, dtype=torch.int32, device=nodes.device)
    pairs = nodes.new_empty(N, 2 * d)
    gradients = grad.contiguous()

    def activate(hidden: Tensor) -> Tensor:
        activated = torch.empty_like(hidden)
        if N:
            launch(given_kernels.activate_kernel, (blocks(N, 16), blocks(units, 128)),
                children, activated if keep is None else keep, hidden, activated, N,
                UNITS=units, DROPS=keep is not None, BLOCK_M=16, BLOCK_N=128, num_warps=4,
            )  # fmt: skip
        return activated

    def descend(state: Descent) -> None:
        for buffer in (state.totals, state.sums):
            buffer.zero_()  # for the rows without a merge
        by_levels(level_kernels.descend_kernel, state, starts, height, first_row, options)

    with torch.cuda.device_of(nodes), without_autocast(nodes):
        if N:
            launch(given_kernels.gather_kernel, (blocks(N, 16),),
                nodes, children, parents, pairs, N,
                D=d, BLOCK_M=16, BLOCK_D=min(128, power_of_two(d)), num_warps=4,
            )  # fmt: skip
        no_scorer = (pairs[:, :0], gradients, gradients[:, :0])
        grad_leaves, by_cell, _ = through_cell(
            pairs, gradients, parents, cell, activate, descend, no_scorer,
            B=B, n=first_row // B, precision=options["PRECISION"],
        )  # fmt: skip
    # An operator's outputs must not share memory.
    return [grad_leaves, *(g.clone() for g in by_cell)]


def _tiles(d: int, units: int, product_dtype: torch.dtype) -> dict[str, Any]:
    names = {dtype: name for name, dtype in HALF.items()}
    block = power_of_two(max(16, d))
    return {
        "D": d, "UNITS": units, "ALL_D": block, "ROWS": 4,
        "BLOCK_M": 16 if d <= WIDE else 64, "BLOCK_N": 32 if d <= WIDE else 64,
        "BLOCK_K": min(block, 128 if d <= WIDE else 64),
        "PRECISION": names.get(product_dtype, EXACT),
        "num_warps": 4 if d <= WIDE else 8, "num_stages": 1,
    }  # fmt: skip


def _compose_shapes(call: ComposeCall) -> Tensor:
    B, n, d = call.leaves.shape
    return call.leaves.new_empty(B * n + call.children.shape[0], d)


def _decompose_shapes(call: DecomposeCall) -> list[Tensor]:
    rows, d = call.nodes.shape
    leaves = call.nodes.new_empty(call.B, (rows - call.children.shape[0]) // call.B, d)
    return [leaves, *(torch.empty_like(w) for w in call.weights)]


def _remember(ctx: Any, call: ComposeCall, nodes: Tensor) -> None:
    ctx.save_for_backward(nodes, *call[1:5], *call.weights)
    ctx.options = (call.leaves.shape[0], call.product_dtype)


def _differentiate(ctx: Any, grad: Tensor) -> dict[str, Any]:
    nodes, children, starts, height, keep, *weights = ctx.saved_tensors
    B, product_dtype = ctx.options
    call = DecomposeCall(grad, nodes, children, starts, height, keep, B, product_dtype, weights)
    to_leaves, *to_weights = torch.ops.beamtree.decompose(*call)
    return {"leaves": to_leaves, "weights": to_weights}


register("compose", _compose, _compose_shapes, _differentiate, _remember, TAGS)
register("decompose", _decompose, _decompose_shapes, refuse_second_derivative, tags=TAGS)
