"""What a search on a GPU leaves behind for its gradient."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class FusedTape(NamedTuple):
    """Node ids: leaves 0 … n−1, the node of step t and slot k: n + t·K + k."""

    nodes: Tensor  # (B, n + (n−1)·K, d)
    integers: Tensor  # int32: links (B, n−1, K, 4), slots (B, K, n−1), heights (B, n−1, K)
    floats: Tensor  # energies (B, n−1, K, 4), log Z of each lineage (B, K, n−1)

    @staticmethod
    def of(nodes: Tensor, K: int, make: Callable[..., Tensor]) -> "FusedTape":
        """A tape for a node store, its records by `make` (`new_zeros`, `new_empty`)."""
        made = _merges(nodes, K)
        return FusedTape(nodes, make(5 * made + aligned(made), dtype=torch.int32), make(5 * made))

    def parts(self, K: int) -> tuple[Tensor, ...]:
        """Links, slots and heights; energies and log Z; all flat."""
        made = _merges(self.nodes, K)
        links, slots, heights = self.integers.split((4 * made, aligned(made), made))
        energies, log_z = self.floats.split((4 * made, made))
        return links, slots[:made], heights, energies, log_z


def longest(nodes: Tensor, K: int) -> int:
    """n of a node store (B, n + (n−1)·K, d)."""
    return (nodes.shape[1] + K) // (1 + K)


def aligned(words: int) -> int:
    """Rounded up, so that what follows starts at a multiple of 16 bytes."""
    return (words + 3) // 4 * 4


def _merges(nodes: Tensor, K: int) -> int:
    return nodes.shape[0] * K * (longest(nodes, K) - 1)
