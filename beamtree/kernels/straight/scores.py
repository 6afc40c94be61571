"""Scores of all pairs of a straight-through tree at once, their slopes and, last, their weights' gradients.

Every pair that ever lived is one row: n−1 of leaves and two of each merge, for each of the B sequences.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from beamtree.kernels.replay import entangled_pair_kernels as entangled_pairs
from beamtree.kernels.replay.cell_replay import Recalled
from beamtree.kernels.runtime.products import HALF, float32_precision, product
from beamtree.kernels.weights import CellWeights, EntangledScorerWeights, SlicedScorerWeights, Weights


class SlicedScores:
    """e = w₂·GELU(W₁ [l[:s]; r[:s]] + b₁) + b₂, of pairs of node rows (rows, 2)."""

    parents = None

    def __init__(self, nodes: Tensor, rows: Tensor, weights: SlicedScorerWeights, precision: str) -> None:
        # A scorer is never rounded to half.
        self.precision = float32_precision() if precision in HALF else precision
        s = weights.w1.shape[1] // 2
        self.slices = nodes[:, :s][rows].flatten(1)  # (rows, 2·s)
        hidden = product(self.slices, weights.w1.t(), self.precision, bias=weights.b1)
        self.activity = F.gelu(hidden)
        self.scores = torch.addmv(weights.b2, self.activity, weights.w2[0])  # (rows,)
        self.to_hidden = torch.ops.aten.gelu_backward(weights.w2.expand_as(hidden), hidden)
        self.slopes = product(self.to_hidden, weights.w1, self.precision)  # ∂e/∂(l[:s], r[:s])

    def weight_gradients(self, grads: Tensor) -> tuple[None, list[Tensor]]:
        """From gradients of the scores (rows,): nothing of the cell, and those of the scorer."""
        to_hidden = self.to_hidden.mul_(grads.unsqueeze(1))
        return None, [
            product(to_hidden.t(), self.slices, self.precision),
            to_hidden.sum(0),
            (grads @ self.activity).unsqueeze(0),
            grads.sum(0, keepdim=True),
        ]


class ParentScores:
    """e = w·cell(l, r) + b; `names` (rows, 3) are those of the pairs' dropout masks."""

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
        """From gradients of the scores (rows,): those of the cell and of the scorer."""
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
