"""A user's own cell and scorer as the engine calls them; autograd differentiates them, many rows at once."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from beamtree.search import ROWS_AT_ONCE


class AutogradCell:
    def __init__(self, cell: Callable[..., Tensor], parameters: Sequence[Tensor]) -> None:
        self.cell, self.parameters = cell, parameters

    def __call__(self, children: Tensor, keep: Tensor | None) -> Tensor:
        left, right = children.unbind(1)
        parents = self.cell(left, right) if keep is None else self.cell(left, right, keep)
        return _of_shape(parents, left.shape, "cell", "a parent")

    def recall(self, children: Tensor, keep: Tensor | None) -> None:
        self.children, self.keep = children, keep

    def pull(self, rows: slice, grad: Tensor) -> Tensor:
        with torch.enable_grad():
            children = self.children[rows].detach().requires_grad_()
            parents = self(children, None if self.keep is None else self.keep[rows])
            return torch.autograd.grad(parents, children, grad.to(parents.dtype))[0]

    def parameter_gradients(self, grad: Tensor) -> list[Tensor]:
        total = [torch.zeros_like(p) for p in self.parameters]
        for start in range(0, grad.shape[0], ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            with torch.enable_grad():
                parents = self(self.children[rows], None if self.keep is None else self.keep[rows])
            _add_gradients(total, parents, self.parameters, grad[rows])
        return total


class AutogradScore:
    def __init__(self, scorer: Callable[..., Tensor], parameters: Sequence[Tensor]) -> None:
        self.scorer, self.parameters = scorer, parameters
        self.gradients = [torch.zeros_like(p) for p in parameters]

    def __call__(self, pairs: Tensor) -> Tensor:
        return _of_shape(self.scorer(*pairs.unbind(1)), pairs.shape[:1], "scorer", "a number")

    def pull(self, pairs: Tensor, grad: Tensor) -> Tensor:
        with torch.enable_grad():
            pairs = pairs.detach().requires_grad_()
            scores = self(pairs)
        return _add_gradients(self.gradients, scores, self.parameters, grad, pairs)

    def parameter_gradients(self) -> list[Tensor]:
        return self.gradients


def _of_shape(found: Tensor, wanted: torch.Size, role: str, what: str) -> Tensor:
    if found.shape != wanted:
        raise ValueError(
            f"{role} must return {what} for each row, shape {tuple(wanted)} here, got {tuple(found.shape)}"
        )
    return found


def _add_gradients(
    total: list[Tensor],
    outputs: Tensor,
    parameters: Sequence[Tensor],
    grad: Tensor,
    rows: Tensor | None = None,
) -> Tensor:
    """Add the parameters' gradients to `total`; return that of `rows`."""
    trained = [(t, p) for t, p in zip(total, parameters, strict=True) if p.requires_grad]
    inputs = [p for _, p in trained] + ([rows] if rows is not None else [])
    if not outputs.requires_grad or not inputs:
        return torch.zeros_like(rows) if rows is not None else grad
    gradients = torch.autograd.grad(outputs, inputs, grad.to(outputs.dtype), allow_unused=True)
    for (t, _), g in zip(trained, gradients, strict=False):
        if g is not None:
            t += g
    last = gradients[-1]
    return last if rows is not None and last is not None else torch.zeros_like(grad if rows is None else rows)
