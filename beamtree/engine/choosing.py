"""How a step of the search chooses among its candidates, equal ones by their order; and which pairs are none,
because they would cross a span that every tree must contain.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from beamtree.pytorch.tracing import is_compiling

if TYPE_CHECKING:
    from beamtree.engine.equal_trees import EqualTrees

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


def choose(
    pair_scores: Tensor,  # (A, K, width)
    base: Tensor,  # (A, K)
    k: int,  # how many pairs of a beam may be kept
    noise: tuple[Tensor, Tensor] | None,
    may_die: bool,
    ids: Tensor,
    equal_trees: "EqualTrees | None" = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Keep K of the candidates: accumulated scores, source slots and columns of the pairs, (A, K) each.

    `base` is a beam's accumulated score less its log Z. Ties go to the lower (beam, position). A dead slot
    takes the best candidate's place with score −inf, so that every list stays a list of real nodes.
    """
    A, K, width = pair_scores.shape
    if noise is None:
        top, column = stable_topk(pair_scores, k)  # (A, K, k)
    else:  # equal perturbed scores mean nothing: any of them is as likely as the other
        k = min(width - 3, k)
        column = (pair_scores[..., 1:-2] + noise[0]).topk(k)[1] + 1
        top = pair_scores.gather(-1, column)
    candidates = (top + base.unsqueeze(-1)).view(A, K * k)
    column = column.reshape(A, K * k)
    if equal_trees is not None:
        candidates = equal_trees.unite(candidates, column, ids)
    if noise is None:
        scores, chosen = stable_topk(candidates, K)  # (A, K)
    else:
        chosen = (candidates + noise[1][..., :k].reshape(A, K * k)).topk(K)[1]
        scores = candidates.gather(1, chosen)
    if may_die:
        chosen = torch.where(scores > -torch.inf, chosen, chosen[:, :1])
    column = column.clamp(1, width - 3)  # it may be anywhere where a sequence is finished or a score is NaN
    if equal_trees is not None:
        equal_trees.keep(chosen, scores, ids, pair_scores)
    return scores, chosen // k, column.gather(1, chosen)


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
