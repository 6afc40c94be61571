"""What tests on a GPU share."""

import time

import pytest
import torch
from torch import Tensor, nn

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def time_training_step(encoder: nn.Module, x: Tensor) -> float:
    """Milliseconds of forward, backward and AdamW: the median of five after three to warm up."""
    optimizer = torch.optim.AdamW(encoder.parameters())
    times = []
    for _ in range(8):
        torch.cuda.synchronize()
        start = time.perf_counter()
        optimizer.zero_grad()
        encoder(x).square().sum().backward()
        optimizer.step()
        torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - start))
    return sorted(times[3:])[2]
