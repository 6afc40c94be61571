"""Which tokens each node of a search covers, half-open."""

import torch
from torch import Tensor


class NodeSpans:
    def __init__(self, sequences: int, n: int, nodes: int, device: torch.device) -> None:
        self.spans = torch.zeros(nodes, 2, dtype=torch.int64, device=device)
        start = torch.arange(n, device=device).repeat(sequences)
        self.spans[1 : 1 + sequences * n] = torch.stack((start, start + 1), 1)

    def enclose(self, made: Tensor, left: Tensor, right: Tensor) -> None:
        """A new node spans what its children span."""
        self.spans[made] = torch.stack((self.spans[left, 0], self.spans[right, 1]), 1)
