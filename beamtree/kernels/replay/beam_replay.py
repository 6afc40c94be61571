"""The gradient of beams on a GPU: find the surviving nodes, differentiate the scores, then the cell level by
level."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from beamtree.kernels import entangled_kernels as entangled_pairs
from beamtree.kernels.fused_recursion import FusedReplayCall, FusedTape
from beamtree.kernels.replay import level_kernels
from beamtree.kernels.replay.cell_replay import CellStages, Workspace, are_few, processors, whole_rows
from beamtree.kernels.replay.replay_plan import WIDEST_FUSED, graphs_for, plan_of
from beamtree.kernels.replay.survivors import Survivors, find_survivors
from beamtree.kernels.runtime import address_kernels as tables
from beamtree.kernels.runtime.products import never_half, product
from beamtree.parts.weights import EntangledScorerWeights, Weights
from beamtree.pytorch import capturing
from beamtree.pytorch.launch import blocks, launch


def replay(
    call: FusedReplayCall, weights: Weights[Any], precision: str, *, deterministic: bool
) -> list[Tensor]:
    """Gradients of the leaves (B, n, d), then of the weights."""
    this = _Gradient(call, weights, precision)
    wide = this.d > WIDEST_FUSED
    _, slots, heights, *_ = this.parts
    scores = (call.relative, call.grad_relative)
    this.make_rows(find_survivors(slots, heights, *scores, call.n, deterministic, need_bounds=wide))
    if weights.entangled:
        return this.launched(_ParentScores(weights, call.seed, call.dropout, precision))
    if deterministic or wide or not replays_graphs(call.lengths):
        return this.launched(_SlicedScores(deterministic))
    return this.replayed()


def has_large_levels(some: Survivors, units: int) -> bool:
    """Return True if an average level has more than two small tiles for every processor."""
    if not some.number or not some.order.is_cuda:
        return False
    return some.number // some.highest * units > 2 * processors(some.order.device) * 16 * 32


def replays_graphs(x: Tensor) -> bool:
    return x.is_cuda and capturing.are_wanted()


class _Gradient:
    """The gradient of one batch: its buffers, its address table, and the order of its kernels."""

    def __init__(self, call: FusedReplayCall, weights: Weights[Any], precision: str) -> None:
        self.weights, self.n, self.device = weights, call.n, call.lengths.device
        self.B, self.K, self.d = call.grad_roots.shape
        self.units, self.dropped = weights.cell.b1.shape[0], round(call.dropout * 65536)
        self.tape = FusedTape(*call.tape)
        self.parts = links, slots, _, energies, log_z = self.tape.parts(self.K)
        self.H = self.s = 0
        self.precision, self.scorer_precision = precision, precision
        self.inner = call.grad_inner.numel() > 0
        given = {
            "seed": call.seed, "lengths": call.lengths, "relative": call.relative, "nodes": self.tape.nodes,
            "links": links, "slots": slots, "energies": energies, "log_z": log_z,
            "grad_roots": call.grad_roots, "grad_inner": call.grad_inner, **weights.cell._asdict(),
        }  # fmt: skip
        if not weights.entangled:
            w1 = weights.scorer.w1
            self.H, self.s = w1.shape[0], w1.shape[1] // 2
            self.scorer_precision = never_half(precision)
            given["by_role"] = torch.cat((w1[:, : self.s], w1[:, self.s :]))  # (2·H, s)
            given |= {"scorer_b1": weights.scorer.b1, "scorer_w2": weights.scorer.w2}
        # Prepare as much as possible before the number of survivors is read from the device: after that the
        # device waits for the host.
        self.stages = (self.K, self.d, self.units, self.s, self.H, precision, self.scorer_precision)
        stages = CellStages(*self.stages)
        self.flat = stages.flat(self.device)
        self.grads = stages.grads(self.flat)
        self.grad_leaves = given["grad_leaves"] = torch.empty(self.B, self.n, self.d, device=self.device)
        self.held = given  # until the last launch; from then on the stream's order protects the tensors
        self.addresses = {name: tensor.data_ptr() for name, tensor in given.items()}

    def make_rows(self, some: Survivors) -> None:
        """Allocate the buffers for the gradient of the scores. Gradient rows are leaves, then survivors."""
        self.some = some
        B, n, K, d, N = self.B, self.n, self.K, self.d, some.number
        rows = B * n + N
        self.addresses |= {
            "survivors": N, "order": some.order.data_ptr(), "rows": some.rows.data_ptr(),
            "entry_weights": some.weights.data_ptr(), "starts": some.starts.data_ptr(),
            "height": some.height.data_ptr(),
        }  # fmt: skip
        few, many = are_few(N, d, self.units), has_large_levels(some, self.units)
        self.plan = plan_of(*self.stages, self.dropped > 0, self.inner, few, many)
        shapes = {
            "tree_parents": (rows, K), "grad_projections": (rows, 2 * self.H), "gradients": (rows, d),
            "pairs": (N, 2 * d), "slices": (rows, self.s), "activity": (N, self.H), "grad_energies": (N,),
        }  # fmt: skip
        # With an entangled scorer the cell's buffers are allocated only after the scores have freed theirs.
        self.rows = self._make_room({**shapes, **self._of_cell()} if self.H else shapes)

    def _of_cell(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the buffers for the gradient of the cell."""
        N = self.some.number
        return {
            "hidden": (N, self.units), "activated": (N, self.units), "gates": (N, 4 * self.d),
            **self.plan.shapes(N),
        }  # fmt: skip

    def _make_room(self, shapes: dict[str, tuple[int, ...]]) -> Workspace:
        """Allocate buffers of these shapes and note their addresses for the table."""
        N, leaves = self.some.number, self.B * self.n
        # Gates and projections share memory: the projections are not needed any more when the gates come.
        room = Workspace(self.device, shapes, {"gates": (leaves + N) * 2 * self.H})
        self.addresses |= room.addresses()
        if "gates" in shapes:
            self.work = room
            self.addresses["projections"] = self.addresses["gates"]
            self.plan.outputs(self.addresses, self.flat, N, leaves, cell=self.plan.few)
        return room

    def write(self, table: Tensor) -> None:
        tables.write(table, self.addresses, self.B, self.n, self.dropped)

    def replayed(self) -> list[Tensor]:
        """Run as graphs: as one, or if the products are large as two, with the library's products between."""
        graphs = graphs_for(self.plan, self.device)
        with graphs.lock:
            self.write(graphs.table)
            if self.plan.few:
                graphs.parts["all"]()
            else:
                graphs.parts["before"]()
                self._recall(partial(self.plan.activate, graphs.table))
                graphs.parts["after"]()
        return [self.grad_leaves, *self._weight_gradients()]

    def launched(self, scored: "_SlicedScores | _ParentScores") -> list[Tensor]:
        """Run kernel by kernel."""
        plan = self.plan
        table = torch.empty(tables.SIZE, dtype=torch.int64, device=self.device)
        self.write(table)
        plan.link(table)
        scored.differentiate(self, table)
        plan.roots(table)
        if not plan.H:
            self._make_room(self._of_cell())
            self.write(table)
        self._recall(partial(scored.activate, self, table))
        plan.open_gates(table)
        if self.d > WIDEST_FUSED:
            self._descend_by_library(table)
        elif self.some.number:
            plan.descend(table, self.some.height)
        plan.close(table)
        plan.weights(table, cell=plan.few)
        return [self.grad_leaves, *scored.weight_gradients(self._weight_gradients())]

    def _recall(self, activate: Callable[[], None]) -> None:
        """Recompute the cell's activations for all survivors."""
        cell, work = self.weights.cell, self.work
        b1, b2 = (cell.b1, cell.b2) if self.plan.biased else (None, None)
        product(self.rows["pairs"], cell.w1.t(), self.precision, bias=b1, out=work["hidden"])
        activate()
        product(work["activated"], cell.w2.t(), self.precision, bias=b2, out=work["gates"])

    def _weight_gradients(self) -> list[Tensor]:
        grads, work = self.grads, self.work
        if not self.plan.few:
            product(work["hidden"].t(), self.rows["pairs"], self.precision, out=grads[0])
            product(work["gates"].t(), work["activated"], self.precision, out=grads[2])
        return grads

    def _descend_by_library(self, table: Tensor) -> None:
        """Go down level by level with the library's products, a few launches per level."""
        d, some, cell = self.d, self.some, self.weights.cell
        tile = whole_rows(d)
        hidden, sent = self.work["hidden"], self.work["child_grads"]
        by_gate, by_sum = self.work["gates"].view(-1, 4, d), self.work["sums"].view(-1, 1, d)
        for height in range(some.highest, 0, -1):
            start, end = some.bounds[height], some.bounds[height - 1]
            launch(level_kernels.node_gradient_kernel, (blocks(end - start, tile["BLOCK_M"]),),
                table, start, end, D=d, K=self.K, **tile, num_warps=4,
            )  # fmt: skip
            to_gates = by_gate[start:end] * by_sum[start:end]
            hidden[start:end].mul_(product(to_gates.flatten(1), cell.w2, self.precision))
            sent[start:end] += product(hidden[start:end], cell.w1, self.precision)


class _SlicedScores:
    """e = w₂·GELU(W₁ [l[:s]; r[:s]] + b₁) + b₂."""

    def __init__(self, deterministic: bool) -> None:
        self.deterministic = deterministic

    def differentiate(self, call: _Gradient, table: Tensor) -> None:
        plan, H = call.plan, call.H
        plan.project(table)
        if self.deterministic:
            N = call.some.number
            pair_grads = torch.zeros(N, 3, H, device=call.device)
            pair_rows = torch.zeros(N, 3, 2, dtype=torch.int64, device=call.device)
            plan.pairs(table, pair_rows, pair_grads)
            for role in range(2):
                index = (pair_rows[..., role].reshape(-1),)
                call.rows["grad_projections"][:, role * H : (role + 1) * H].index_put_(
                    index, pair_grads.view(-1, H), accumulate=True
                )
        else:
            plan.pairs(table, table, table)
        plan.scores_to_rows(table)

    def activate(self, call: _Gradient, table: Tensor) -> None:
        call.plan.activate(table)

    def weight_gradients(self, grads: list[Tensor]) -> list[Tensor]:
        return grads


class _ParentScores:
    """e = w·cell(l, r) + b. The parent of a chosen pair is a node, and w·∂L/∂e is simply added to its
    gradient. The parents of pairs that ended unchosen get no other gradient, so those pairs go through the
    cell all at once, before the nodes go level by level."""

    def __init__(
        self, weights: Weights[EntangledScorerWeights], seed: Tensor, dropout: float, precision: str
    ) -> None:
        self.weights, self.seed, self.dropout, self.precision = weights, seed, dropout, precision
        self.sums: list[list[Tensor]] = []

    def differentiate(self, call: _Gradient, table: Tensor) -> None:
        some, B, n, K, d, device = call.some, call.B, call.n, call.K, call.d, call.device
        gradients, chosen = call.rows["gradients"], call.rows["grad_energies"]
        links, slots, _, energies, log_z = call.parts
        N = some.number
        beside = torch.empty(2 * N, device=device)
        names = torch.empty(N, 3, dtype=torch.int64, device=device)
        beside_names = torch.empty(2 * N, 3, dtype=torch.int64, device=device)
        ids, children = torch.empty(2, 2 * N, 2, dtype=torch.int64, device=device)
        if N:
            launch(entangled_pairs.ended_pairs_kernel, (N,),
                some.order, slots, some.rows, links, energies, log_z, some.weights,
                chosen, names, beside, beside_names, ids, children, B, n, K=K, BLOCK=128, num_warps=1,
            )  # fmt: skip
        nodes, options = call.tape.nodes.view(-1, d), (self.seed, self.dropout, self.precision)
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

    def activate(self, call: _Gradient, table: Tensor) -> None:
        hidden, activated = call.work["hidden"], call.work["activated"]
        entangled_pairs.activate(hidden, self.names, self.seed, self.dropout, out=activated)

    def weight_gradients(self, grads: list[Tensor]) -> list[Tensor]:
        *by_cell, of_scorer = grads
        parts = [*self.sums, [*by_cell, self.to_w2.unsqueeze(0), of_scorer]]
        return [sum(part[1:], part[0]) for part in zip(*parts, strict=True)]
