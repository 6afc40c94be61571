"""What a search with an entangled scorer, e = w·cell(l, r) + b, needs before it begins."""

from collections.abc import Mapping

import torch
from torch import Tensor

from beamtree.kernels.replay import entangled_pair_kernels as entangled_pairs
from beamtree.kernels.search.plan import Plan
from beamtree.kernels.weights import EntangledScorerWeights, Weights


def score_leaves(
    leaves: Tensor,
    weights: Weights[EntangledScorerWeights],
    seed: Tensor,
    dropout: float,
    plan: Plan,
    nodes: Tensor,  # (B, n + (n−1)·K, d)
    scratch: Mapping[str, Tensor],
) -> None:
    """Put the leaves into the node store, the parents of their pairs with the candidates, their scores in the
    lists."""
    B, n, d = leaves.shape
    count, rows = B * (n - 1), (n - 1) * (1 + 2 * plan.K)
    nodes[:, :n] = leaves
    if count == 0:
        return
    pairs = torch.cat((leaves[:, :-1], leaves[:, 1:]), -1).view(count, 2 * d)
    names = _leaf_pairs(B, n, leaves.device) if dropout > 0 else pairs  # without dropout nobody looks at it
    parents = leaves.new_empty(count, d)
    for some in entangled_pairs.chunks(count):
        made = entangled_pairs.make(pairs[some], names[some], weights.cell, seed, dropout, plan.precision)
        torch.addcmul(weights.cell.beta, made.normed, weights.cell.gamma, out=parents[some])
    candidates = scratch["candidates"][: B * rows * d].view(B, rows, d)
    candidates[:, : n - 1] = parents.view(B, n - 1, d)
    scores = torch.addmv(weights.scorer.b2, parents, weights.scorer.w2[0])
    lists = scratch["pair_scores"][: B * plan.K * n].view(B, plan.K, n)
    lists[:, 0, : n - 1] = scores.view(B, n - 1)


def _leaf_pairs(B: int, n: int, device: torch.device) -> Tensor:
    """Sequence, left and right of all pairs of neighbours, (B·(n−1), 3)."""
    names = torch.empty(B, n - 1, 3, dtype=torch.int64, device=device)
    names[:, :, 0] = torch.arange(B, device=device).unsqueeze(1)
    names[:, :, 1] = torch.arange(n - 1, device=device)
    names[:, :, 2] = torch.arange(1, n, device=device)
    return names.view(-1, 3)
