"""A user's own cell and scorer as search and replay call them; autograd differentiates them, many rows at
once.

Children are pulled a level at a time, parameters in few large blocks at the end: each survivor is made twice.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parametrize

from beamtree.engine.record import ROWS_AT_ONCE
from beamtree.parts.contract import refuse_other_tensors


def parameters_of(module: nn.Module) -> list[Tensor]:
    """Its parameters, those that `nn.DataParallel` lends to a replica included."""
    lent = (getattr(part, "_former_parameters", {}).values() for part in module.modules())
    return list(dict.fromkeys((*module.parameters(), *(tensor for some in lent for tensor in some))))


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Its parameters and buffers under all their names."""
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


def as_it_was(module: nn.Module, tensors: dict[str, Tensor]) -> Callable[..., Tensor]:
    """The module with these tensors, though others may stand in it by now: when `functional_call` returns, it
    takes back what it has lent, and the backward pass comes later."""
    now = tensors_of(module)
    if all(now.get(name) is tensor for name, tensor in tensors.items()):
        return module
    return lambda *rows: functional_call(module, tensors, rows)


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
            if not parents.requires_grad:
                return torch.zeros_like(children)
            grad = grad.to(parents.dtype)
            return torch.autograd.grad(parents, children, grad, materialize_grads=True)[0]

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


def _of_shape(found: object, wanted: torch.Size, role: str, what: str) -> Tensor:
    if not isinstance(found, Tensor) or found.shape != wanted:
        came = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ValueError(f"{role} must return {what} for each row, shape {tuple(wanted)} here, got {came}")
    if not found.is_floating_point():
        raise ValueError(f"{role} must return floating point, got {found.dtype}")
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
    if outputs.requires_grad:
        refuse_other_tensors(outputs, inputs)
    if not outputs.requires_grad or not inputs:
        return torch.zeros_like(rows) if rows is not None else grad
    # What lies below a cached weight serves the next rows too.
    again = bool(parametrize._cache_enabled)
    gradients = torch.autograd.grad(outputs, inputs, grad.to(outputs.dtype), again, allow_unused=True)
    for (t, _), g in zip(trained, gradients, strict=False):
        if g is not None:
            t += g
    last = gradients[-1]
    return last if rows is not None and last is not None else torch.zeros_like(grad if rows is None else rows)
