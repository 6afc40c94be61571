# mypy: allow-untyped-defs
"""What an entangled scorer, e = w·cell(l, r) + b, adds to a search step: a pair is scored by its parent.

Each survivor makes two new pairs, so the cell's two products have 2·K rows a sequence. All parents are kept,
as candidates: that of the chosen pair becomes a node. A candidate is found by its pair alone, because every
pair was new when the younger of its nodes was.
"""

from collections.abc import Mapping

import torch
import triton
import triton.language as tl
from torch import Tensor

from beamtree.kernels.replay import entangled_pair_kernels as entangled_pairs
from beamtree.kernels.runtime import address_kernels as at
from beamtree.kernels.search.choose_kernels import children_of, moments, node_row, node_vectors
from beamtree.kernels.weights import EntangledScorerWeights, Weights


@triton.jit
def candidate_row(board, sequence, left, right, K: tl.constexpr):
    n = at.number(board, at.LENGTH)
    youngest = tl.maximum(left, right)
    made = n - 1 + 2 * (youngest - n) + (youngest == left).to(tl.int32)
    return sequence.to(tl.int64) * ((n - 1) * (1 + 2 * K)) + tl.where(youngest < n, left, made)


@triton.jit
def score_parents(
    board, t, sequence,
    D: tl.constexpr, K: tl.constexpr, PAIRS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Layer norm and score of the pairs that step t − 1 made in a sequence. PAIRS is 2·K rounded up."""
    B, n = at.number(board, at.BATCH), at.number(board, at.LENGTH)
    pair = tl.arange(0, PAIRS)
    row = sequence * (2 * K) + pair
    active, _, left, right = children_of(board, row, pair < 2 * K, K, True)
    source = at.floats(board, at.SUMS) + row.to(tl.int64) * D
    candidate = candidate_row(board, sequence, left, right, K)
    position = tl.load(at.integers(board, at.FRESH) + (sequence * K + pair // 2) * 4, mask=active, other=0)
    mean, scale = moments(source, active, D, PAIRS, BLOCK_D)
    total = tl.zeros([PAIRS], tl.float32)
    for first in range(0, D, BLOCK_D):
        feature = first + tl.arange(0, BLOCK_D)
        x = node_vectors(board, source, mean, scale, active, feature, D, False)
        target = at.floats(board, at.CANDIDATES) + candidate[:, None] * D + feature[None, :]
        tl.store(target, x, mask=active[:, None] & (feature < D)[None, :])
        w = tl.load(at.floats(board, at.SCORER_W2) + feature, mask=feature < D, other=0.0)
        total += tl.sum(x * w[None, :], 1)
    total += tl.load(at.floats(board, at.SCORER_B2))
    beam = ((t & 1) * B + sequence) * K + pair // 2
    place = at.floats(board, at.PAIR_SCORES) + beam.to(tl.int64) * n + position - 1 + pair % 2
    tl.store(place, total, mask=active)


@triton.jit
def settle(board, t, sequence, D: tl.constexpr, K: tl.constexpr, BEAMS: tl.constexpr, BLOCK_D: tl.constexpr):
    """Make nodes of the candidates that step t chose, and say which pairs they make with their neighbours."""
    B, n = at.number(board, at.BATCH), at.number(board, at.LENGTH)
    pairs = at.length_of(board, sequence, True) - 1 - t
    slot = tl.arange(0, BEAMS)
    children = at.integers(board, at.CHILDREN) + (sequence * K + slot) * 2
    left = tl.load(children, mask=slot < K, other=-1)
    chosen = left >= 0
    right = tl.load(children + 1, mask=chosen, other=0)
    record = (sequence * (n - 1) + t) * K + slot
    parent = tl.load(at.integers(board, at.PARENTS) + record, mask=chosen, other=0)
    position = tl.load(at.integers(board, at.POSITIONS) + record, mask=chosen, other=0)
    ids = at.integers(board, at.IDS) + (((t & 1) * B + sequence) * K + parent).to(tl.int64) * n + position
    before = tl.load(ids - 1, mask=chosen & (position > 0), other=-1)
    behind = tl.load(ids + 2, mask=chosen & (position + 2 <= pairs), other=-1)
    made = n + t * K + slot
    new_pairs = at.integers(board, at.NEW_PAIRS) + (sequence * K + slot) * 4
    tl.store(new_pairs, before, mask=slot < K)
    tl.store(new_pairs + 1, made, mask=slot < K)
    tl.store(new_pairs + 2, tl.where(behind >= 0, made, -1), mask=slot < K)
    tl.store(new_pairs + 3, behind, mask=slot < K)
    source = at.floats(board, at.CANDIDATES) + candidate_row(board, sequence, left, right, K)[:, None] * D
    target = at.floats(board, at.NODES) + (node_row(board, sequence, K) + made)[:, None] * D
    for first in range(0, D, BLOCK_D):
        feature = (first + tl.arange(0, BLOCK_D))[None, :]
        mask = chosen[:, None] & (feature < D)
        tl.store(target + feature, tl.load(source + feature, mask=mask, other=0.0), mask=mask)


def score_leaves(
    leaves: Tensor,
    weights: Weights[EntangledScorerWeights],
    seed: Tensor,
    dropout: float,
    K: int,
    precision: str,
    nodes: Tensor,  # (B, n + (n−1)·K, d)
    scratch: Mapping[str, Tensor],
) -> None:
    """Put the leaves into the node store, the parents of their pairs with the candidates, their scores in the
    lists."""
    B, n, d = leaves.shape
    count, rows = B * (n - 1), (n - 1) * (1 + 2 * K)
    nodes[:, :n] = leaves
    if count == 0:
        return
    pairs = torch.cat((leaves[:, :-1], leaves[:, 1:]), -1).view(count, 2 * d)
    names = _leaf_pairs(B, n, leaves.device) if dropout > 0 else pairs  # without dropout nobody looks at it
    parents = leaves.new_empty(count, d)
    for some in entangled_pairs.chunks(count):
        made = entangled_pairs.make(pairs[some], names[some], weights.cell, seed, dropout, precision)
        torch.addcmul(weights.cell.beta, made.normed, weights.cell.gamma, out=parents[some])
    candidates = scratch["candidates"][: B * rows * d].view(B, rows, d)
    candidates[:, : n - 1] = parents.view(B, n - 1, d)
    scores = torch.addmv(weights.scorer.b2, parents, weights.scorer.w2[0])
    lists = scratch["pair_scores"][: B * K * n].view(B, K, n)
    lists[:, 0, : n - 1] = scores.view(B, n - 1)


def _leaf_pairs(B: int, n: int, device: torch.device) -> Tensor:
    """Sequence, left and right of all pairs of neighbours, (B·(n−1), 3)."""
    names = torch.empty(B, n - 1, 3, dtype=torch.int64, device=device)
    names[:, :, 0] = torch.arange(B, device=device).unsqueeze(1)
    names[:, :, 1] = torch.arange(n - 1, device=device)
    names[:, :, 2] = torch.arange(1, n, device=device)
    return names.view(-1, 3)
