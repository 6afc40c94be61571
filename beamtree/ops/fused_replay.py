"""The gradient on a GPU: survivors sorted by height, recomputed at once, differentiated level by level."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

import torch
import triton
from torch import Tensor

from beamtree.ops import level_kernels, sum_kernels, survivor_kernels
from beamtree.ops.fused_search import Tape, Weights

WIDEST_FUSED = 256  # beyond, the library's products for each level are faster
SPLITS = 16  # programs that share the rows of a sum over them


@dataclass(frozen=True)
class Survivors:
    """Every surviving node once, highest first."""

    order: Tensor  # entries (beam, step), the survivors' first
    weights: Tensor  # (B, K, n−1): ∂L/∂S summed over the final beams that inherit the entry's node
    rows: Tensor  # (B, n−1, K) int32: node -> survivor
    starts: Tensor  # (n,) int32: how many survivors are higher than this
    count: int
    highest: int


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
    H, s = weights.scorer_w1.shape[0], weights.scorer_w1.shape[1] // 2
    units = weights.b1.shape[0]
    links, slots, heights, energies, log_z = tape.parts(K)
    some = find_survivors(slots, heights, relative, grad_relative, n, deterministic)
    N = some.count
    rows = B * n + N  # of gradients: leaves, then survivors

    parents, grad_projections, gradients, counter = _pieces(
        torch.zeros, lengths.device, (rows, K), (rows, 2 * H), (rows, d), (1,)
    )
    parents = parents.view(torch.int32)
    pairs, slices, activated, activity, child_grads, normed, totals, sums, scales, grad_energies = _pieces(
        torch.empty, lengths.device,
        (N, 2 * d), (rows, s), (N, units), (N, H), (N, 2 * d), (N, d), (N, d), (N, d), (N,), (N,),
    )  # fmt: skip
    block_d = min(128, triton.next_power_of_2(d))
    survivor_kernels.link_kernel[(triton.cdiv(N, 16) + triton.cdiv(B * n, 16),)](
        some.order, slots, some.rows, links, tape.nodes, parents, pairs, slices, N, B, n,
        D=d, K=K, S=s, BLOCK_M=16, BLOCK_D=block_d, num_warps=4,
    )  # fmt: skip

    by_role = torch.cat((weights.scorer_w1[:, :s], weights.scorer_w1[:, s:]))  # (2·H, s)
    projections = slices @ by_role.t()
    pair_grads = torch.zeros(N, 3, H, device=lengths.device) if deterministic else activity
    pair_rows = (
        torch.zeros(N, 3, 2, dtype=torch.int64, device=lengths.device) if deterministic else some.order
    )
    if N:
        survivor_kernels.pair_kernel[(N,)](
            some.order, slots, some.rows, links, energies, log_z, some.weights,
            projections, weights.scorer_b1, weights.scorer_w2,
            grad_projections, pair_rows, pair_grads, activity, grad_energies, B, n,
            K=K, H=H, UNITS=triton.next_power_of_2(H), ATOMIC=not deterministic, BLOCK=128, num_warps=1,
        )  # fmt: skip
    if deterministic:
        for role in range(2):
            index = (pair_rows[..., role].reshape(-1),)
            grad_projections[:, role * H : (role + 1) * H].index_put_(
                index, pair_grads.view(-1, H), accumulate=True
            )
    torch.mm(grad_projections, by_role, out=gradients[:, :s])
    to_scorer = grad_projections.t() @ slices  # (2·H, s)
    survivor_kernels.roots_kernel[(B * K,)](
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

    hidden = _linear(pairs, weights.w1, weights.b1, precision)
    if N:
        level_kernels.activate_kernel[(triton.cdiv(N, 16), triton.cdiv(units, 128))](
            some.order, slots, hidden, activated, seed, N, n - 1, round(dropout * 65536),
            K=K, UNITS=units, DROPS=dropout > 0, BLOCK_M=16, BLOCK_N=128, num_warps=4,
        )  # fmt: skip
    gates = _linear(activated, weights.w2, weights.b2, precision)
    all_d = triton.next_power_of_2(d)
    row_block = max(1, 2048 // all_d)
    if N:
        level_kernels.open_gates_kernel[(triton.cdiv(N, row_block),)](
            gates, pairs, child_grads, normed, scales, N, D=d, BLOCK_M=row_block, ALL_D=all_d, num_warps=4
        )
        descend = _descend_by_library if d > WIDEST_FUSED else _descend
        by_node = (gradients, child_grads, parents, normed, scales, weights.gamma)
        descend(some, by_node, gates, hidden, weights, totals, sums, counter, B * n, K, precision)

    grad_leaves = torch.empty(B, n, d, device=lengths.device)
    level_kernels.collect_kernel[(triton.cdiv(B * n, row_block),)](
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
    columns = sum(triton.cdiv(size, block) for size in (4 * d, units, d, H)) + 1
    partial = torch.empty(SPLITS, 6 * d + units + 2 * H + 1, device=lengths.device)
    sum_kernels.close_kernel[(SPLITS, columns)](
        gates, sums, hidden, totals, normed, activity, grad_energies, grad_projections, partial, N, rows,
        D=d, UNITS=units, H=H, BLOCK_M=32, BLOCK_N=block, num_warps=4,
    )  # fmt: skip
    b2, b1, gamma, beta, scorer_b1, scorer_w2, scorer_b2 = partial.sum(0).split((4 * d, units, d, d, H, H, 1))
    w1, w2 = _product(hidden.t(), pairs, precision), _product(gates.t(), activated, precision)
    scorer_w1 = to_scorer.view(2, H, s).transpose(0, 1).reshape(H, 2 * s)
    return [grad_leaves, w1, b1, w2, b2, gamma, beta, scorer_w1, scorer_b1, scorer_w2.view(1, H), scorer_b2]


def _pieces(make: Callable[..., Tensor], device: torch.device, *shapes: tuple[int, ...]) -> Iterator[Tensor]:
    """Tensors of one allocation. Each starts at a multiple of 16 bytes: for another alignment a kernel
    would be compiled anew."""
    sizes = [(prod(shape) + 3) // 4 * 4 for shape in shapes]
    whole, start = make(sum(sizes), device=device), 0
    for shape, size in zip(shapes, sizes, strict=True):
        yield whole.as_strided(shape, (*shape[1:], 1), start)
        start += size


def find_survivors(
    slots: Tensor, heights: Tensor, relative: Tensor, grad_relative: Tensor, n: int, deterministic: bool
) -> Survivors:
    B, K = relative.shape
    T = n - 1
    count = B * K * T
    levels, rows = torch.empty_like(slots), torch.empty_like(slots)
    weights = relative.new_empty(count)
    counts, starts, cursors, totals = (
        piece.view(torch.int32)
        for piece in _pieces(torch.zeros, slots.device, (T + 1,), (T + 1,), (T + 1,), (2,))
    )
    if T == 0:
        return Survivors(slots, weights, rows, starts, 0, 0)
    beams = max(2, triton.next_power_of_2(K))
    survivor_kernels.mark_kernel[(B, triton.cdiv(T, 16))](
        slots, heights, relative, grad_relative, levels, weights, counts, T,
        K=K, BEAMS=beams, BLOCK=16, num_warps=4,
    )  # fmt: skip
    survivor_kernels.scan_kernel[(1,)](counts, starts, totals, T, BLOCK=1024, num_warps=4)
    if deterministic:
        order = levels.sort(descending=True, stable=True).indices
    else:
        order = torch.empty(count, dtype=torch.int64, device=slots.device)
    survivor_kernels.place_kernel[(triton.cdiv(count, 256),)](
        levels,
        slots,
        starts,
        cursors,
        order,
        rows,
        count,
        T,
        K=K,
        SORTED=deterministic,
        BLOCK=256,
        num_warps=4,
    )
    # The only synchronisation: everything that follows is as large as the number of survivors.
    number, highest = totals.tolist()
    return Survivors(order, weights, rows, starts, number, highest)


def _descend(
    some: Survivors,
    by_node: tuple[Tensor, ...],
    gates: Tensor,
    hidden: Tensor,
    weights: Weights,
    totals: Tensor,
    sums: Tensor,
    counter: Tensor,
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
        counter,
        first_row,
    )
    options = {
        "D": d, "K": K, "UNITS": units, "ALL_D": max(16, triton.next_power_of_2(d)), "PRECISION": precision,
        "BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": min(64, max(16, triton.next_power_of_2(units))),
        "num_warps": 4, "num_stages": 1,
    }  # fmt: skip
    if totals.is_cuda:
        programs = torch.cuda.get_device_properties(totals.device).multi_processor_count
        level_kernels.levels_kernel[(programs,)](
            *arguments, some.highest, 1, PHASES=3, launch_cooperative_grid=True, **options
        )
    else:
        for height in range(some.highest, 0, -1):
            for phase in (1, 2):
                level_kernels.levels_kernel[(1,)](*arguments, height, height, PHASES=phase, **options)


def _descend_by_library(
    some: Survivors,
    by_node: tuple[Tensor, ...],
    gates: Tensor,
    hidden: Tensor,
    weights: Weights,
    totals: Tensor,
    sums: Tensor,
    counter: Tensor,
    first_row: int,
    K: int,
    precision: str,
) -> None:
    """The same with the library's products, a few launches a level."""
    d = weights.gamma.shape[0]
    all_d = triton.next_power_of_2(d)
    block_m = max(1, 2048 // all_d)
    by_gate, by_sum, sent = gates.view(-1, 4, d), sums.view(-1, 1, d), by_node[1].view(-1, 2 * d)
    starts = some.starts[: some.highest + 1].tolist()
    for height in range(some.highest, 0, -1):
        start, end = starts[height], starts[height - 1]
        level_kernels.node_gradient_kernel[(triton.cdiv(end - start, block_m),)](
            *by_node, totals, sums, first_row, start, end, D=d, K=K, BLOCK_M=block_m, ALL_D=all_d, num_warps=4
        )
        to_gates = by_gate[start:end] * by_sum[start:end]
        hidden[start:end].mul_(_product(to_gates.flatten(1), weights.w2, precision))
        sent[start:end] += _product(hidden[start:end], weights.w1, precision)


_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def _linear(x: Tensor, weight: Tensor, bias: Tensor, precision: str) -> Tensor:
    if precision in _HALF:
        return _product(x, weight.t(), precision) + bias
    return torch.addmm(bias, x, weight.t())


def _product(x: Tensor, y: Tensor, precision: str) -> Tensor:
    half = _HALF.get(precision)
    return x @ y if half is None else (x.to(half) @ y.to(half)).float()
