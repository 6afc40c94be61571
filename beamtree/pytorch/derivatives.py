"""Refuses derivatives that are not implemented: forward mode (jvp, jacfwd, dual numbers) and second ones."""

from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.autograd import forward_ad

from beamtree.pytorch.tracing import is_compiling

NO_SECOND_DERIVATIVE = (
    "beamtree: tree recursion has no second derivative; call backward or autograd.grad without "
    "create_graph=True"
)


def carries_tangents(*inputs: Tensor) -> bool:
    return forward_ad._current_level >= 0 and any(
        forward_ad.unpack_dual(x).tangent is not None for x in inputs
    )


def is_transformed() -> bool:
    """Return True if `torch.func` or dual numbers differentiate or batch this call. Its tensors are then
    wrappers of others, so it cannot be captured."""
    return forward_ad._current_level >= 0 or torch._C._functorch.peek_interpreter_stack() is not None


def refuse_forward_mode(*inputs: Tensor) -> None:
    """Refuse tangents: at a kernel or operator without a rule for them, PyTorch drops them silently."""
    if not is_compiling() and carries_tangents(*inputs):
        raise NotImplementedError(
            "beamtree: this model has no forward-mode derivative (jvp, jacfwd, dual numbers): call "
            "backward or autograd.grad"
        )


def refuse_second_derivative(*_: Any) -> NoReturn:
    """The derivative of a backward pass: raises an error."""
    raise RuntimeError(NO_SECOND_DERIVATIVE)


def refuse_double_backward() -> None:
    """To be called in a backward pass: refuse to record it for a second derivative."""
    if torch.is_grad_enabled():
        refuse_second_derivative()
