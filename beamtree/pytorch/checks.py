"""Checks of an encoder's options and inputs.

Shapes, types and devices are always checked; values only where reading them costs no synchronisation.
"""

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from beamtree.pytorch.precision import autocasts
from beamtree.pytorch.tracing import is_compiling

_validate_on_gpu = False


def validate(enabled: bool = True) -> None:
    """Also check values (NaN, masks with holes, empty sequences) on a GPU, which then has to synchronise.

    On a CPU they are always checked; compiled and exported code checks no values anywhere.
    """
    global _validate_on_gpu
    _validate_on_gpu = enabled


def looks_at_values(x: Tensor) -> bool:
    """Return True if values may be read now: in eager mode on the CPU, or on a GPU if the user asked."""
    if is_compiling() or x.is_meta or type(x) not in (Tensor, nn.Parameter):
        return False
    if x.is_cuda:
        return _validate_on_gpu and not torch.cuda.is_current_stream_capturing()
    return True


def lengths_from(x: Tensor, key_padding_mask: Tensor | None, *, input_size: int, weight: Tensor) -> Tensor:
    """Check a (B, n, input_size) input and its padding mask against a parameter; return the lengths (B,)."""
    check_form(x, key_padding_mask, input_size=input_size, weight=weight)
    if key_padding_mask is None:
        lengths = torch.full((x.shape[0],), x.shape[1], dtype=torch.int64, device=x.device)
    else:
        lengths = x.shape[1] - key_padding_mask.sum(1)
    if looks_at_values(x):
        _check_values(x, key_padding_mask, lengths)
    return lengths


def zero_at_padding(x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
    """x (B, n, d) with zeros where the mask (B, n) marks padding."""
    return x if key_padding_mask is None else x.masked_fill(key_padding_mask.unsqueeze(-1), 0.0)


def padding_of(x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
    """The padding mask (B, n) of x (B, n, d); all False if none is given."""
    if key_padding_mask is not None:
        return key_padding_mask
    return torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)


def check_form(x: Tensor, key_padding_mask: Tensor | None, *, input_size: int, weight: Tensor) -> None:
    """Check shapes, types and devices of an input and its padding mask."""
    if not isinstance(x, Tensor):
        raise ValueError(f"x must be a tensor of shape (B, n, {input_size}), got {type(x).__name__}")
    if x.is_nested or x.layout != torch.strided:
        raise ValueError(f"x must be a dense tensor with a key_padding_mask, got {_layout(x)}")
    if not x.is_floating_point():
        raise ValueError(f"x must be floating point ({weight.dtype}), got {x.dtype}; embed token ids first")
    if x.dim() != 3 or x.shape[-1] != input_size:
        raise ValueError(f"x must have shape (B, n, {input_size}), got {tuple(x.shape)}")
    if x.shape[1] < 1:
        raise ValueError(f"x holds no token: every sequence needs at least one, got shape {tuple(x.shape)}")
    if x.dtype != weight.dtype and not (autocasts(x) and autocasts(weight)):
        remedy = "" if torch.float64 in (x.dtype, weight.dtype) else ", or use autocast"
        raise ValueError(
            f"x must have the parameters' dtype {weight.dtype}, got {x.dtype}: convert one{remedy}"
        )
    if x.device != weight.device:
        raise ValueError(f"x is on {x.device}, the parameters are on {weight.device}: move one of them")
    if key_padding_mask is not None:
        check_mask(key_padding_mask, x)


def at_least_one(**sizes: int) -> None:
    """Refuse a size below one; the error names it."""
    for name, size in sizes.items():
        if size is None or size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")


def at_least_one_if_given(**sizes: int | None) -> None:
    """The same for sizes that may be None."""
    at_least_one(**{name: size for name, size in sizes.items() if size is not None})


def whole_number(name: str, size: object) -> None:
    """Refuse what is not an int of at least one; the error names it."""
    if not isinstance(size, int) or size < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {size!r}")


class ChecksSearch(nn.Module):
    """Checks the options of the search whenever they are set, so also after the constructor."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "beam_size":
            whole_number(name, value)
        if name in ("merge_equal_trees", "stochastic") and not isinstance(value, bool):
            raise ValueError(f"{name} must be True or False, got {value!r}")
        super().__setattr__(name, value)


def check_rates(**rates: float) -> None:
    """Refuse a dropout rate outside [0, 1); the error names it."""
    for name, rate in rates.items():
        if not 0.0 <= rate < 1.0:
            raise ValueError(f"{name} must lie in [0, 1), got {rate}")


def warn_if_greedy(encoder: Any, *, stacklevel: int) -> None:
    """Warn once if an encoder trains with one beam; `stacklevel` counts frames from here to its call."""
    if encoder.beam_size > 1 or encoder._warned or not encoder.training or is_compiling():
        return
    encoder._warned = True
    warnings.warn(
        "beam_size=1 is greedy: with one beam its weight is always 1, so the scorer gets no gradient",
        stacklevel=stacklevel,
    )


def _layout(x: Tensor) -> str:
    return "a nested tensor" if x.is_nested else f"layout {x.layout}"


def check_mask(
    mask: Tensor, x: Tensor, name: str = "key_padding_mask", marks: str = "padding", what: str = "x"
) -> None:
    """Check that a mask is bool, (B, n) and on the device of x (B, n, d); `marks` is where it is True."""
    shape = x.shape[:-1]
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        hint = f"; for a mask with 1 at {marks}, pass mask == 1"
        if marks == "padding":
            hint = "; for an attention_mask with 1 at tokens, pass attention_mask == 0"
        wanted = f"{name} must be a bool tensor, True at {marks}"
        raise ValueError(f"{wanted}, got {kind}{hint if isinstance(mask, Tensor) else ''}")
    if mask.dim() != len(shape) or any(
        size != wanted for size, wanted in zip(mask.shape, shape, strict=True)
    ):
        raise ValueError(f"{name} must have shape (B, n) = {tuple(shape)}, got {tuple(mask.shape)}")
    if mask.device != x.device:
        raise ValueError(f"{name} is on {mask.device}, {what} is on {x.device}: move one of them")


def _check_values(x: Tensor, mask: Tensor | None, lengths: Tensor) -> None:
    finite = x.isfinite().all(-1)  # (B, n)
    if mask is not None:
        holes = (mask[:, :-1] & ~mask[:, 1:]).any(1)
        if holes.any():
            b = int(holes.nonzero()[0])
            raise ValueError(
                f"key_padding_mask of sequence {b} has a real token after padding: pad on the right only"
                + (", True means padding" if mask[b, 0] else "")
            )
        if (lengths == 0).any():
            b = int((lengths == 0).nonzero()[0])
            raise ValueError(
                f"key_padding_mask leaves sequence {b} empty: each needs at least one token; "
                "True means padding"
            )
        finite = finite | mask
    if not finite.all():
        b, i = finite.logical_not().nonzero()[0].tolist()
        raise ValueError(f"x is not finite at sequence {b}, token {i}")


def require_tokens(y: object, x: Tensor, layer: nn.Module) -> Tensor:
    """Check that a layer has mapped tokens x to tokens y, (B, n, d) -> (B, n, d); return y."""
    if not isinstance(y, Tensor) or y.shape != x.shape:
        got = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
        raise ValueError(
            f"{type(layer).__name__} must map tokens to tokens, {tuple(x.shape)} here, got {got}"
        )
    return y
