"""The built-in cell and the two pair scores as functions of their weights, with hand-written derivatives.

The gated cell is differentiated level by level: the activations of all nodes are recomputed at once,
gradients are pulled one level at a time, and parameter gradients are computed at the end.

    h = W₁ [l; r] + b₁      u = keep · GELU(h)      [a; b; g; c] = W₂ u + b₂
    p = σ(a)·l + σ(b)·r + σ(g)·c                    parent = LayerNorm(p)

The sliced score (EBT-GRC) reads slices l′ and r′ of the children; the entangled score (BT-GRC) reads the
parent that they would make:

    e = w₂·GELU(W₁ [l′; r′] + b₁) + b₂              e = w·cell(l, r) + b
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from beamtree.parts.weights import CellWeights, EntangledScorerWeights, SlicedScorerWeights, Weights
from beamtree.pytorch.direct_reading import EPS
from beamtree.pytorch.precision import in_blocks


class GatedCell:
    """`GatedRecursiveCell` as a function of its six parameters; products are computed in `product_dtype`.

    `recompute` recomputes the activations and stores local derivatives in `to_hidden` and `to_gates`. `pull`
    multiplies ∂L into their rows in place. `parameter_gradients` then reads the results.
    """

    def __init__(self, weights: CellWeights, product_dtype: torch.dtype, eps: float = EPS) -> None:
        w1, b1, w2, b2, gamma, beta = weights
        self.dtype = w1.dtype
        self.wide = torch.promote_types(w1.dtype, torch.float32)
        self.gamma, self.beta = gamma.to(self.wide), beta.to(self.wide)
        self.product_dtype = product_dtype
        self.w1, self.w2 = w1.to(product_dtype), w2.to(product_dtype)
        self.b1, self.b2 = b1.to(product_dtype), b2.to(product_dtype)
        self.eps = eps
        self.d = gamma.shape[0]

    def __call__(self, children: Tensor, keep: Tensor | None) -> Tensor:  # (rows, 2, d) -> (rows, d)
        d, rows = self.d, children.shape[0]
        pair = children.view(-1, 2 * d)
        if keep is None:  # equal pairs get equal parents, to the last bit; with masks they differ anyway
            pair = in_blocks(pair)
        hidden = F.gelu(self._linear(pair, self.w1, self.b1))
        if keep is not None:
            hidden *= keep
        gates = self._linear(hidden, self.w2, self.b2)
        (left, right), content = pair.split(d, 1), gates[:, 3 * d :]
        left_gate, right_gate, content_gate = gates[:, : 3 * d].sigmoid().split(d, 1)
        mixed = (left_gate * left).addcmul_(right_gate, right).addcmul_(content_gate, content)
        return self._norm(mixed)[:rows]

    def recompute(self, children: Tensor, keep: Tensor | None, keep_read: Tensor | None = None) -> None:
        """Recompute what the derivatives need, for all rows at once.

        `keep_read` (rows, 2·d) is a mask on the children where W₁ reads them, as Ordered Memory has it.
        """
        d = self.d
        pair = children.view(-1, 2 * d)
        self.keep_read, self.read = keep_read, pair if keep_read is None else pair * keep_read
        hidden = self._linear(self.read, self.w1, self.b1)
        activated = F.gelu(hidden)
        slope = torch.ones_like(hidden) if keep is None else keep.to(self.wide)
        self.activated = activated if keep is None else activated * keep
        self.to_hidden = torch.ops.aten.gelu_backward(slope, hidden)  # ∂u/∂h; after `pull` ∂L/∂h
        gates = self._linear(self.activated, self.w2, self.b2).view(-1, 4, d)
        self.opened = gates[:, :3].sigmoid()
        left_gate, right_gate, content_gate = self.opened.unbind(1)
        left, right = pair.view(-1, 2, d).to(self.wide).unbind(1)
        content = gates[:, 3]
        self.mixed = (left_gate * left).addcmul_(right_gate, right).addcmul_(content_gate, content)
        # ∂p/∂[a; b; g; c]; after `pull` ∂L/∂[a; b; g; c]
        self.to_gates = torch.empty_like(gates)
        for i, passed in enumerate((left, right, content)):
            torch.ops.aten.sigmoid_backward.grad_input(
                passed, self.opened[:, i], grad_input=self.to_gates[:, i]
            )
        self.to_gates[:, 3] = content_gate
        self.mean = self.mixed.mean(-1, keepdim=True)
        self.scale = ((self.mixed - self.mean).square().mean(-1, keepdim=True) + self.eps).rsqrt()

    def recomputed(self) -> Tensor:
        """Return the parents, from what `recompute` stored."""
        return self._norm(self.mixed)

    def pull(self, rows: slice, grad: Tensor) -> Tensor:
        """From the gradients of the parents of some rows to those of their children, (rows, 2, d)."""
        through_norm = torch.ops.aten.native_layer_norm_backward(
            grad,
            self.mixed[rows],
            (self.d,),
            self.mean[rows],
            self.scale[rows],
            self.gamma,
            self.beta,
            (True, False, False),
        )[0].unsqueeze(1)  # (rows, 1, d)
        to_gates = self.to_gates[rows].mul_(through_norm)
        to_hidden = self.to_hidden[rows].mul_(self._product(to_gates.flatten(1), self.w2))
        to_pair = self._product(to_hidden, self.w1)
        if self.keep_read is not None:
            to_pair *= self.keep_read[rows]
        return to_pair.view(-1, 2, self.d).addcmul(through_norm, self.opened[rows, :2])

    def parameter_gradients(self, grad: Tensor) -> list[Tensor]:
        """Gradients of the six parameters, once every row has been pulled; `grad` is that of all parents."""
        to_gates = self.to_gates.flatten(1)
        normed = (self.mixed - self.mean) * self.scale
        gradients = [
            self._product(self.to_hidden.t(), self.read),
            self.to_hidden.sum(0),
            self._product(to_gates.t(), self.activated),
            to_gates.sum(0),
            (grad * normed).sum(0),
            grad.sum(0),
        ]
        return [g.to(self.dtype) for g in gradients]

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.linear(x.to(self.product_dtype), weight, bias).to(self.wide)

    def _product(self, x: Tensor, y: Tensor) -> Tensor:
        return (x.to(self.product_dtype) @ y.to(self.product_dtype)).to(self.wide)

    def _norm(self, mixed: Tensor) -> Tensor:
        return F.layer_norm(mixed, (self.d,), self.gamma, self.beta, self.eps).to(self.dtype)


class SlicedScore:
    """`SlicedScorer` as a function of its four parameters, with derivatives; computed at least in float32.

    It has no dropout, so it never reads `keep`."""

    def __init__(self, weights: SlicedScorerWeights) -> None:
        self.dtype = weights.w1.dtype
        wide = torch.promote_types(self.dtype, torch.float32)
        self.w1, self.b1, self.w2, self.b2 = (w.to(wide) for w in weights)
        self.slice_size = self.w1.shape[1] // 2
        self.last = self.w2[0]
        self.gradients = [torch.zeros_like(p) for p in (self.w1, self.b1, self.w2, self.b2)]

    def __call__(self, pairs: Tensor, keep: Tensor | None = None) -> Tensor:  # (rows, 2, d) -> (rows,)
        hidden = self._hidden(in_blocks(self._slices(pairs)))  # adds rows, cut off again below
        return torch.addmv(self.b2, F.gelu(hidden), self.last)[: pairs.shape[0]]

    def pull(self, pairs: Tensor, grad: Tensor, keep: Tensor | None = None) -> Tensor:
        """From gradients of scores to those of the pairs, (rows, 2, d); accumulates those of parameters."""
        slices = self._slices(pairs)
        hidden = self._hidden(slices)
        grad_hidden = torch.ops.aten.gelu_backward(grad.unsqueeze(1) * self.w2, hidden)
        w1, b1, w2, b2 = self.gradients
        w1.addmm_(grad_hidden.t(), slices)
        b1 += grad_hidden.sum(0)
        w2[0].addmv_(F.gelu(hidden).t(), grad)
        b2 += grad.sum()
        to_pairs = pairs.new_zeros(pairs.shape, dtype=self.w1.dtype)
        to_pairs[..., : self.slice_size] = (grad_hidden @ self.w1).view(-1, 2, self.slice_size)
        return to_pairs

    def parameter_gradients(self) -> list[Tensor]:
        return [g.to(self.dtype) for g in self.gradients]

    def _slices(self, pairs: Tensor) -> Tensor:
        return pairs[..., : self.slice_size].to(self.w1.dtype).reshape(-1, 2 * self.slice_size)

    def _hidden(self, slices: Tensor) -> Tensor:
        return F.linear(slices, self.w1, self.b1)


class EntangledScore:
    """`EntangledScorer` on pairs (rows, 2, d), as a function of the cell's six parameters and its own two."""

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
        """From gradients of scores to those of the pairs, (rows, 2, d); accumulates those of parameters."""
        to_parents = grad.unsqueeze(1) * self.weight
        self.cell.recompute(pairs, keep)
        to_pairs = self.cell.pull(slice(None), to_parents)
        found = [
            *self.cell.parameter_gradients(to_parents),
            (grad @ self.cell.recomputed().to(grad.dtype)).unsqueeze(0),
            grad.sum(0, keepdim=True),
        ]
        for total, gradient in zip(self.gradients, found, strict=True):
            total += gradient
        return to_pairs

    def parameter_gradients(self) -> list[Tensor]:
        """Gradients of the cell's six parameters, then of the scorer's two."""
        return [gradient.to(self.dtype) for gradient in self.gradients]


def weight_gradients(cell: list[Tensor], score: list[Tensor], entangled: bool) -> list[Tensor]:
    """Gradients of all weights. An entangled score also contributes gradients to the weights of the cell."""
    if not entangled:
        return [*cell, *score]
    through_scores = Weights.of(score)
    return [*(a + b for a, b in zip(cell, through_scores.cell, strict=True)), *through_scores.scorer]
