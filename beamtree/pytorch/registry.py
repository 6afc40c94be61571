"""Registers the package's operators with PyTorch."""

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature
from typing import Any, TypeVar, get_type_hints

import torch
from torch import Tensor

_LIBRARY = torch.library.Library("beamtree", "FRAGMENT")

Call = TypeVar("Call", bound=tuple[Any, ...])  # a NamedTuple
Output = TypeVar("Output")


def register(
    name: str,
    run: Callable[[Call], Output],
    shapes: Callable[[Call], Output],
    differentiate: Callable[..., Mapping[str, Any]] | None = None,
    remember: Callable[[Any, Call, Output], None] | None = None,
    tags: Sequence[torch.Tag] = (),
) -> None:
    """Register an operator whose arguments are the fields of the NamedTuple that `run` takes.

    `shapes` returns empty tensors like those that `run` returns. `differentiate(ctx, *gradients)` returns the
    gradients of the arguments by name, and `remember(ctx, call, output)` saves what it needs for that. We do
    not use `torch.library.custom_op`, because it imports the whole compiler at the first call.
    """
    hints = get_type_hints(run)
    returned = hints.pop("return")
    (call_type,) = hints.values()
    arguments = get_type_hints(call_type)

    def call(*given: Any) -> Output:
        return run(call_type(*given))

    def fake(*given: Any) -> Output:
        return shapes(call_type(*given))

    parameters = [
        Parameter(field, Parameter.POSITIONAL_OR_KEYWORD, annotation=kind)
        for field, kind in arguments.items()
    ]
    call.__signature__ = Signature(parameters, return_annotation=returned)  # type: ignore[attr-defined]
    _LIBRARY.define(name + torch.library.infer_schema(call, mutates_args=()), tags=tuple(tags))
    _LIBRARY.impl(name, call, "CompositeExplicitAutograd")
    full_name = f"beamtree::{name}"
    torch.library.register_fake(full_name, fake, lib=_LIBRARY)
    if differentiate is None:
        return

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Output) -> None:
        if remember is not None:
            remember(ctx, call_type(*inputs), output)

    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        found = differentiate(ctx, *gradients)
        return tuple(found.get(field) for field in arguments)

    torch.library.register_autograd(full_name, backward, setup_context=setup_context, lib=_LIBRARY)
