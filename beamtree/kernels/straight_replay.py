"""The gradient of a straight-through tree on a GPU, from the tape of a search with one beam.

The cell at all merges and the scores of all pairs, which do not depend on gradients, are recomputed at once.
Then a single launch goes back through the steps (straight_kernels.py).
"""

from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from beamtree.kernels import entangled_kernels as entangled_pairs
from beamtree.kernels import straight_kernels
from beamtree.kernels.fused_recursion import FusedTape
from beamtree.kernels.replay.cell_replay import Descent, Recalled, processors, through_cell
from beamtree.kernels.runtime.products import never_half, product
from beamtree.kernels.straight_kernels import places_kernel
from beamtree.parts.weights import CellWeights, EntangledScorerWeights, SlicedScorerWeights, Weights
from beamtree.pytorch.launch import blocks, launch, pieces, power_of_two

WIDE = 256  # for a larger d a step's products are large enough for larger tiles
SHORT = 128  # lengths up to this share a compiled kernel


def replay(
    grad_roots: Tensor,  # (B, d)
    grad_inner: Tensor,  # (B, n−1 or 0, d)
    lengths: Tensor,  # (B,)
    merges: Tensor,  # (B, n−1)
    tape: FusedTape,
    weights: Weights[Any],
    seed: Tensor,
    *,
    noisy: bool,
    dropout: float,
    precision: str,
) -> list[Tensor]:
    """Gradients of the leaves (B, n, d), then of the weights; n > 1."""
    B, total, d = tape.nodes.shape
    n = (total + 1) // 2
    links, *_ = tape.parts(1)
    at = find_places(links, lengths, n, entangled=weights.entangled)
    nodes = tape.nodes.view(-1, d)
    scored: SlicedScores | ParentScores
    if weights.entangled:
        scored = ParentScores(nodes, at.pairs, at.pair_names, weights, seed, dropout, precision)
    else:
        scored = SlicedScores(nodes, at.pairs, weights.scorer, precision)
    gradients, score_grads, no_parents, counter = pieces(
        torch.zeros, nodes.device, (B * total, d), scored.scores.shape, (B * total, 1), (1,)
    )
    gradients.index_copy_(0, at.roots, grad_roots)
    options = _options(d, scored.slopes.shape[1] // 2, weights.cell, n, precision) | {
        "ENTANGLED": weights.entangled, "NOISY": noisy, "INNER": grad_inner.shape[1] > 0,
    }  # fmt: skip

    def descend(state: Descent, _: Tensor) -> None:
        parents = nodes if scored.parents is None else scored.parents
        arguments = (
            gradients, grad_inner if grad_inner.numel() else gradients, state.child_grads, *state[1:],
            nodes, parents, scored.slopes, scored.scores, score_grads, links, merges, at.children, lengths,
            torch.empty(B, n, dtype=torch.int32, device=nodes.device), nodes.new_empty(B, 2, n), seed,
            counter.view(torch.int32), B, n,
        )  # fmt: skip
        # Triton's interpreter runs programs one after another: a second one would never reach the barrier.
        programs = processors(nodes.device) if nodes.is_cuda else 1
        launch(
            straight_kernels.sweep_kernel, (programs,), *arguments, **options, launch_cooperative_grid=True
        )

    pairs = nodes[at.merged].flatten(1)
    grad_leaves, by_cell = through_cell(
        pairs,
        gradients,
        no_parents.view(torch.int32),
        weights.cell,
        lambda hidden: entangled_pairs.activate(hidden, at.merge_names, seed, dropout),
        descend,
        (),
        B=B,
        n=n,
        precision=precision,
    )
    more_by_cell, by_scorer = scored.weight_gradients(score_grads)
    if more_by_cell is not None:
        by_cell = list(torch._foreach_add(by_cell, list(more_by_cell)))
    return [grad_leaves, *by_cell, *by_scorer]


def _options(d: int, s: int, weights: CellWeights, n: int, precision: str) -> dict[str, Any]:
    all_d, units = max(16, power_of_two(d)), weights.b1.shape[0]
    return {
        "D": d, "S": s, "UNITS": units, "ALL_D": all_d, "ALL_S": max(16, power_of_two(s)),
        "BLOCK": max(SHORT, power_of_two(n)), "ROWS": max(2, 4096 // all_d),
        "BLOCK_M": 16 if d <= WIDE else 32, "BLOCK_N": 32,
        "BLOCK_K": min(all_d, 128 if d <= WIDE else 64), "PRECISION": precision,
        "num_warps": 4, "num_stages": 1,
    }  # fmt: skip


class PairPlaces(NamedTuple):
    """Where everything is. The pairs of a sequence are n−1 of leaves, then two for each merge. Merges are
    sorted by step, then sequence.

    A name is the counter of a dropout mask, as in the search: sequence, left and right with an entangled
    scorer; else sequence, step and 0.
    """

    pairs: Tensor  # (B·3·(n−1), 2) node rows; leaf 0 in place of a missing neighbour
    pair_names: Tensor  # (B·3·(n−1), 3)
    merged: Tensor  # ((n−1)·B, 2) node rows of the children
    merge_names: Tensor  # ((n−1)·B, 3)
    children: Tensor  # ((n−1)·B, 2) gradient rows, −1 where there is no merge
    roots: Tensor  # (B,) gradient rows


def find_places(links: Tensor, lengths: Tensor, n: int, *, entangled: bool) -> PairPlaces:
    """The places for the links (B, n−1, 4) of a tape, n > 1."""
    B = len(lengths)
    count = B * (n - 1)
    shapes = (3 * count, 2), (3 * count, 3), (count, 2), (count, 3), (count, 2), (B,)
    places = PairPlaces(*pieces(partial(torch.empty, dtype=torch.int64), lengths.device, *shapes))
    launch(places_kernel, (blocks(count, 128),),
        links, lengths, *places, B, n, ENTANGLED=entangled, BLOCK=128, num_warps=4,
    )  # fmt: skip
    return places


class SlicedScores:
    """e = w₂·GELU(W₁ [l[:s]; r[:s]] + b₁) + b₂ for all pairs there ever were, given as node rows (rows, 2);
    with `slopes`, their derivatives by the pair, and in the end the gradients of the weights."""

    parents = None

    def __init__(self, nodes: Tensor, rows: Tensor, weights: SlicedScorerWeights, precision: str) -> None:
        self.precision = never_half(precision)
        s = weights.w1.shape[1] // 2
        self.slices = nodes[:, :s][rows].flatten(1)  # (rows, 2·s)
        hidden = product(self.slices, weights.w1.t(), self.precision, bias=weights.b1)
        self.activity = F.gelu(hidden)
        self.scores = torch.addmv(weights.b2, self.activity, weights.w2[0])  # (rows,)
        self.to_hidden = torch.ops.aten.gelu_backward(weights.w2.expand_as(hidden), hidden)
        self.slopes = product(self.to_hidden, weights.w1, self.precision)  # ∂e/∂(l[:s], r[:s])

    def weight_gradients(self, grads: Tensor) -> tuple[None, list[Tensor]]:
        """Gradients of the scores (rows,) → those of the cell's weights, None, and of the scorer's."""
        to_hidden = self.to_hidden.mul_(grads.unsqueeze(1))
        return None, [
            product(to_hidden.t(), self.slices, self.precision),
            to_hidden.sum(0),
            (grads @ self.activity).unsqueeze(0),
            grads.sum(0, keepdim=True),
        ]


class ParentScores:
    """e = w·cell(l, r) + b, likewise; `names` (rows, 3) are the counters of the pairs' dropout masks."""

    def __init__(
        self,
        nodes: Tensor,
        rows: Tensor,
        names: Tensor,
        weights: Weights[EntangledScorerWeights],
        seed: Tensor,
        dropout: float,
        precision: str,
    ) -> None:
        self.nodes, self.rows, self.names, self.weights = nodes, rows, names, weights
        self.seed, self.dropout, self.precision = seed, dropout, precision
        count, d = len(rows), nodes.shape[1]
        self.parents, self.slopes = nodes.new_empty(count, d), nodes.new_empty(count, 2 * d)
        one = nodes.new_ones(min(count, entangled_pairs.ROWS_AT_ONCE))
        for some in entangled_pairs.chunks(len(self.rows)):
            made = self._make(some)
            torch.addcmul(weights.cell.beta, made.normed, weights.cell.gamma, out=self.parents[some])
            children = entangled_pairs.pull_to_children(made, one[: len(made.pairs)], weights, precision)
            self.slopes[some] = children.flatten(1)
        self.scores = torch.addmv(weights.scorer.b2, self.parents, weights.scorer.w2[0])

    def weight_gradients(self, grads: Tensor) -> tuple[CellWeights, EntangledScorerWeights]:
        """Gradients of the scores (rows,) → those of the cell's weights and of the scorer's."""
        parts = [
            entangled_pairs.pull(self._make(some), grads[some], self.weights, self.precision).weights
            for some in entangled_pairs.chunks(len(self.rows))
        ]
        total = Weights.of(sum(part[1:], part[0]) for part in zip(*parts, strict=True))
        return total.cell, total.scorer

    def _make(self, some: slice) -> Recalled:
        pairs = self.nodes[self.rows[some]].flatten(1)
        return entangled_pairs.make(
            pairs, self.names[some], self.weights.cell, self.seed, self.dropout, self.precision
        )
