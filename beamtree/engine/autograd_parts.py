"""Adapters between a user's own cell and scorer and the search and replay; autograd computes the derivatives.

Gradients of children are pulled one level at a time, those of parameters in a few large blocks at the end, so
each survivor is computed twice.
"""

import threading
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from beamtree.engine.record import ROWS_AT_ONCE
from beamtree.parts.contract import refuse_other_tensors, version_of

# Held while a module has other tensors than its own, which no other thread should take for them.
_lending = threading.RLock()


def parameters_of(module: nn.Module) -> list[Tensor]:
    """The parameters of a module, including those that `nn.DataParallel` assigns to a replica."""
    lent = (getattr(part, "_former_parameters", {}).values() for part in module.modules())
    with _lending:
        return list(dict.fromkeys((*module.parameters(), *(tensor for some in lent for tensor in some))))


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers of a module, under all their names."""
    with _lending:
        return {
            **dict(module.named_parameters(remove_duplicate=False)),
            **dict(module.named_buffers(remove_duplicate=False)),
        }


class AsItWas:
    """A module as it was when this was made, to be called again in the backward pass.

    By then it may hold other parameters and buffers, or be in another mode.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module, self.tensors = module, tensors_of(module)
        self.modes = {part: part.training for part in module.modules()}
        self.versions = {tensor: version_of(tensor) for tensor in self.tensors.values()}

    def recall(self) -> tuple[Callable[..., Tensor], dict[Tensor, Tensor]]:
        """Return the module itself if nothing has changed; and which tensors stand for which parameters.

        Hooks of a parameter, as of `register_hook` or `retain_grad`, must act on its whole gradient alone,
        not on those of a few rows at a time. So a tensor with the same memory stands for such a parameter.
        """
        for name, tensor in self.tensors.items():
            if version_of(tensor) != self.versions[tensor]:
                # Autograd itself does not notice this where hooks, as of `save_on_cpu`, copy what it saves.
                kind = "parameter" if isinstance(tensor, nn.Parameter) else "buffer"
                raise RuntimeError(
                    f"{kind} {name} of {type(self.module).__name__} has been modified by an inplace "
                    "operation since the forward pass, and the backward pass needs it as it was"
                )
        standing = {
            tensor: tensor.detach().requires_grad_()
            for tensor in self.tensors.values()
            if tensor.requires_grad and (tensor._backward_hooks or not tensor.is_leaf)
        }
        now, then = tensors_of(self.module), {n: standing.get(t, t) for n, t in self.tensors.items()}
        same_tensors = all(now.get(name) is tensor for name, tensor in then.items())
        if same_tensors and all(part.training == mode for part, mode in self.modes.items()):
            return self.module, standing

        def call(*rows: Tensor) -> Tensor:
            with _lending:
                modes = {part: part.training for part in self.modes}
                try:
                    _set_modes(self.modes)
                    # It restores the module's own tensors when it returns.
                    found: Tensor = functional_call(self.module, then, rows)
                    return found
                finally:
                    _set_modes(modes)

        return call, standing


def _set_modes(modes: dict[nn.Module, bool]) -> None:
    for part, mode in modes.items():
        part.training = mode


class AutogradCell:
    def __init__(self, cell: Callable[..., Tensor], parameters: Sequence[Tensor]) -> None:
        self.cell, self.parameters = cell, parameters

    def __call__(self, children: Tensor, keep: Tensor | None) -> Tensor:
        left, right = _halves(children)
        parents = self.cell(left, right) if keep is None else self.cell(left, right, keep)
        return _of_shape(parents, left.shape, "cell", "a parent")

    def recompute(self, children: Tensor, keep: Tensor | None) -> None:
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
            del parents  # with its graph, before the next one is made
        return total


class AutogradScore:
    def __init__(self, scorer: Callable[..., Tensor], parameters: Sequence[Tensor]) -> None:
        self.scorer, self.parameters = scorer, parameters
        self.gradients = [torch.zeros_like(p) for p in parameters]

    def __call__(self, pairs: Tensor, keep: Tensor | None = None) -> Tensor:
        if not pairs.shape[0]:  # of sequences of one token
            return pairs.new_empty(0)
        return _of_shape(self.scorer(*_halves(pairs)), pairs.shape[:1], "scorer", "a number")

    def pull(self, pairs: Tensor, grad: Tensor, keep: Tensor | None = None) -> Tensor:
        with torch.enable_grad():
            pairs = pairs.detach().requires_grad_()
            scores = self(pairs)
        return _add_gradients(self.gradients, scores, self.parameters, grad, pairs)

    def parameter_gradients(self) -> list[Tensor]:
        return self.gradients


def _halves(pairs: Tensor) -> tuple[Tensor, Tensor]:
    """Left and right. Where autograd records they are copies, as it forbids writing to parts of a leaf and a
    user's part may work in place."""
    left, right = pairs.unbind(1)
    return (left.clone(), right.clone()) if torch.is_grad_enabled() else (left, right)


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
    """Add the gradients of the parameters to `total`; return that of `rows`."""
    trained = [(t, p) for t, p in zip(total, parameters, strict=True) if p.requires_grad]
    inputs = [p for _, p in trained] + ([rows] if rows is not None else [])
    nodes = refuse_other_tensors(outputs, inputs) if outputs.requires_grad else ()
    if not nodes or not inputs:
        return torch.zeros_like(rows) if rows is not None else grad
    # The graph below a weight that was computed once, before this call, is needed again for the next rows.
    # What `torch.compile` has made runs only once, and raises an error if it is to be retained.
    again = not any(node.name().startswith("CompiledFunction") for node in nodes)
    gradients = torch.autograd.grad(outputs, inputs, grad.to(outputs.dtype), again, allow_unused=True)
    for (t, _), g in zip(trained, gradients, strict=False):
        if g is not None:
            t += g
    last = gradients[-1]
    return last if rows is not None and last is not None else torch.zeros_like(grad if rows is None else rows)
