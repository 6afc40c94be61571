"""The parameters of the built-in cell and scorers as records, in the form that engine and kernels read."""

from collections.abc import Iterable
from typing import Any, Generic, NamedTuple, TypeVar

from torch import Tensor


class CellWeights(NamedTuple):
    """The parameters of a `GatedRecursiveCell`."""

    w1: Tensor  # (hidden, 2·d)
    b1: Tensor
    w2: Tensor  # (4·d, hidden)
    b2: Tensor
    gamma: Tensor  # (d,), scale and shift of the layer norm
    beta: Tensor


class SlicedScorerWeights(NamedTuple):
    """The parameters of a `SlicedScorer`."""

    w1: Tensor  # (H, 2·s)
    b1: Tensor
    w2: Tensor  # (1, H)
    b2: Tensor


class EntangledScorerWeights(NamedTuple):
    """The parameters of an `EntangledScorer`, a single linear map of the parent."""

    w2: Tensor  # (1, d)
    b2: Tensor


Scorer = TypeVar("Scorer", bound=SlicedScorerWeights | EntangledScorerWeights)


class Weights(NamedTuple, Generic[Scorer]):
    """All parameters of a recursion."""

    cell: CellWeights
    scorer: Scorer

    @property
    def entangled(self) -> bool:
        """True if a pair's score is read off the parent that it would make."""
        return isinstance(self.scorer, EntangledScorerWeights)

    def flat(self) -> list[Tensor]:
        """One list, as operators and autograd take it: the cell's tensors, then the scorer's."""
        return [*self.cell, *self.scorer]

    @staticmethod
    def of(tensors: Iterable[Tensor]) -> "Weights[Any]":
        """The inverse of `flat`; the number of tensors tells which scorer it is."""
        every = list(tensors)
        cell, scorer = every[: len(CellWeights._fields)], every[len(CellWeights._fields) :]
        if len(scorer) == len(EntangledScorerWeights._fields):
            return Weights(CellWeights(*cell), EntangledScorerWeights(*scorer))
        return Weights(CellWeights(*cell), SlicedScorerWeights(*scorer))
