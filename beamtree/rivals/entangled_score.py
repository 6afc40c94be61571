"""The entangled scorer with its derivative written out: e = w·cell(l, r) + b, and the parent beside it."""

import torch
from torch import Tensor

from beamtree.ops.gated_cell import GatedCell


class EntangledScore:
    """Scores pairs (rows, 2, d) as a function of the cell's six parameters and the scorer's two."""

    makes_parents = True

    def __init__(self, parameters: list[Tensor], product_dtype: torch.dtype) -> None:
        self.dtype = parameters[0].dtype
        wide = torch.promote_types(self.dtype, torch.float32)
        self.cell = GatedCell(parameters[:6], product_dtype)
        self.weight, self.bias = (p.to(wide) for p in parameters[6:])  # (1, d), (1,)
        self.gradients = [torch.zeros_like(p, dtype=wide) for p in parameters]

    def __call__(self, pairs: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor]:
        """Scores (rows,) and the parents (rows, d) they were read from."""
        parents = self.cell(pairs, keep)
        return torch.addmv(self.bias, parents.to(self.weight.dtype), self.weight[0]), parents

    def pull(self, pairs: Tensor, keep: Tensor | None, grad: Tensor) -> Tensor:
        """Gradients of scores (rows,) → gradients of the pairs, (rows, 2, d)."""
        self.cell.recall(pairs, keep)
        return self.cell.pull(slice(None), grad.unsqueeze(1) * self.weight)

    def pull_parameters(self, pairs: Tensor, keep: Tensor | None, grad: Tensor) -> None:
        """Add to `gradients` what the scores of these pairs send to the parameters."""
        self.pull(pairs, keep, grad)
        to_parents = grad.unsqueeze(1) * self.weight
        parents = self.cell(pairs, keep).to(grad.dtype)
        found = [
            *self.cell.parameter_gradients(to_parents),
            (grad @ parents)[None],
            grad.sum(0, keepdim=True),
        ]
        for total, gradient in zip(self.gradients, found, strict=True):
            total += gradient

    def parameter_gradients(self) -> list[Tensor]:
        """Of the cell's six, then of the scorer's two."""
        return [gradient.to(self.dtype) for gradient in self.gradients]
