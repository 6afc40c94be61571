"""What scores pairs while a straight-through tree grows, and its derivative: by slices or by the parent."""

from typing import Protocol

import torch
from torch import Tensor

from beamtree.engine.scores import ParentScore, SlicedScore
from beamtree.kernels.weights import EntangledScorerWeights, SlicedScorerWeights, Weights


class Judge(Protocol):
    """Scores pairs of nodes (rows, 2, d); where it makes their parents for that, it returns them too."""

    makes_parents: bool

    @property
    def score(self) -> SlicedScore | ParentScore: ...
    def __call__(self, pairs: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor | None]: ...
    def pull(self, pairs: Tensor, keep: Tensor | None, grad: Tensor) -> Tensor: ...
    def pull_parameters(self, pairs: Tensor, keep: Tensor | None, grad: Tensor) -> None: ...


class SlicedJudge:
    """e = w₂·GELU(W₁ [l[:s]; r[:s]] + b₁) + b₂, of the scorer's four parameters."""

    makes_parents = False

    def __init__(self, weights: SlicedScorerWeights) -> None:
        self.score, self.slopes = SlicedScore(weights), SlicedScore(weights)

    def __call__(self, pairs: Tensor, keep: Tensor | None) -> tuple[Tensor, None]:
        return self.score(pairs), None

    def pull(self, pairs: Tensor, keep: Tensor | None, grad: Tensor) -> Tensor:
        return self.slopes.pull(pairs, grad)[..., : self.score.slice_size]

    def pull_parameters(self, pairs: Tensor, keep: Tensor | None, grad: Tensor) -> None:
        self.score.pull(pairs, grad)


class EntangledJudge:
    """e = w·cell(l, r) + b, of the cell's six parameters and the scorer's two."""

    makes_parents = True

    def __init__(self, weights: Weights[EntangledScorerWeights], product_dtype: torch.dtype) -> None:
        self.score = ParentScore(weights, product_dtype)

    def __call__(self, pairs: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor]:
        parents = self.score.cell(pairs, keep)
        return self.score.of(parents), parents

    def pull(self, pairs: Tensor, keep: Tensor | None, grad: Tensor) -> Tensor:
        self.score.cell.recall(pairs, keep)
        return self.score.cell.pull(slice(None), grad.unsqueeze(1) * self.score.weight)

    def pull_parameters(self, pairs: Tensor, keep: Tensor | None, grad: Tensor) -> None:
        self.score.pull(pairs, grad, keep)
