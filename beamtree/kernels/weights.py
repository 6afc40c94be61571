"""The parameters of the built-in cell and scorers as records: what engine and kernels take of them."""

from collections.abc import Iterable
from typing import Any, Generic, NamedTuple, TypeVar

from torch import Tensor


class CellWeights(NamedTuple):
    """Of a `GatedRecursiveCell`."""

    w1: Tensor  # (hidden, 2·d)
    b1: Tensor
    w2: Tensor  # (4·d, hidden)
    b2: Tensor
    gamma: Tensor  # (d,), the norm's
    beta: Tensor


class SlicedScorerWeights(NamedTuple):
    """Of a `SlicedScorer`."""

    w1: Tensor  # (H, 2·s)
    b1: Tensor
    w2: Tensor  # (1, H)
    b2: Tensor


class EntangledScorerWeights(NamedTuple):
    """Of an `EntangledScorer`, which is the last map of a scorer only."""

    w2: Tensor  # (1, d)
    b2: Tensor


Scorer = TypeVar("Scorer", bound=SlicedScorerWeights | EntangledScorerWeights)


class Weights(NamedTuple, Generic[Scorer]):
    """What a recursion computes with."""

    cell: CellWeights
    scorer: Scorer

    @property
    def entangled(self) -> bool:
        """Whether a score is read off the parent that a pair would make."""
        return isinstance(self.scorer, EntangledScorerWeights)

    def flat(self) -> list[Tensor]:
        """As operators and autograd take them: the cell's, then the scorer's."""
        return [*self.cell, *self.scorer]

    @staticmethod
    def of(tensors: Iterable[Tensor]) -> "Weights[Any]":
        """The records of what `flat` has laid out; the scorers differ in how many tensors they have."""
        every = list(tensors)
        cell, scorer = every[: len(CellWeights._fields)], every[len(CellWeights._fields) :]
        if len(scorer) == len(EntangledScorerWeights._fields):
            return Weights(CellWeights(*cell), EntangledScorerWeights(*scorer))
        return Weights(CellWeights(*cell), SlicedScorerWeights(*scorer))
