"""The cell's gradient on a GPU: all survivors recomputed at once, then differentiated level by level."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from beamtree.kernels.replay import level_kernels, sum_kernels, survivor_kernels
from beamtree.kernels.replay.survivors import Survivors, pieces
from beamtree.kernels.runtime.products import product
from beamtree.kernels.search import inner_kernels
from beamtree.kernels.weights import CellWeights
from beamtree.pytorch.launch import blocks, launch, power_of_two

WIDEST_FUSED = 256  # beyond, the library's products for each level are faster
SPLITS = 16  # programs that share the rows of a sum over them


def goes_by_library(d: int) -> bool:
    """Whether the host takes a launch for each level, and so must know where they start."""
    return d > WIDEST_FUSED


class NodeGradients(NamedTuple):
    """What reaches the nodes before any of it goes through the cell."""

    some: Survivors
    slots: Tensor
    lengths: Tensor
    relative: Tensor  # (B, K)
    grad_roots: Tensor  # (B, K, d)
    grad_inner: Tensor  # (B, K, n−1 or 0, d)
    gradients: Tensor  # (B·n + N, d): from the scorer, by gradient row
    parents: Tensor  # (B·n + N, K) int32
    pairs: Tensor  # (N, 2·d): the survivors' children


def through_cell(
    nodes: NodeGradients,
    weights: CellWeights,
    activate: Callable[[Tensor], Tensor],  # h -> u = keep·GELU(h); h becomes ∂u/∂h
    by_scorer: tuple[Tensor, Tensor, Tensor],  # activity (N, H), ∂L/∂e (N,), ∂L/∂projections (B·n + N, 2·H)
    *,
    n: int,
    precision: str,
) -> tuple[Tensor, list[Tensor], Tensor]:
    """Gradients of the leaves, of the cell's six parameters, and the scorer's sums over rows."""
    some, slots, lengths, relative, grad_roots, grad_inner, gradients, parents, pairs = nodes
    B, K, d = grad_roots.shape
    block_d = min(128, power_of_two(d))
    launch(
        survivor_kernels.roots_kernel,
        (B * K,),
        slots,
        some.rows,
        lengths,
        relative,
        grad_roots,
        gradients,
        B,
        n,
        D=d,
        K=K,
        BLOCK_D=block_d,
        num_warps=1,
    )

    if some.count and grad_inner.shape[2]:
        launch(inner_kernels.inner_gradients_kernel, (blocks(some.count, 16),),
            some.order, slots, grad_inner, gradients, B * n, some.count, n - 1,
            D=d, K=K, BLOCK_M=16, BLOCK_D=block_d, num_warps=4,
        )  # fmt: skip

    def descend(
        by_node: tuple[Tensor, ...], gates: Tensor, hidden: Tensor, totals: Tensor, sums: Tensor
    ) -> None:
        go_down = _descend_by_library if goes_by_library(d) else _descend
        go_down(some, by_node, gates, hidden, totals, sums, weights, B * n, K, precision)

    return through_levels(
        pairs, gradients, parents, weights, activate, descend, by_scorer, B=B, n=n, precision=precision
    )


def through_levels(
    pairs: Tensor,  # (N, 2·d)
    gradients: Tensor,  # (B·n + N, d)
    parents: Tensor,  # (B·n + N, K)
    weights: CellWeights,
    activate: Callable[[Tensor], Tensor],
    descend: Callable[..., None],  # by_node, gates, hidden, totals, sums: a node's children get their share
    by_scorer: tuple[Tensor, Tensor, Tensor],
    *,
    B: int,
    n: int,
    precision: str,
) -> tuple[Tensor, list[Tensor], Tensor]:
    """`through_cell` for nodes whose own gradient is complete, whatever order the levels are in."""
    N, d, units = pairs.shape[0], gradients.shape[1], weights.b1.shape[0]
    K, H = parents.shape[1], by_scorer[0].shape[1]
    child_grads, normed, totals, sums, scales = pieces(
        torch.empty, pairs.device, (N, 2 * d), (N, d), (N, d), (N, d), (N,)
    )
    hidden = product(pairs, weights.w1.t(), precision, bias=weights.b1)
    activated = activate(hidden)
    gates = product(activated, weights.w2.t(), precision, bias=weights.b2)
    all_d = power_of_two(d)
    row_block = max(1, 2048 // all_d)
    if N:
        launch(
            level_kernels.open_gates_kernel,
            (blocks(N, row_block),),
            gates,
            pairs,
            child_grads,
            normed,
            scales,
            N,
            D=d,
            BLOCK_M=row_block,
            ALL_D=all_d,
            num_warps=4,
        )
        descend((gradients, child_grads, parents, normed, scales, weights.gamma), gates, hidden, totals, sums)

    grad_leaves = torch.empty(B, n, d, device=pairs.device)
    launch(
        level_kernels.collect_kernel,
        (blocks(B * n, row_block),),
        gradients,
        child_grads,
        parents,
        grad_leaves,
        B * n,
        D=d,
        K=K,
        BLOCK_M=row_block,
        ALL_D=all_d,
        num_warps=4,
    )
    block = 64  # columns of a program
    columns = sum(blocks(size, block) for size in (4 * d, units, d, H)) + 1
    partial = torch.empty(SPLITS, 6 * d + units + 2 * H + 1, device=pairs.device)
    launch(sum_kernels.close_kernel, (SPLITS, columns),
        gates, sums, hidden, totals, normed, *by_scorer, partial, N, B * n + N,
        D=d, UNITS=units, H=H, BLOCK_M=32, BLOCK_N=block, num_warps=4,
    )  # fmt: skip
    b2, b1, gamma, beta, of_scorer = partial.sum(0).split((4 * d, units, d, d, 2 * H + 1))
    w1, w2 = product(hidden.t(), pairs, precision), product(gates.t(), activated, precision)
    return grad_leaves, [w1, b1, w2, b2, gamma, beta], of_scorer


def _descend(
    some: Survivors,
    by_node: tuple[Tensor, ...],
    gates: Tensor,
    hidden: Tensor,
    totals: Tensor,
    sums: Tensor,
    weights: CellWeights,
    first_row: int,
    K: int,
    precision: str,
) -> None:
    """The cell's gradient from the highest level down; on a GPU in one launch."""
    d, units = weights.gamma.shape[0], hidden.shape[1]
    arguments = (
        *by_node,
        gates,
        hidden,
        weights.w1,
        weights.w2,
        totals,
        sums,
        some.starts,
        torch.zeros(1, device=totals.device),  # counts arrivals
        first_row,
    )
    options = {
        "D": d, "K": K, "UNITS": units, "ALL_D": max(16, power_of_two(d)), "PRECISION": precision,
        "BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": min(64, max(16, power_of_two(units))),
        "num_warps": 4, "num_stages": 1,
    }  # fmt: skip
    if totals.is_cuda:
        programs = torch.cuda.get_device_properties(totals.device).multi_processor_count
        launch(
            level_kernels.levels_kernel,
            (programs,),
            *arguments,
            some.highest,
            1,
            PHASES=3,
            launch_cooperative_grid=True,
            **options,
        )
    else:
        for height in range(some.highest, 0, -1):
            for phase in (1, 2):
                launch(level_kernels.levels_kernel, (1,), *arguments, height, height, PHASES=phase, **options)


def _descend_by_library(
    some: Survivors,
    by_node: tuple[Tensor, ...],
    gates: Tensor,
    hidden: Tensor,
    totals: Tensor,
    sums: Tensor,
    weights: CellWeights,
    first_row: int,
    K: int,
    precision: str,
) -> None:
    """The same with the library's products, a few launches a level."""
    d = weights.gamma.shape[0]
    all_d = power_of_two(d)
    block_m = max(1, 2048 // all_d)
    by_gate, by_sum, sent = gates.view(-1, 4, d), sums.view(-1, 1, d), by_node[1].view(-1, 2 * d)
    for height in range(some.highest, 0, -1):
        start, end = some.bounds[height], some.bounds[height - 1]
        launch(
            level_kernels.node_gradient_kernel,
            (blocks(end - start, block_m),),
            *by_node,
            totals,
            sums,
            first_row,
            start,
            end,
            D=d,
            K=K,
            BLOCK_M=block_m,
            ALL_D=all_d,
            num_warps=4,
        )
        to_gates = by_gate[start:end] * by_sum[start:end]
        hidden[start:end].mul_(product(to_gates.flatten(1), weights.w2, precision))
        sent[start:end] += product(hidden[start:end], weights.w1, precision)
