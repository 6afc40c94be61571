"""What is asked of a cell and a scorer of your own; both are modules, called on rows of nodes, (…, d) each.

They are functions of their arguments and parameters, row by row: nodes are computed again in the backward
pass. In inference and without dropout a cell is called `cell(left, right)`.
"""

from typing import Protocol, runtime_checkable

from torch import Tensor, nn


class Cell(Protocol):
    """Two children make a parent."""

    def __call__(self, left: Tensor, right: Tensor, /) -> Tensor:
        """Parents (…, d) of left and right children, (…, d) each."""


@runtime_checkable
class CellWithDropout(Protocol):
    """A cell that drops out: in training it is called with masks (…, hidden_size), each for one node, already
    scaled by 1/(1 − dropout)."""

    dropout: float
    hidden_size: int

    def __call__(self, left: Tensor, right: Tensor, keep: Tensor | None = None, /) -> Tensor:
        """Parents (…, d) of left and right children, (…, d) each."""


class Scorer(Protocol):
    """How good a merge of two neighbours would be: the higher its score, the sooner a pair is merged."""

    def __call__(self, left: Tensor, right: Tensor, /) -> Tensor:
        """Scores (…) of pairs of left and right nodes, (…, d) each."""


def dropout_rate(cell: nn.Module) -> float:
    """The rate at which a cell drops out now; a layer named `dropout` is not one."""
    if not cell.training or not hasattr(cell, "dropout") or isinstance(cell.dropout, nn.Module):
        return 0.0
    return float(cell.dropout)


def mask_width(cell: nn.Module) -> int:
    """The width of the masks that a cell with dropout gets."""
    if not isinstance(cell, CellWithDropout) or cell.hidden_size < 1:
        raise ValueError("cell has a rate `dropout` but no `hidden_size`, the width of the masks it gets")
    return int(cell.hidden_size)
