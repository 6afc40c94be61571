"""What tests of given trees share: trees of several shapes, and how far two ways of composing them differ."""

import random

import torch
from torch import Tensor, nn

MIXED = [7, 1, 2, 3, 6, 7]


def draw_merges(n: int, rng: random.Random) -> list[int]:
    """The positions that make one tree of n tokens."""
    return [rng.randrange(n - 1 - step) for step in range(n - 1)]


def random_merges(lengths: Tensor, n: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    merges = torch.full((len(lengths), n - 1), -1)
    for b, length in enumerate(lengths.tolist()):
        for t in range(length - 1):
            merges[b, t] = int(torch.randint(length - 1 - t, (), generator=generator))
    return merges


def chain_merges(lengths: Tensor, n: int) -> Tensor:
    return torch.where(torch.arange(n - 1) < lengths[:, None] - 1, 0, -1)


def balanced_merges(lengths: Tensor, n: int) -> Tensor:
    """A level of w nodes merges at 0, 1, …, w//2 − 1."""
    merges = torch.full((len(lengths), n - 1), -1)
    for b, width in enumerate(lengths.tolist()):
        positions: list[int] = []
        while width > 1:
            positions += range(width // 2)
            width = (width + 1) // 2
        merges[b, : len(positions)] = torch.tensor(positions, dtype=torch.int64)
    return merges


TREES = {"random": random_merges, "chain": chain_merges, "balanced": balanced_merges}


def sharpen(cell: nn.Module) -> None:
    """A layer norm that is not the identity."""
    with torch.no_grad():
        cell.norm.weight.uniform_(0.5, 1.5)
        cell.norm.bias.uniform_(-0.5, 0.5)


def furthest(found: list[Tensor], expected: list[Tensor]) -> float:
    """The greatest difference, relative to the greatest number of each tensor."""
    return max(
        float((a.detach().double() - b.detach()).abs().max() / b.detach().abs().max().clamp(min=1.0))
        for a, b in zip(found, expected, strict=True)
    )
