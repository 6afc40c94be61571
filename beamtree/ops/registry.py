"""How the package registers its operators."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

_LIBRARY = torch.library.Library("beamtree", "FRAGMENT")


def register(
    name: str,
    function: Callable[..., Any],
    shapes: Callable[..., Any],
    backward: Callable[..., Any],
    setup_context: Callable[..., None] | None = None,
    tags: Sequence[torch.Tag] = (),
) -> None:
    """As `torch.library.custom_op` would, which however imports the whole compiler at the first call."""
    _LIBRARY.define(name + torch.library.infer_schema(function, mutates_args=()), tags=tuple(tags))
    _LIBRARY.impl(name, function, "CompositeExplicitAutograd")
    full_name = f"beamtree::{name}"
    torch.library.register_fake(full_name, shapes, lib=_LIBRARY)
    torch.library.register_autograd(full_name, backward, setup_context=setup_context, lib=_LIBRARY)
