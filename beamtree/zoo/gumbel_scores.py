"""What scores pairs while a straight-through tree grows, and its derivative: by slices or by the parent."""

from typing import Protocol

import torch
from torch import Tensor

from beamtree.engine.scores import ParentScore, SlicedScore


class Judge(Protocol):
    """Scores pairs of nodes (rows, 2, d); where it makes their parents for that, it returns them too."""

    makes_parents: bool

    def __call__(self, pairs: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor | None]: ...
    def pull(self, pairs: Tensor, keep: Tensor | None, grad: Tensor) -> Tensor: ...
    def pull_parameters(self, pairs: Tensor, keep: Tensor | None, grad: Tensor) -> None: ...
    def parameter_gradients(self) -> list[Tensor]: ...


class SlicedJudge:
    """e = w₂·GELU(W₁ [l[:s]; r[:s]] + b₁) + b₂, of the scorer's four parameters."""

    makes_parents = False

    def __init__(self, parameters: list[Tensor]) -> None:
        self.score, self.slopes = SlicedScore(parameters), SlicedScore(parameters)

    def __call__(self, pairs: Tensor, keep: Tensor | None) -> tuple[Tensor, None]:
        return self.score(pairs), None

    def pull(self, pairs: Tensor, keep: Tensor | None, grad: Tensor) -> Tensor:
        return self.slopes.pull(pairs, grad)[..., : self.score.slice_size]

    def pull_parameters(self, pairs: Tensor, keep: Tensor | None, grad: Tensor) -> None:
        self.score.pull(pairs, grad)

    def parameter_gradients(self) -> list[Tensor]:
        return self.score.parameter_gradients()


class EntangledJudge:
    """e = w·cell(l, r) + b, of the cell's six parameters and the scorer's two."""

    makes_parents = True

    def __init__(self, parameters: list[Tensor], product_dtype: torch.dtype) -> None:
        self.score = ParentScore(parameters, product_dtype)

    def __call__(self, pairs: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor]:
        parents = self.score.cell(pairs, keep)
        return self.score.of(parents), parents

    def pull(self, pairs: Tensor, keep: Tensor | None, grad: Tensor) -> Tensor:
        self.score.cell.recall(pairs, keep)
        return self.score.cell.pull(slice(None), grad.unsqueeze(1) * self.score.weight)

    def pull_parameters(self, pairs: Tensor, keep: Tensor | None, grad: Tensor) -> None:
        self.score.pull(pairs, grad, keep)

    def parameter_gradients(self) -> list[Tensor]:
        return self.score.parameter_gradients()
