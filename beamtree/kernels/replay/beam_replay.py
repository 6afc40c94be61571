"""The gradient of beams on a GPU: survivors found, scores differentiated, then the cell level by level."""

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from beamtree.kernels.fused_tape import FusedTape
from beamtree.kernels.replay import entangled_pair_kernels as entangled_pairs
from beamtree.kernels.replay import level_kernels, survivor_kernels
from beamtree.kernels.replay.cell_replay import Descent, by_levels, through_cell, whole_rows
from beamtree.kernels.replay.survivors import Survivors, find_survivors, pieces
from beamtree.kernels.runtime.products import HALF, float32_precision, product
from beamtree.kernels.weights import EntangledScorerWeights, SlicedScorerWeights, Weights
from beamtree.pytorch.launch import blocks, launch, power_of_two

WIDEST_FUSED = 256  # beyond, the library's products for each level are faster


class Survived(NamedTuple):
    """What the scores' gradients need of the survivors; gradient rows are leaves, then survivors. With an
    entangled scorer s = H = 0."""

    some: Survivors
    nodes: Tensor  # the tape's
    parts: tuple[Tensor, ...]  # the rest of it
    gradients: Tensor  # (B·n + N, d), where they add theirs
    slices: Tensor  # (B·n + N, s)
    activity: Tensor  # (N, H)
    grad_energies: Tensor  # (N,)
    grad_projections: Tensor  # (B·n + N, 2·H), zero
    B: int
    n: int
    K: int


def replay(
    grad_roots: Tensor,  # (B, K, d)
    grad_relative: Tensor,  # (B, K)
    grad_inner: Tensor,  # (B, K, n−1 or 0, d)
    relative: Tensor,  # (B, K)
    lengths: Tensor,
    tape: FusedTape,
    weights: Weights[Any],
    seed: Tensor,
    *,
    n: int,
    dropout: float,
    precision: str,
    deterministic: bool,
) -> list[Tensor]:
    """Gradients of the leaves (B, n, d), then of the weights."""
    B, K, d = grad_roots.shape
    by_library = d > WIDEST_FUSED
    scored: _SlicedScores | _ParentScores
    if weights.entangled:
        scored = _ParentScores(weights, seed, dropout, precision)
    else:
        scored = _SlicedScores(weights.scorer, seed, dropout, precision, deterministic)
    parts = links, slots, heights, *_ = tape.parts(K)
    some = find_survivors(slots, heights, relative, grad_relative, n, deterministic, need_bounds=by_library)
    N, s, H = some.count, scored.s, scored.H
    rows = B * n + N
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
    by_row = (activity, grad_energies, grad_projections)
    scored.differentiate(Survived(some, tape.nodes, parts, gradients, slices, *by_row, B, n, K))
    launch(survivor_kernels.roots_kernel, (B * K,),
        slots, some.rows, lengths, relative, grad_roots, gradients, B, n,
        D=d, K=K, BLOCK_D=block_d, num_warps=1,
    )  # fmt: skip
    if N and grad_inner.shape[2]:
        launch(survivor_kernels.inner_gradients_kernel, (blocks(N, 16),),
            some.order, slots, grad_inner, gradients, B * n, N, n - 1,
            D=d, K=K, BLOCK_M=16, BLOCK_D=block_d, num_warps=4,
        )  # fmt: skip
    descend = partial(_descend_by_library if by_library else _descend, some, B * n, precision)
    grad_leaves, by_cell, of_scorer = through_cell(
        pairs, gradients, parents, weights.cell, scored.activate, descend, by_row,
        B=B, n=n, precision=precision,
    )  # fmt: skip
    return [grad_leaves, *scored.weight_gradients(by_cell, of_scorer)]


class _SlicedScores:
    """e = w₂·GELU(W₁ [l[:s]; r[:s]] + b₁) + b₂."""

    def __init__(
        self, weights: SlicedScorerWeights, seed: Tensor, dropout: float, precision: str, deterministic: bool
    ) -> None:
        self.weights, self.seed, self.dropout, self.deterministic = weights, seed, dropout, deterministic
        # A scorer is never rounded to half.
        self.precision = float32_precision() if precision in HALF else precision
        self.H, self.s = weights.w1.shape[0], weights.w1.shape[1] // 2
        self.by_role = torch.cat((weights.w1[:, : self.s], weights.w1[:, self.s :]))  # (2·H, s)

    def differentiate(self, survived: Survived) -> None:
        some, _, parts, gradients, slices, activity, grad_energies, grad_projections, B, n, K = survived
        links, slots, _, energies, log_z = parts
        self.counters, self.K, self.steps = (some.order, slots), K, n - 1
        N, H, device = some.count, self.H, gradients.device
        projections = product(slices, self.by_role.t(), self.precision)
        pair_grads, pair_rows = activity, some.order
        if self.deterministic:
            pair_grads = torch.zeros(N, 3, H, device=device)
            pair_rows = torch.zeros(N, 3, 2, dtype=torch.int64, device=device)
        if N:
            launch(survivor_kernels.pair_kernel, (N,),
                some.order, slots, some.rows, links, energies, log_z, some.weights,
                projections, self.weights.b1, self.weights.w2,
                grad_projections, pair_rows, pair_grads, activity, grad_energies, B, n,
                K=K, H=H, UNITS=power_of_two(H), ATOMIC=not self.deterministic, BLOCK=128, num_warps=1,
            )  # fmt: skip
        if self.deterministic:
            for role in range(2):
                index = (pair_rows[..., role].reshape(-1),)
                grad_projections[:, role * H : (role + 1) * H].index_put_(
                    index, pair_grads.view(-1, H), accumulate=True
                )
        product(grad_projections, self.by_role, self.precision, out=gradients[:, : self.s])
        self.to_w1 = product(grad_projections.t(), slices, self.precision)  # (2·H, s)

    def activate(self, hidden: Tensor) -> Tensor:
        N, units = hidden.shape
        activated = torch.empty_like(hidden)
        if N:
            launch(level_kernels.activate_survivors_kernel, (blocks(N, 16), blocks(units, 128)),
                *self.counters, hidden, activated, self.seed, N, self.steps, round(self.dropout * 65536),
                K=self.K, UNITS=units, DROPS=self.dropout > 0, BLOCK_M=16, BLOCK_N=128, num_warps=4,
            )  # fmt: skip
        return activated

    def weight_gradients(self, by_cell: list[Tensor], of_scorer: Tensor) -> list[Tensor]:
        H, s = self.H, self.s
        b1, w2, b2 = of_scorer.split((H, H, 1))
        w1 = self.to_w1.view(2, H, s).transpose(0, 1).reshape(H, 2 * s)
        return [*by_cell, w1, b1, w2.view(1, H), b2]


class _ParentScores:
    """e = w·cell(l, r) + b. The parent of a chosen pair is a node: w·∂L/∂e is one more gradient that reaches
    it. Of a pair that ended unchosen nothing else is known, so all of those go through the cell at once,
    before the nodes go by level."""

    s = H = 0

    def __init__(
        self, weights: Weights[EntangledScorerWeights], seed: Tensor, dropout: float, precision: str
    ) -> None:
        self.weights, self.seed, self.dropout, self.precision = weights, seed, dropout, precision
        self.sums: list[list[Tensor]] = []

    def differentiate(self, survived: Survived) -> None:
        some, nodes, parts, gradients, _, _, chosen, _, B, n, K = survived
        links, slots, _, energies, log_z = parts
        N, d, device = some.count, gradients.shape[1], gradients.device
        beside = torch.empty(2 * N, device=device)
        names = torch.empty(N, 3, dtype=torch.int64, device=device)
        beside_names = torch.empty(2 * N, 3, dtype=torch.int64, device=device)
        ids, children = torch.empty(2, 2 * N, 2, dtype=torch.int64, device=device)
        if N:
            launch(entangled_pairs.ended_pairs_kernel, (N,),
                some.order, slots, some.rows, links, energies, log_z, some.weights,
                chosen, names, beside, beside_names, ids, children, B, n, K=K, BLOCK=128, num_warps=1,
            )  # fmt: skip
        nodes, options = nodes.view(-1, d), (self.seed, self.dropout, self.precision)
        for rows in entangled_pairs.chunks(2 * N):
            vectors = nodes[ids[rows]].flatten(1)  # (m, 2·d)
            made = entangled_pairs.make(vectors, beside_names[rows], self.weights.cell, *options)
            pulled = entangled_pairs.pull(made, beside[rows], self.weights, self.precision)
            gradients.index_add_(0, children[rows].view(-1), pulled.children.view(-1, d))
            self.sums.append(pulled.weights)
        gradients[B * n :].addr_(chosen, self.weights.scorer.w2[0])
        self.names = names
        order, T = some.order[:N], n - 1
        own = order // (T * K) * (n + T * K) + n + order % T * K + slots[order]  # rows of the node store
        self.to_w2 = chosen @ nodes[own]

    def activate(self, hidden: Tensor) -> Tensor:
        return entangled_pairs.activate(hidden, self.names, self.seed, self.dropout)

    def weight_gradients(self, by_cell: list[Tensor], of_scorer: Tensor) -> list[Tensor]:
        parts = [*self.sums, [*by_cell, self.to_w2.unsqueeze(0), of_scorer]]
        return [sum(part[1:], part[0]) for part in zip(*parts, strict=True)]


def _descend(some: Survivors, first_row: int, precision: str, state: Descent) -> None:
    """The cell's gradient from the highest level down; on a GPU in one launch."""
    d, units, K = state.gamma.shape[0], state.hidden.shape[1], state.parents.shape[1]
    options = {
        "D": d, "K": K, "UNITS": units, "ALL_D": max(16, power_of_two(d)), "ROWS": 0,
        "BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": min(64, max(16, power_of_two(units))),
        "PRECISION": precision, "num_warps": 4, "num_stages": 1,
    }  # fmt: skip
    by_levels(level_kernels.descend_kernel, state, some.starts, some.height, first_row, options)


def _descend_by_library(some: Survivors, first_row: int, precision: str, state: Descent) -> None:
    """The same with the library's products, a few launches a level."""
    d, K = state.gamma.shape[0], state.parents.shape[1]
    tile = whole_rows(d)
    hidden, sent = state.hidden, state.child_grads
    by_gate, by_sum = state.gates.view(-1, 4, d), state.sums.view(-1, 1, d)
    for height in range(some.highest, 0, -1):
        start, end = some.bounds[height], some.bounds[height - 1]
        launch(level_kernels.node_gradient_kernel, (blocks(end - start, tile["BLOCK_M"]),),
            *state[:6], state.totals, state.sums, first_row, start, end, D=d, K=K, **tile, num_warps=4,
        )  # fmt: skip
        to_gates = by_gate[start:end] * by_sum[start:end]
        hidden[start:end].mul_(product(to_gates.flatten(1), state.w2, precision))
        sent[start:end] += product(hidden[start:end], state.w1, precision)
