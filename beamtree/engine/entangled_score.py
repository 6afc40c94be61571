"""The entangled score with its derivative: e = w·cell(l, r) + b, read off the parent a pair would make."""

import torch
from torch import Tensor

from beamtree.engine.gated_cell import GatedCell
from beamtree.pytorch.precision import in_blocks


class ParentScore:
    """`EntangledScorer` on pairs (rows, 2, d), as a function of the cell's six and its own two parameters."""

    def __init__(self, parameters: list[Tensor], product_dtype: torch.dtype) -> None:
        self.dtype = parameters[0].dtype
        wide = torch.promote_types(self.dtype, torch.float32)
        self.cell = GatedCell(parameters[:6], product_dtype)
        self.weight, self.bias = (p.to(wide) for p in parameters[6:])  # (1, d), (1,)
        self.gradients = [torch.zeros_like(p, dtype=wide) for p in parameters]

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
