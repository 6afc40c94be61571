"""EBT-GRC's score with its derivative: e = w₂·GELU(W₁ [l′; r′] + b₁) + b₂, of slices of the children."""

import torch
import torch.nn.functional as F
from torch import Tensor

from beamtree.pytorch.precision import in_blocks


class SlicedScore:
    """`SlicedScorer` as a function of its four parameters, with its derivative; always at least float32."""

    def __init__(self, parameters: list[Tensor]) -> None:
        self.dtype = parameters[0].dtype
        wide = torch.promote_types(self.dtype, torch.float32)
        self.w1, self.b1, self.w2, self.b2 = (p.to(wide) for p in parameters)
        self.slice_size = self.w1.shape[1] // 2
        self.gradients = [torch.zeros_like(p) for p in (self.w1, self.b1, self.w2, self.b2)]

    def __call__(self, pairs: Tensor) -> Tensor:  # (rows, 2, d) -> (rows,)
        hidden = self._hidden(in_blocks(self._slices(pairs)))
        return torch.addmv(self.b2, F.gelu(hidden), self.w2[0])[: pairs.shape[0]]

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
