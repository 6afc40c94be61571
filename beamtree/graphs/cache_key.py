"""The cache key of a captured module: everything whose change makes its graph stale."""

from collections.abc import Hashable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_UNREAD = set(vars(nn.Module())) - {"training", "_parameters", "_buffers"}
_ELSEWHERE = object()  # in place of a tensor that a graph could not read


def has_hooks(part: nn.Module) -> bool:
    """Return True if this module itself has hooks, which a replay would not run."""
    return any(getattr(part, hooks) for hooks in _HOOKS)


def module_key(module: nn.Module, device: torch.device) -> Hashable | None:
    """The cache key of a module; None if it cannot be captured."""
    if not getattr(module, "cuda_graphs", True):
        return None
    found: list[Hashable] = [id(module)]
    for part in module.modules():
        if has_hooks(part):
            return None
        found.append(id(type(part)))
        for name, value in vars(part).items():
            if name not in _UNREAD:
                found.append(name)
                found.extend(_frozen(value, device))
    return None if _ELSEWHERE in found else tuple(found)


def _frozen(value: Any, device: torch.device) -> Iterator[Hashable]:
    """A value as hashable parts, which stay equal as long as it does not change."""
    if isinstance(value, Tensor):
        if type(value) not in (Tensor, nn.Parameter) or value.device != device:
            yield _ELSEWHERE
        else:
            yield value.data_ptr(), tuple(value.shape), value.stride(), value.dtype
    elif isinstance(value, dict):
        for name, part in value.items():
            yield name
            yield from _frozen(part, device)
    elif isinstance(value, list | tuple):
        yield len(value)
        for part in value:
            yield from _frozen(part, device)
    elif value is None or isinstance(
        value, bool | int | float | complex | str | bytes | torch.dtype | torch.device
    ):
        yield value
    else:
        yield id(value)
