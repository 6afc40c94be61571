"""What the engine's small operations mean, in plain PyTorch."""

import torch
from torch import Tensor


def stable_topk(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest along the last axis, best first; equal ones in the order of their index.

    `torch.topk` promises nothing about ties, and its choice depends on the width, so that repeated tokens
    would make the result depend on padding. Where −inf is among the k largest its index has no meaning.
    """
    if k < values.shape[-1] and values.device.type == "cpu" and not torch.compiler.is_compiling():
        top, index = values.topk(k + 1)
        tied = (top[..., 1:] == top[..., :-1]) & (top[..., 1:] > -torch.inf)
        if not tied.any():
            return top[..., :k], index[..., :k]
    top, index = values.sort(dim=-1, descending=True, stable=True)
    return top[..., :k], index[..., :k]
