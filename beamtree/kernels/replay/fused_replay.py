"""The gradient on a GPU with a sliced scorer: its pairs, then the cell level by level."""

import torch
from torch import Tensor

from beamtree.kernels.replay import level_kernels, survivor_kernels
from beamtree.kernels.replay.cell_replay import NodeGradients, goes_by_library, through_cell
from beamtree.kernels.replay.survivors import find_survivors, pieces
from beamtree.kernels.runtime.products import HALF, float32_precision, product
from beamtree.kernels.search.fused_search import Tape
from beamtree.kernels.weights import SlicedScorerWeights, Weights
from beamtree.pytorch.launch import blocks, launch, power_of_two


def replay(
    grad_roots: Tensor,  # (B, K, d)
    grad_relative: Tensor,  # (B, K)
    grad_inner: Tensor,  # (B, K, n−1 or 0, d)
    relative: Tensor,  # (B, K)
    lengths: Tensor,
    tape: Tape,
    weights: Weights[SlicedScorerWeights],
    seed: Tensor,
    *,
    n: int,
    dropout: float,
    precision: str,
    deterministic: bool,
) -> list[Tensor]:
    """Gradients of the leaves (B, n, d), then of the ten weights."""
    B, K, d = grad_roots.shape
    H, s = weights.scorer.w1.shape[0], weights.scorer.w1.shape[1] // 2
    units = weights.cell.b1.shape[0]
    links, slots, heights, energies, log_z = tape.parts(K)
    by_role = torch.cat((weights.scorer.w1[:, :s], weights.scorer.w1[:, s:]))  # (2·H, s)
    some = find_survivors(
        slots, heights, relative, grad_relative, n, deterministic, need_bounds=goes_by_library(d)
    )
    N = some.count
    rows = B * n + N  # of gradients: leaves, then survivors

    parents, grad_projections, gradients = pieces(
        torch.zeros, lengths.device, (rows, K), (rows, 2 * H), (rows, d)
    )
    parents = parents.view(torch.int32)
    pairs, slices, activity, grad_energies = pieces(
        torch.empty, lengths.device, (N, 2 * d), (rows, s), (N, H), (N,)
    )
    block_d = min(128, power_of_two(d))
    launch(survivor_kernels.link_kernel, (blocks(N, 16) + blocks(B * n, 16),),
        some.order, slots, some.rows, links, tape.nodes, parents, pairs, slices, N, B, n,
        D=d, K=K, S=s, BLOCK_M=16, BLOCK_D=block_d, num_warps=4,
    )  # fmt: skip

    exactness = float32_precision() if precision in HALF else precision  # a scorer is never rounded to half
    projections = product(slices, by_role.t(), exactness)
    pair_grads = torch.zeros(N, 3, H, device=lengths.device) if deterministic else activity
    pair_rows = (
        torch.zeros(N, 3, 2, dtype=torch.int64, device=lengths.device) if deterministic else some.order
    )
    if N:
        launch(survivor_kernels.pair_kernel, (N,),
            some.order, slots, some.rows, links, energies, log_z, some.weights,
            projections, weights.scorer.b1, weights.scorer.w2,
            grad_projections, pair_rows, pair_grads, activity, grad_energies, B, n,
            K=K, H=H, UNITS=power_of_two(H), ATOMIC=not deterministic, BLOCK=128, num_warps=1,
        )  # fmt: skip
    if deterministic:
        for role in range(2):
            index = (pair_rows[..., role].reshape(-1),)
            grad_projections[:, role * H : (role + 1) * H].index_put_(
                index, pair_grads.view(-1, H), accumulate=True
            )
    product(grad_projections, by_role, exactness, out=gradients[:, :s])
    to_scorer = product(grad_projections.t(), slices, exactness)  # (2·H, s)

    def activate(hidden: Tensor) -> Tensor:
        activated = torch.empty_like(hidden)
        if N:
            launch(level_kernels.activate_kernel, (blocks(N, 16), blocks(units, 128)),
                some.order, slots, hidden, activated, seed, N, n - 1, round(dropout * 65536),
                K=K, UNITS=units, DROPS=dropout > 0, BLOCK_M=16, BLOCK_N=128, num_warps=4,
            )  # fmt: skip
        return activated

    nodes = NodeGradients(some, slots, lengths, relative, grad_roots, grad_inner, gradients, parents, pairs)
    grad_leaves, by_cell, by_scorer = through_cell(
        nodes, weights.cell, activate, (activity, grad_energies, grad_projections), n=n, precision=precision
    )
    scorer_b1, scorer_w2, scorer_b2 = by_scorer.split((H, H, 1))
    scorer_w1 = to_scorer.view(2, H, s).transpose(0, 1).reshape(H, 2 * s)
    return [grad_leaves, *by_cell, scorer_w1, scorer_b1, scorer_w2.view(1, H), scorer_b2]
