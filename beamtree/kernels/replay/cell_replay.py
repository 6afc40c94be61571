"""The cell's gradient on a GPU: all nodes recomputed at once, then differentiated from the highest down.

Beams, given trees and straight-through trees differ in who a node's parents are, in what reaches it first and
in how one goes down; the rest is here.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from beamtree.kernels.replay import level_kernels, sum_kernels
from beamtree.kernels.replay.survivors import pieces
from beamtree.kernels.runtime.products import product
from beamtree.kernels.weights import CellWeights
from beamtree.pytorch.launch import blocks, launch, power_of_two

SPLITS = 16  # programs that share the rows of a sum over them

Activate = Callable[[Tensor], Tensor]  # h (m, hidden) -> u = keep·GELU(h); h becomes ∂u/∂h


class Recalled(NamedTuple):
    """The parents of m pairs and what their derivative needs."""

    pairs: Tensor  # (m, 2·d)
    hidden: Tensor  # (m, hidden): ∂u/∂h, becomes ∂L/∂h
    activated: Tensor  # (m, hidden): u
    gates: Tensor  # (m, 4·d): ∂p/∂gates, becomes ∂L/∂gates
    opened: Tensor  # (m, 2·d): σ(a), σ(b), becomes the children's gradient
    normed: Tensor  # (m, d): the parent before the layer norm's scale and shift
    scales: Tensor  # (m,)


class Descent(NamedTuple):
    """What going down reads and writes, in the order in which kernels take it; gradient rows are those of the
    B·n leaves, then those of the N nodes."""

    gradients: Tensor  # (B·n + N, d): what reaches a row first
    child_grads: Tensor  # (N, 2·d): σ(a), σ(b), becomes what the children are sent
    parents: Tensor  # (B·n + N, K) int32: 1 + twice a parent's row + side, 0 for none
    normed: Tensor
    scales: Tensor
    gamma: Tensor
    gates: Tensor  # (N, 4·d): ∂p/∂gates
    hidden: Tensor  # (N, hidden): ∂u/∂h, becomes ∂L/∂h
    w1: Tensor
    w2: Tensor
    totals: Tensor  # (N, d): becomes ∂L/∂node
    sums: Tensor  # (N, d): becomes the gradient of what the layer norm normalised


def recall(pairs: Tensor, weights: CellWeights, activate: Activate, precision: str) -> Recalled:
    """The cell at pairs (m, 2·d)."""
    m, d = len(pairs), weights.gamma.shape[0]
    opened, normed, scales = pieces(torch.empty, pairs.device, (m, 2 * d), (m, d), (m,))
    hidden = product(pairs, weights.w1.t(), precision, bias=weights.b1)
    activated = activate(hidden)
    gates = product(activated, weights.w2.t(), precision, bias=weights.b2)
    if m:
        rows = whole_rows(d)
        launch(level_kernels.open_gates_kernel, (blocks(m, rows["BLOCK_M"]),),
            gates, pairs, opened, normed, scales, m, D=d, **rows, num_warps=4,
        )  # fmt: skip
    return Recalled(pairs, hidden, activated, gates, opened, normed, scales)


def whole_rows(d: int) -> dict[str, int]:
    """The tile of a program that holds all features of its rows."""
    all_d = power_of_two(d)
    return {"BLOCK_M": max(1, 2048 // all_d), "ALL_D": all_d}


def through_cell(
    pairs: Tensor,  # (N, 2·d)
    gradients: Tensor,  # (B·n + N, d): what reaches leaves and nodes before any of it goes through the cell
    parents: Tensor,  # (B·n + N, K)
    weights: CellWeights,
    activate: Activate,
    descend: Callable[[Descent], None],
    by_scorer: tuple[Tensor, Tensor, Tensor],  # activity (N, H), ∂L/∂e (N,), ∂L/∂projections (B·n + N, 2·H)
    *,
    B: int,
    n: int,
    precision: str,
) -> tuple[Tensor, list[Tensor], Tensor]:
    """Gradients of the leaves, of the cell's six parameters, and the scorer's sums over rows."""
    N, d, units = pairs.shape[0], gradients.shape[1], weights.b1.shape[0]
    K, H = parents.shape[1], by_scorer[0].shape[1]
    _, hidden, activated, gates, child_grads, normed, scales = recall(pairs, weights, activate, precision)
    totals, sums = pieces(torch.empty, pairs.device, (N, d), (N, d))
    if N:
        state = Descent(
            gradients, child_grads, parents, normed, scales, weights.gamma,
            gates, hidden, weights.w1, weights.w2, totals, sums,
        )  # fmt: skip
        descend(state)
    rows = whole_rows(d)
    grad_leaves = torch.empty(B, n, d, device=pairs.device)
    launch(level_kernels.collect_kernel, (blocks(B * n, rows["BLOCK_M"]),),
        gradients, child_grads, parents, grad_leaves, B * n, D=d, K=K, **rows, num_warps=4,
    )  # fmt: skip
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


def by_levels(
    kernel: Any,
    tensors: tuple[Tensor, ...],
    starts: Tensor,  # int32: level h lies between starts[h − 1] and starts[h]
    height: Tensor,  # int32: how many levels there are
    first_row: int,  # of the nodes: there are so many leaves
    options: dict[str, Any],
    *,
    up: bool = False,
) -> None:
    """All levels in one launch, or, without a GPU, each phase of each in one."""
    counter = torch.zeros(1, dtype=torch.int32, device=starts.device)  # of arrivals at a barrier
    arguments = (*tensors, starts, height, counter, first_row)
    if starts.is_cuda:
        launch(
            kernel, (processors(starts.device),), *arguments, 0, **options, PHASE=0,
            launch_cooperative_grid=True,
        )  # fmt: skip
        return
    levels = range(1, int(height.view(-1)[0]) + 1)
    for level in levels if up else reversed(levels):
        for phase in (1, 2, 3):
            launch(kernel, (2,), *arguments, level, **options, PHASE=phase)


def processors(device: torch.device) -> int:
    """How many programs a cooperative launch takes: all must be resident at once."""
    return torch.cuda.get_device_properties(device).multi_processor_count
