"""What the engine's small operations mean, in plain PyTorch."""

import torch
from torch import Tensor

from beamtree.pytorch.tracing import is_compiling

# Adding such a number rounds to its last place, 2⁻¹⁹ and 2⁻²⁸, and keeps the order.
_ROUNDING = {torch.float32: 24.0, torch.float64: 1.5 * 2.0**24}


def up_to_rounding(values: Tensor) -> Tensor:
    """The values, moved and rounded so that those that differ by rounding only are equal; order is kept.

    Repeated tokens make exact ties, but sums in another order, on another device or in a user's cell are
    rounded otherwise, so that without this most such ties would be broken by chance.
    """
    return values + _ROUNDING.get(values.dtype, 0.0)


def stable_topk(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest along the last axis, best first; equal ones in the order of their index.

    Values count as equal if they are so up to rounding; `torch.topk` promises nothing about ties. Where −inf
    is among the k largest its index has no meaning.
    """
    rounded = up_to_rounding(values)
    if k < values.shape[-1] and values.device.type == "cpu" and not is_compiling():
        top, index = rounded.topk(k + 1)
        if not (top[..., 1:] == top[..., :-1]).any():
            index = index[..., :k]
            return values.gather(-1, index), index
    index = rounded.argsort(dim=-1, descending=True, stable=True)[..., :k]
    return values.gather(-1, index), index
