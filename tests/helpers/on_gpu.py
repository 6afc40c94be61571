"""What tests on a GPU share."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def peak_of_training(make: Callable[[], nn.Module], x: Tensor) -> float:
    """GiB that three steps of forward, backward and AdamW add to what is allocated."""
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    module = make()
    optimizer = torch.optim.AdamW(module.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        module(x).square().mean().backward()
        optimizer.step()
    return (torch.cuda.max_memory_allocated() - before) / 2**30
