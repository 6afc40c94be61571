"""Running sums that a GPU also gives under `torch.use_deterministic_algorithms`, where it refuses cumsum."""

import torch
import torch.nn.functional as F
from torch import Tensor


def running_sum(x: Tensor) -> Tensor:
    """cumsum along the last axis."""
    if x.is_cuda and torch.are_deterministic_algorithms_enabled():
        return sum_by_blocks(x)
    return x.cumsum(-1)


def sum_by_blocks(x: Tensor) -> Tensor:
    """cumsum as products with triangles of ones: inside blocks of about √m, then over the blocks before."""
    m = x.shape[-1]
    size = int(m**0.5) + 1
    blocks = F.pad(x, (0, -m % size)).unflatten(-1, (-1, size))
    inside = blocks @ x.new_ones(size, size).triu()
    total = inside[..., -1]
    before = total @ x.new_ones(total.shape[-1], total.shape[-1]).triu(1)
    return (inside + before.unsqueeze(-1)).flatten(-2)[..., :m]
