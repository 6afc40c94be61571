"""How the package registers its operators."""

from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch

HAS_TRITON = find_spec("triton") is not None


@cache
def has_kernels(device: torch.device) -> bool:
    """Whether our kernels can run there."""
    if not HAS_TRITON or device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


_LIBRARY = torch.library.Library("beamtree", "FRAGMENT")


def register(
    name: str,
    function: Callable[..., Any],
    shapes: Callable[..., Any],
    backward: Callable[..., Any] | None = None,
    setup_context: Callable[..., None] | None = None,
    tags: Sequence[torch.Tag] = (),
) -> None:
    """As `torch.library.custom_op` would, which however imports the whole compiler at the first call."""
    _LIBRARY.define(name + torch.library.infer_schema(function, mutates_args=()), tags=tuple(tags))
    _LIBRARY.impl(name, function, "CompositeExplicitAutograd")
    full_name = f"beamtree::{name}"
    torch.library.register_fake(full_name, shapes, lib=_LIBRARY)
    if backward is not None:
        torch.library.register_autograd(full_name, backward, setup_context=setup_context, lib=_LIBRARY)
