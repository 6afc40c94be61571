"""Which tokens each node of a search covers, and spans that every tree must contain."""

import torch
from torch import Tensor


class NodeSpans:
    """The tokens that each node covers, half-open."""

    def __init__(self, sequences: int, n: int, nodes: int, device: torch.device) -> None:
        self.spans = torch.zeros(nodes, 2, dtype=torch.int64, device=device)
        start = torch.arange(n, device=device).repeat(sequences)
        self.spans[1 : 1 + sequences * n] = torch.stack((start, start + 1), 1)

    def enclose(self, made: Tensor, left: Tensor, right: Tensor) -> None:
        """A new node spans what its children span."""
        self.spans[made] = torch.stack((self.spans[left, 0], self.spans[right, 1]), 1)


class Fence(NodeSpans):
    """Knows which pairs would cross a pinned span of their sequence: such a merge is not permitted."""

    def __init__(self, pins: Tensor, order: Tensor, n: int, nodes: int) -> None:
        super().__init__(pins.shape[0], n, nodes, pins.device)
        self.pins = pins[order]  # (B, P, 2) half-open, −1 for none; rows in the search's order

    def crosses(self, pairs: Tensor) -> Tensor:  # (A, m, 2) ids, rows of the first A sequences -> (A, m)
        start = self.spans[pairs[..., 0], 0].unsqueeze(-1)  # (A, m, 1)
        end = self.spans[pairs[..., 1], 1].unsqueeze(-1)
        pin_start, pin_end = self.pins[: pairs.shape[0]].unsqueeze(1).unbind(-1)  # (A, 1, P)
        over_start = (start < pin_start) & (pin_start < end) & (end < pin_end)
        over_end = (pin_start < start) & (start < pin_end) & (pin_end < end)
        return (over_start | over_end).any(-1)
