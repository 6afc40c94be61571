"""Modules whose linear maps and norms are not called: the engine takes their weights and works by itself."""

from typing import Any, cast

from torch import Tensor, nn


def read_part(part: nn.Module) -> tuple[Tensor, Tensor]:
    """The weight and bias of a part that is not called.

    `torch.nn.utils.weight_norm`, `spectral_norm` and `prune` make them in hooks before a call: so here.
    """
    if not isinstance(part, (nn.Linear, nn.LayerNorm, DirectlyRead)):
        raise ValueError(
            f"{type(part).__name__} cannot replace an nn.Linear or nn.LayerNorm here: weight and bias "
            "are read directly and it is never called; use torch.nn.utils.parametrize"
        )
    for hook in part._forward_pre_hooks.values():
        if type(hook).__module__.startswith("torch.nn.utils."):
            hook(part, ())
    weight, bias = part.weight, part.bias
    if weight is None or bias is None:
        raise ValueError(
            f"{type(part).__name__} must have a weight and a bias where they are read, got {part}"
        )
    return cast(Tensor, weight), cast(Tensor, bias)


class DirectlyRead(nn.Module):
    """A part may be exchanged for another of its kind only: what a wrapper adds would have no effect."""

    def __setattr__(self, name: str, value: Any) -> None:
        part = self.__dict__.get("_modules", {}).get(name)
        for kind in (nn.Linear, nn.LayerNorm):
            if isinstance(part, kind) and isinstance(value, nn.Module) and not isinstance(value, kind):
                raise ValueError(
                    f"{name} of {type(self).__name__} must stay an nn.{kind.__name__}, got "
                    f"{type(value).__name__}: its weights are read, it is never called; use "
                    "torch.nn.utils.parametrize, or a cell or scorer of your own"
                )
        super().__setattr__(name, value)
