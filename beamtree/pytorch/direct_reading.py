"""Modules whose linear maps and norms are never called: the engine reads their weights directly."""

from typing import Any, cast

from torch import Tensor, nn

EPS = 1e-5  # of layer norms that are read: kernels and C have no other


def read_part(part: nn.Module) -> tuple[Tensor, Tensor]:
    """The weight and bias of a part that is read instead of called.

    `torch.nn.utils.weight_norm`, `spectral_norm` and `prune` compute them in hooks before each call; those
    hooks are run here.
    """
    if not _is_plain(part, nn.Linear, nn.LayerNorm) and not isinstance(part, DirectlyRead):
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
            f"{type(part).__name__} must have a weight and a bias here, because they are read, got {part}"
        )
    return cast(Tensor, weight), cast(Tensor, bias)


def read_norm(norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
    """The weight and bias of a norm that is not called: its eps must be the one that is computed with."""
    if norm.eps != EPS:
        raise ValueError(
            f"eps of this {type(norm).__name__} must be {EPS}, got {norm.eps}: its weights are read, it is "
            "never called, and another eps would have no effect"
        )
    return read_part(norm)


def _is_plain(part: nn.Module, *kinds: type[nn.Module]) -> bool:
    """Whether it computes what one of these kinds does: some adapters inherit from what they change."""
    return any(isinstance(part, kind) and type(part).forward is kind.forward for kind in kinds)


class DirectlyRead(nn.Module):
    """Lets its linear maps and norms be replaced only by others of the same kind: whatever a wrapper adds
    would have no effect."""

    def __setattr__(self, name: str, value: Any) -> None:
        part = self.__dict__.get("_modules", {}).get(name)
        for kind in (nn.Linear, nn.LayerNorm):
            if isinstance(part, kind) and isinstance(value, nn.Module) and not _is_plain(value, kind):
                raise ValueError(
                    f"{name} of {type(self).__name__} must stay an nn.{kind.__name__}, got "
                    f"{type(value).__name__}: its weights are read, it is never called; use "
                    "torch.nn.utils.parametrize, or a cell or scorer of your own"
                )
        super().__setattr__(name, value)
