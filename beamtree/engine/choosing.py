"""How a step of the search chooses among its candidates, with ties broken by order; and which pairs it must
not merge because they would cross a pinned span.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from beamtree.pytorch.tracing import is_compiling

if TYPE_CHECKING:
    from beamtree.engine.equal_trees import EqualTrees

# Adding this number rounds float32 between −8 and 8 to multiples of 2⁻¹⁹, float64 of any usual size to 2⁻²⁸.
_ROUNDING = {torch.float32: 24.0, torch.float64: 1.5 * 2.0**24}


def up_to_rounding(values: Tensor) -> Tensor:
    """Shift and round the values so that those that differ only by rounding errors become equal.

    No order is reversed. Repeated tokens cause exact ties, but sums in a different order, on another device
    or in a user's cell round differently, and without this most of these ties would be broken at random.
    """
    return values + _ROUNDING.get(values.dtype, 0.0)


def stable_topk(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest values along the last axis, best first, with ties in order of their index.

    Values that are equal up to rounding count as ties; `torch.topk` guarantees no order for ties. The index
    of a −inf among the k largest has no meaning.
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
    k: int,  # number of pairs kept per beam
    noise: tuple[Tensor, Tensor] | None,
    may_die: bool,
    ids: Tensor,  # (A·K, width), which only `equal_trees` reads
    equal_trees: "EqualTrees | None" = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Choose K of the candidates; return their accumulated scores, source slots and columns, (A, K) each.

    `base` is the accumulated score of a beam minus its log Z. Ties go to the lower (beam, position). A dead
    slot copies the best candidate with score −inf, so that every list remains a list of real nodes.
    """
    A, K, width = pair_scores.shape
    pairs = width - 3  # of the longest list, in columns 1 to `pairs`: n nodes, n − 1 pairs, n + 2 columns
    if noise is None:
        top, column = stable_topk(pair_scores, k)  # (A, K, k)
    else:  # ties between noisy scores need no rule: either choice is equally likely
        k = min(pairs, k)
        column = (pair_scores[..., 1 : pairs + 1] + noise[0]).topk(k)[1] + 1
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
    column = column.clamp(1, pairs)  # a finished sequence or a NaN may have chosen an empty column
    if equal_trees is not None:
        equal_trees.keep(chosen, scores, ids, pair_scores)
    return scores, chosen // k, column.gather(1, chosen)


class NodeSpans:
    """The span of tokens that each node covers, half-open."""

    def __init__(self, sequences: int, n: int, nodes: int, device: torch.device) -> None:
        self.spans = torch.zeros(nodes, 2, dtype=torch.int64, device=device)
        start = torch.arange(n, device=device).repeat(sequences)
        self.spans[1 : 1 + sequences * n] = torch.stack((start, start + 1), 1)

    def enclose(self, made: Tensor, left: Tensor, right: Tensor) -> None:
        """Give new nodes the union of their children's spans."""
        self.spans[made] = torch.stack((self.spans[left, 0], self.spans[right, 1]), 1)


class Fence(NodeSpans):
    """Finds pairs whose merge would cross a pinned span of their sequence and is therefore forbidden."""

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
