"""The gradient on a GPU: survivors sorted by height, recomputed at once, differentiated level by level."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from beamtree.ops import level_kernels, survivor_kernels
from beamtree.ops.fused_search import Tape, Weights

WIDEST_FUSED = 256  # from here on the library's products per level are faster


@dataclass(frozen=True)
class Survivors:
    """Every surviving node once, highest first."""

    order: Tensor  # (B·K·(n−1),) int64: entries (beam, step), the survivors' first
    weights: Tensor  # (B, K, n−1): ∂L/∂S summed over the final beams that inherit the entry's node
    rows: Tensor  # (B, n−1, K) int32: node -> survivor
    starts: Tensor  # (levels + 1,): where each level begins
    count: int
    levels: int


def replay(
    grad_roots: Tensor,  # (B, K, d)
    grad_relative: Tensor,  # (B, K)
    relative: Tensor,  # (B, K)
    lengths: Tensor,
    tape: Tape,
    weights: Weights,
    seed: Tensor,
    *,
    n: int,
    dropout: float,
    precision: str,
    deterministic: bool,
) -> list[Tensor]:
    """Gradients of the leaves (B, n, d), then of the ten weights."""
    B, K, d = grad_roots.shape
    grad_relative = torch.where(relative > -torch.inf, grad_relative, 0.0)
    some = find_survivors(tape, grad_relative, n)
    N, H = some.count, weights.scorer_w2.shape[1]
    s = weights.scorer_w1.shape[1] // 2
    new = tape.nodes.new_empty
    parents = torch.full((B * n + N, K), -1, dtype=torch.int32, device=lengths.device)
    pairs, slices = new(N, 2 * d), new(B * n + N, s)
    slices[: B * n] = tape.nodes[:, :n, :s].reshape(B * n, s)
    if N:
        survivor_kernels.link_kernel[(triton.cdiv(N, 16),)](
            some.order, tape.slots, some.rows, tape.links, tape.nodes, parents, pairs, slices, N, B, n,
            D=d, K=K, S=s, BLOCK_M=16, BLOCK_D=min(128, triton.next_power_of_2(d)), num_warps=4,
        )  # fmt: skip

    grad_projections, activity, grad_energies = _pair_gradients(some, tape, weights, n, deterministic)
    by_role = torch.cat((weights.scorer_w1[:, :s], weights.scorer_w1[:, s:]))  # (2·H, s)
    gradients = tape.nodes.new_zeros(B * n + N, d)  # rows: leaves, survivors
    gradients[:, :s] = grad_projections @ by_role
    to_scorer = grad_projections.t() @ slices  # (2·H, s)
    scorer_gradients = [
        torch.cat((to_scorer[:H], to_scorer[H:]), 1),
        grad_projections[:, H:].sum(0),
        activity.sum(0, keepdim=True),
        grad_energies.sum(0, keepdim=True),
    ]
    survivor_kernels.roots_kernel[(B * K,)](
        tape.slots, some.rows, lengths, relative, grad_roots.contiguous(), gradients, B, n,
        D=d, K=K, BLOCK_D=min(128, triton.next_power_of_2(d)), num_warps=1,
    )  # fmt: skip

    grad_leaves = new(B, n, d)
    child_grads, cell_gradients = _cell_gradients(
        some, tape, weights, gradients, parents, pairs, seed, n=n, dropout=dropout, precision=precision
    )
    all_d = triton.next_power_of_2(d)
    block_m = max(1, 2048 // all_d)
    level_kernels.collect_kernel[(triton.cdiv(B * n, block_m),)](
        gradients,
        child_grads,
        parents,
        grad_leaves,
        B * n,
        D=d,
        K=K,
        BLOCK_M=block_m,
        ALL_D=all_d,
        num_warps=4,
    )
    return [grad_leaves, *cell_gradients, *scorer_gradients]


def find_survivors(tape: Tape, grad_relative: Tensor, n: int) -> Survivors:
    B, K, T = tape.slots.shape
    rows = torch.empty_like(tape.heights)
    levels = torch.empty_like(tape.slots)
    weights = torch.empty_like(tape.log_z)
    if T == 0:
        return Survivors(levels.view(-1).long(), weights, rows, rows.new_zeros(1), 0, 0)
    beams = max(2, triton.next_power_of_2(K))
    survivor_kernels.mark_kernel[(B, triton.cdiv(T, 16))](
        tape.slots, tape.heights, grad_relative, levels, weights, T, K=K, BEAMS=beams, BLOCK=16, num_warps=4
    )
    sorted_levels, order = levels.view(-1).sort(stable=True)
    highest, count = torch.stack((-sorted_levels[0], (sorted_levels < 0).sum())).tolist()
    starts = torch.searchsorted(
        sorted_levels, torch.arange(-highest, 1, dtype=torch.int32, device=levels.device), out_int32=True
    )
    survivor_kernels.place_kernel[(triton.cdiv(count, 256),)](
        order, tape.slots, rows, count, T, K=K, BLOCK=256, num_warps=4
    )
    return Survivors(order, weights, rows, starts, count, highest)


def _pair_gradients(
    some: Survivors, tape: Tape, weights: Weights, n: int, deterministic: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the projections (rows, 2·H); for each survivor Σ ∂L/∂e·GELU and Σ ∂L/∂e."""
    B, K, _ = tape.slots.shape
    N, H = some.count, weights.scorer_w2.shape[1]
    new = tape.nodes.new_empty
    grads = tape.nodes.new_zeros(B * n + N, 2 * H)
    activity, grad_energies = new(N, H), new(N)
    pair_grads = tape.nodes.new_zeros(N, 3, H) if deterministic else activity
    pair_rows = torch.zeros(N, 3, 2, dtype=torch.int64, device=grads.device) if deterministic else some.order
    if N:
        survivor_kernels.pair_kernel[(N,)](
            some.order, tape.slots, some.rows, tape.links, tape.energies, tape.log_z, some.weights,
            tape.projections, weights.scorer_w2, grads, pair_rows, pair_grads, activity, grad_energies, B, n,
            K=K, H=H, UNITS=triton.next_power_of_2(H), ATOMIC=not deterministic, BLOCK=128, num_warps=1,
        )  # fmt: skip
    if deterministic:
        by_pair = pair_grads.view(-1, H)
        grads[:, :H] = _sum_rows(pair_rows[..., 0].reshape(-1), by_pair, B * n + N)
        grads[:, H:] = _sum_rows(pair_rows[..., 1].reshape(-1), by_pair, B * n + N)
    return grads, activity, grad_energies


def _sum_rows(index: Tensor, rows: Tensor, count: int) -> Tensor:
    """index_add in an order that does not depend on timing."""
    total = rows.new_zeros(count, rows.shape[1])
    return total.index_put_((index,), rows, accumulate=True)


def _cell_gradients(
    some: Survivors,
    tape: Tape,
    weights: Weights,
    gradients: Tensor,
    parents: Tensor,
    pairs: Tensor,
    seed: Tensor,
    *,
    n: int,
    dropout: float,
    precision: str,
) -> tuple[Tensor, list[Tensor]]:
    """What each survivor sends its two children, (N, 2, d), and the gradients of the cell's six weights."""
    B, K, T = tape.slots.shape
    N, d, units = some.count, tape.nodes.shape[2], weights.b1.shape[0]
    new = tape.nodes.new_empty
    hidden = _linear(pairs, weights.w1, weights.b1, precision)
    activated = torch.empty_like(hidden)
    all_d = triton.next_power_of_2(d)
    row_block = max(1, 2048 // all_d)
    if N:
        level_kernels.activate_kernel[(triton.cdiv(N, 16), triton.cdiv(units, 128))](
            some.order, tape.slots, hidden, activated, seed, N, T, round(dropout * 65536),
            K=K, UNITS=units, DROPS=dropout > 0, BLOCK_M=16, BLOCK_N=128, num_warps=4,
        )  # fmt: skip
    gates = _linear(activated, weights.w2, weights.b2, precision)
    child_grads, normed, scales = new(N, 2 * d), new(N, d), new(N)
    totals, sums = new(N, d), new(N, d)
    if N:
        level_kernels.open_gates_kernel[(triton.cdiv(N, row_block),)](
            gates, pairs, child_grads, normed, scales, N, D=d, BLOCK_M=row_block, ALL_D=all_d, num_warps=4
        )
        by_node = (gradients, child_grads, parents, normed, scales, weights.gamma)
        if d > WIDEST_FUSED:
            _levels_by_library(some, by_node, gates, hidden, weights, totals, sums, B * n, precision)
        else:
            _levels_fused(some, by_node, gates, hidden, weights, totals, sums, B * n, precision)
    gates.view(N, 4, d).mul_(sums.unsqueeze(1))
    return child_grads, [
        _product(hidden.t(), pairs, precision),
        hidden.sum(0),
        _product(gates.t(), activated, precision),
        gates.sum(0),
        (totals * normed).sum(0),
        totals.sum(0),
    ]


def _levels_fused(
    some: Survivors,
    by_node: tuple[Tensor, ...],
    gates: Tensor,
    hidden: Tensor,
    weights: Weights,
    totals: Tensor,
    sums: Tensor,
    first_row: int,
    precision: str,
) -> None:
    d, units, K = totals.shape[1], hidden.shape[1], by_node[2].shape[1]
    counter = torch.zeros(1, dtype=torch.int32, device=totals.device)
    arguments = (
        *by_node,
        gates,
        hidden,
        weights.w1,
        weights.w2,
        totals,
        sums,
        some.starts,
        counter,
        first_row,
    )
    options = {
        "D": d, "K": K, "UNITS": units, "ALL_D": max(16, triton.next_power_of_2(d)), "BLOCK_M": 16, "BLOCK_N": 32,
        "BLOCK_K": min(64, max(16, triton.next_power_of_2(units))), "PRECISION": precision, "num_warps": 4,
        "num_stages": 1,
    }  # fmt: skip
    if totals.is_cuda:
        programs = torch.cuda.get_device_properties(totals.device).multi_processor_count
        level_kernels.levels_kernel[(programs,)](
            *arguments, 0, some.levels, PHASES=3, launch_cooperative_grid=True, **options
        )
    else:
        for level in range(some.levels):
            for phase in (1, 2):
                level_kernels.levels_kernel[(1,)](*arguments, level, level + 1, PHASES=phase, **options)


def _levels_by_library(
    some: Survivors,
    by_node: tuple[Tensor, ...],
    gates: Tensor,
    hidden: Tensor,
    weights: Weights,
    totals: Tensor,
    sums: Tensor,
    first_row: int,
    precision: str,
) -> None:
    d, K, child_grads = totals.shape[1], by_node[2].shape[1], by_node[1]
    all_d = triton.next_power_of_2(d)
    block_m = max(1, 2048 // all_d)
    starts = some.starts.tolist()
    for start, end in zip(starts[:-1], starts[1:], strict=True):
        level_kernels.node_gradient_kernel[(triton.cdiv(end - start, block_m),)](
            *by_node, totals, sums, first_row, start, end, D=d, K=K, BLOCK_M=block_m, ALL_D=all_d, num_warps=4
        )
        to_gates = gates[start:end].view(-1, 4, d) * sums[start:end].unsqueeze(1)
        hidden[start:end].mul_(_product(to_gates.flatten(1), weights.w2, precision))
        child_grads[start:end] += _product(hidden[start:end], weights.w1, precision)


_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def _linear(x: Tensor, weight: Tensor, bias: Tensor, precision: str) -> Tensor:
    if precision in _HALF:
        return _product(x, weight.t(), precision) + bias
    return F.linear(x, weight, bias)


def _product(x: Tensor, y: Tensor, precision: str) -> Tensor:
    half = _HALF.get(precision)
    return x @ y if half is None else (x.to(half) @ y.to(half)).float()
