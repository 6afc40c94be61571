"""Masks drawn by a kernel are those of engine/randomness.py to the bit; without a GPU in the interpreter."""

import pytest
import torch
from kernel_cases import DEVICE

from beamtree.engine.randomness import draw_keep
from beamtree.kernels.runtime import random_kernels


@pytest.mark.parametrize(
    ("step", "sequence", "slot", "width"),
    [
        (torch.tensor(3), torch.arange(4), torch.arange(5).unsqueeze(1), 7),
        (torch.arange(2).view(2, 1, 1), torch.arange(3).view(3, 1), torch.arange(4), 130),
        (2**32 + torch.arange(9), torch.full((9,), 2), torch.arange(9).flip(0), 16),
        (torch.arange(0), torch.arange(0), torch.arange(0), 8),
    ],
)
def test_the_kernels_masks_are_those_of_every_other_device(
    step: torch.Tensor, sequence: torch.Tensor, slot: torch.Tensor, width: int
) -> None:
    seed = torch.tensor(2**61 + 7)
    expected = draw_keep(seed, step, sequence, slot, width, 0.3, torch.float32)
    found = random_kernels.draw_keep(*(x.to(DEVICE) for x in (seed, step, sequence, slot)), width, 0.3)
    assert torch.equal(found.cpu(), expected)
