"""The two scores of a pair with their derivatives.

Sliced (EBT-GRC):     e = w₂·GELU(W₁ [l′; r′] + b₁) + b₂, of slices l′ and r′ of the children
Entangled (BT-GRC):   e = w·cell(l, r) + b, read off the parent that the pair would make
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from beamtree.engine.gated_cell import GatedCell
from beamtree.kernels.weights import EntangledScorerWeights, SlicedScorerWeights, Weights
from beamtree.pytorch.precision import in_blocks


class SlicedScore:
    """`SlicedScorer` as a function of its four parameters, with its derivative; always at least float32."""

    def __init__(self, weights: SlicedScorerWeights) -> None:
        self.dtype = weights.w1.dtype
        wide = torch.promote_types(self.dtype, torch.float32)
        self.w1, self.b1, self.w2, self.b2 = (w.to(wide) for w in weights)
        self.slice_size = self.w1.shape[1] // 2
        self.last = self.w2[0]
        self.gradients = [torch.zeros_like(p) for p in (self.w1, self.b1, self.w2, self.b2)]

    def __call__(self, pairs: Tensor) -> Tensor:  # (rows, 2, d) -> (rows,)
        hidden = self._hidden(in_blocks(self._slices(pairs)))
        return torch.addmv(self.b2, F.gelu(hidden), self.last)[: pairs.shape[0]]

    def pull(self, pairs: Tensor, grad: Tensor) -> Tensor:
        """Gradients of scores → gradients of the pairs, (rows, 2, d); the parameters' are summed up."""
        slices = self._slices(pairs)
        hidden = self._hidden(slices)
        to_hidden = torch.ops.aten.gelu_backward(grad.unsqueeze(1) * self.w2, hidden)
        w1, b1, w2, b2 = self.gradients
        w1.addmm_(to_hidden.t(), slices)
        b1 += to_hidden.sum(0)
        w2[0].addmv_(F.gelu(hidden).t(), grad)
        b2 += grad.sum()
        to_pairs = pairs.new_zeros(pairs.shape, dtype=self.w1.dtype)
        to_pairs[..., : self.slice_size] = (to_hidden @ self.w1).view(-1, 2, self.slice_size)
        return to_pairs

    def parameter_gradients(self) -> list[Tensor]:
        return [g.to(self.dtype) for g in self.gradients]

    def _slices(self, pairs: Tensor) -> Tensor:
        return pairs[..., : self.slice_size].to(self.w1.dtype).reshape(-1, 2 * self.slice_size)

    def _hidden(self, slices: Tensor) -> Tensor:
        return F.linear(slices, self.w1, self.b1)


class ParentScore:
    """`EntangledScorer` on pairs (rows, 2, d), as a function of the cell's six and its own two parameters."""

    def __init__(self, weights: Weights[EntangledScorerWeights], product_dtype: torch.dtype) -> None:
        self.dtype = weights.scorer.w2.dtype
        wide = torch.promote_types(self.dtype, torch.float32)
        self.cell = GatedCell(weights.cell, product_dtype)
        self.weight, self.bias = (w.to(wide) for w in weights.scorer)  # (1, d), (1,)
        self.gradients = [torch.zeros_like(w, dtype=wide) for w in weights.flat()]

    def __call__(self, pairs: Tensor, keep: Tensor | None = None) -> Tensor:  # (rows, 2, d) -> (rows,)
        return self.of(self.cell(pairs, keep))

    def of(self, parents: Tensor) -> Tensor:  # (rows, d) -> (rows,)
        rows = in_blocks(parents.to(self.weight.dtype))
        return torch.addmv(self.bias, rows, self.weight[0])[: parents.shape[0]]

    def pull(self, pairs: Tensor, grad: Tensor, keep: Tensor | None = None) -> Tensor:
        """Gradients of scores → gradients of the pairs, (rows, 2, d); the parameters' are summed up."""
        to_parents = grad.unsqueeze(1) * self.weight
        self.cell.recall(pairs, keep)
        to_pairs = self.cell.pull(slice(None), to_parents)
        found = [
            *self.cell.parameter_gradients(to_parents),
            (grad @ self.cell.recalled().to(grad.dtype)).unsqueeze(0),
            grad.sum(0, keepdim=True),
        ]
        for total, gradient in zip(self.gradients, found, strict=True):
            total += gradient
        return to_pairs

    def parameter_gradients(self) -> list[Tensor]:
        """Of the cell's six, then of the scorer's two."""
        return [gradient.to(self.dtype) for gradient in self.gradients]


def weight_gradients(cell: list[Tensor], score: SlicedScore | ParentScore) -> list[Tensor]:
    """Gradients of all weights, from those that came through nodes to the cell's, and the score's own."""
    if isinstance(score, SlicedScore):
        return [*cell, *score.parameter_gradients()]
    through_scores = Weights.of(score.parameter_gradients())
    return [*(a + b for a, b in zip(cell, through_scores.cell, strict=True)), *through_scores.scorer]
