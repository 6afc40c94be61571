# mypy: allow-untyped-defs
"""Pairs whose score is read off their parent, e = w·cell(l, r) + b: what such a scorer adds to a search step,
the cell applied to many pairs at once, and its gradient if only the scores have one.

Each merge makes two new pairs, and the cell composes both to score them, so its two products have 2·K rows
per sequence and step. All these parents are kept as candidates; that of a chosen pair becomes a node. The row
of a candidate follows from its pair alone, because a pair is as old as the younger of its nodes.
"""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from beamtree.kernels import cell_kernels as cell
from beamtree.kernels.replay.cell_replay import Recalled, recall, whole_rows
from beamtree.kernels.replay.survivor_kernels import gradient_row, locate, slope_of_score
from beamtree.kernels.runtime import address_kernels as at
from beamtree.kernels.runtime.math_kernels import row_tile
from beamtree.kernels.runtime.products import product
from beamtree.kernels.runtime.random_kernels import name_of
from beamtree.kernels.search.choose_kernels import children_of, moments, node_row, node_vectors
from beamtree.parts.weights import CellWeights, EntangledScorerWeights, Weights
from beamtree.pytorch.launch import blocks, launch

ROWS_AT_ONCE = 16384  # bounds the memory for activations


@triton.jit
def candidate_row(table, sequence, left, right, K: tl.constexpr):
    """The row of a pair's candidate. In each sequence the n − 1 pairs of leaves come first, by position, then
    two for each node made: the one with its left neighbour, and the one with its right neighbour."""
    n = at.number(table, at.LENGTH)
    youngest = tl.maximum(left, right)
    made = n - 1 + 2 * (youngest - n) + (youngest == left).to(tl.int32)
    return sequence.to(tl.int64) * ((n - 1) * (1 + 2 * K)) + tl.where(youngest < n, left, made)


@triton.jit
def score_parents(
    table, t, sequence,
    D: tl.constexpr, K: tl.constexpr, PAIRS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Layer norm and scores of the pairs that step t − 1 made in a sequence: the parents go to the
    candidates, the scores into the lists. PAIRS is 2·K rounded up to a power of two."""
    B, n = at.number(table, at.BATCH), at.number(table, at.LENGTH)
    pair = tl.arange(0, PAIRS)
    row = sequence * (2 * K) + pair
    active, _, left, right = children_of(table, row, pair < 2 * K, K, True)
    source = at.floats(table, at.SUMS) + row.to(tl.int64) * D
    candidate = candidate_row(table, sequence, left, right, K)
    position = tl.load(at.integers(table, at.FRESH) + (sequence * K + pair // 2) * 4, mask=active, other=0)
    mean, scale = moments(source, active, D, PAIRS, BLOCK_D)
    total = tl.zeros([PAIRS], tl.float32)
    for first in range(0, D, BLOCK_D):
        feature = first + tl.arange(0, BLOCK_D)
        x = node_vectors(table, source, mean, scale, active, feature, D, False)
        target = at.floats(table, at.CANDIDATES) + candidate[:, None] * D + feature[None, :]
        tl.store(target, x, mask=active[:, None] & (feature < D)[None, :])
        w = tl.load(at.floats(table, at.SCORER_W2) + feature, mask=feature < D, other=0.0)
        total += tl.sum(x * w[None, :], 1)
    total += tl.load(at.floats(table, at.SCORER_B2))
    beam = ((t & 1) * B + sequence) * K + pair // 2
    place = at.floats(table, at.PAIR_SCORES) + beam.to(tl.int64) * n + position - 1 + pair % 2
    tl.store(place, total, mask=active)


@triton.jit
def settle(table, t, sequence, D: tl.constexpr, K: tl.constexpr, BEAMS: tl.constexpr, BLOCK_D: tl.constexpr):
    """Copy the candidates that step t has chosen to the nodes, and list the pairs that they make with their
    neighbours."""
    B, n = at.number(table, at.BATCH), at.number(table, at.LENGTH)
    pairs = at.length_of(table, sequence, True) - 1 - t
    slot = tl.arange(0, BEAMS)
    children = at.integers(table, at.CHILDREN) + (sequence * K + slot) * 2
    left = tl.load(children, mask=slot < K, other=-1)
    chosen = left >= 0
    right = tl.load(children + 1, mask=chosen, other=0)
    record = (sequence * (n - 1) + t) * K + slot
    parent = tl.load(at.integers(table, at.PARENTS) + record, mask=chosen, other=0)
    position = tl.load(at.integers(table, at.POSITIONS) + record, mask=chosen, other=0)
    ids = at.integers(table, at.IDS) + (((t & 1) * B + sequence) * K + parent).to(tl.int64) * n + position
    before = tl.load(ids - 1, mask=chosen & (position > 0), other=-1)
    behind = tl.load(ids + 2, mask=chosen & (position + 2 <= pairs), other=-1)
    made = n + t * K + slot
    new_pairs = at.integers(table, at.NEW_PAIRS) + (sequence * K + slot) * 4
    tl.store(new_pairs, before, mask=slot < K)
    tl.store(new_pairs + 1, made, mask=slot < K)
    tl.store(new_pairs + 2, tl.where(behind >= 0, made, -1), mask=slot < K)
    tl.store(new_pairs + 3, behind, mask=slot < K)
    source = at.floats(table, at.CANDIDATES) + candidate_row(table, sequence, left, right, K)[:, None] * D
    target = at.floats(table, at.NODES) + (node_row(table, sequence, K) + made)[:, None] * D
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
    """Put the leaves into the node store, the parents of their pairs into the candidates, and the scores into
    the lists."""
    B, n, d = leaves.shape
    count, rows = B * (n - 1), (n - 1) * (1 + 2 * K)
    nodes[:, :n] = leaves
    if count == 0:
        return
    pairs = torch.cat((leaves[:, :-1], leaves[:, 1:]), -1).view(count, 2 * d)
    names = _leaf_pairs(B, n, leaves.device) if dropout > 0 else pairs  # read only with dropout
    parents = leaves.new_empty(count, d)
    for some in chunks(count):
        made = make(pairs[some], names[some], weights.cell, seed, dropout, precision)
        torch.addcmul(weights.cell.beta, made.normed, weights.cell.gamma, out=parents[some])
    candidates = scratch["candidates"][: B * rows * d].view(B, rows, d)
    candidates[:, : n - 1] = parents.view(B, n - 1, d)
    scores = torch.addmv(weights.scorer.b2, parents, weights.scorer.w2[0])
    lists = scratch["pair_scores"][: B * K * n].view(B, K, n)
    lists[:, 0, : n - 1] = scores.view(B, n - 1)


def _leaf_pairs(B: int, n: int, device: torch.device) -> Tensor:
    """The names of all pairs of neighbouring leaves: sequence, left and right, (B·(n−1), 3)."""
    names = torch.empty(B, n - 1, 3, dtype=torch.int64, device=device)
    names[:, :, 0] = torch.arange(B, device=device).unsqueeze(1)
    names[:, :, 1] = torch.arange(n - 1, device=device)
    names[:, :, 2] = torch.arange(1, n, device=device)
    return names.view(-1, 3)


def chunks(rows: int) -> list[slice]:
    return [slice(start, start + ROWS_AT_ONCE) for start in range(0, rows, ROWS_AT_ONCE)]


def activate(
    hidden: Tensor, names: Tensor, seed: Tensor, dropout: float, out: Tensor | None = None
) -> Tensor:
    """u = keep·GELU(h) of pairs; h becomes ∂u/∂h. A pair's name (m, 3) is the counter of its dropout mask."""
    m, units = hidden.shape
    activated = torch.empty_like(hidden) if out is None else out
    if m:
        launch(activate_pairs_kernel, (blocks(m, 16), blocks(units, 128)),
            hidden, activated, names, seed, m, round(dropout * 65536),
            UNITS=units, DROPS=dropout > 0, BLOCK_M=16, BLOCK_N=128, num_warps=4,
        )  # fmt: skip
    return activated


def make(
    pairs: Tensor, names: Tensor, weights: CellWeights, seed: Tensor, dropout: float, precision: str
) -> Recalled:
    """The parents of pairs (m, 2·d), m > 0."""
    return recall(pairs, weights, partial(activate, names=names, seed=seed, dropout=dropout), precision)


class Pulled(NamedTuple):
    """The gradients that follow from those of scores."""

    children: Tensor  # (m, 2, d)
    weights: list[Tensor]  # of the cell's six, then of the scorer's two


def pull(made: Recalled, grads: Tensor, weights: Weights[EntangledScorerWeights], precision: str) -> Pulled:
    """Gradients of scores (m,) → gradients of the pairs and of the weights. Overwrites `made`."""
    pairs, hidden, activated, gates, _, normed, _ = made
    children = pull_to_children(made, grads, weights, precision)
    along, total = grads @ normed, grads.sum(0, keepdim=True)
    w = weights.scorer.w2[0]
    to_weights = [
        product(hidden.t(), pairs, precision),
        hidden.sum(0),
        product(gates.t(), activated, precision),
        gates.sum(0),
        w * along,
        w * total,
        torch.addcmul(weights.cell.beta * total, weights.cell.gamma, along).unsqueeze(0),
        total,
    ]
    return Pulled(children, to_weights)


def pull_to_children(
    made: Recalled, grads: Tensor, weights: Weights[EntangledScorerWeights], precision: str
) -> Tensor:
    """Only the gradients of the pairs, (m, 2, d)."""
    _, hidden, _, gates, opened, normed, scales = made
    m, d = normed.shape
    rows = whole_rows(d)
    launch(pull_scores_kernel, (blocks(m, rows["BLOCK_M"]),),
        grads, normed, scales, weights.cell.gamma, weights.scorer.w2, gates, opened, m,
        D=d, **rows, num_warps=4,
    )  # fmt: skip
    hidden *= product(gates, weights.cell.w2, precision)
    opened += product(hidden, weights.cell.w1, precision)
    return opened.view(m, 2, d)


@triton.jit(do_not_specialize=["B", "n"])
def ended_pairs_kernel(
    order, slots, rows, links, energies, log_z, weights, chosen, chosen_names, beside, beside_names,
    ids, children, B, n,
    K: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """∂L/∂e and the name (sequence, left, right) of each of the three pairs that a survivor's merge ended:
    the chosen one (N in all) and those beside it (2·N). For those beside it also the rows of their nodes in
    the node store, `ids`, and among the gradients, `children` (2·N, 2). A missing pair gets the gradient zero
    and the sequence's first leaf for both nodes."""
    row = tl.program_id(0).to(tl.int64)
    T = n - 1
    entry, sequence, beam, t, record = locate(order, slots, row, True, T, K)
    weight = tl.load(weights + entry)
    lineage = log_z + (sequence * K + beam).to(tl.int64) * T
    first_node = sequence.to(tl.int64) * (n + T * K)
    for which in tl.static_range(3):
        left = tl.load(links + record.to(tl.int64) * 4 + which)
        right = tl.load(links + record.to(tl.int64) * 4 + which + 1)
        energy = tl.load(energies + record.to(tl.int64) * 4 + which)
        exists = (left >= 0) & (right >= 0)
        grad = 0.0
        if exists:
            grad = weight * slope_of_score(lineage, energy, left, right, t, n, which == 1, K, BLOCK)
        left = tl.where(exists, left, 0)
        right = tl.where(exists, right, 0)
        pair = row if which == 1 else row * 2 + which // 2
        names = (chosen_names if which == 1 else beside_names) + pair * 3
        tl.store((chosen if which == 1 else beside) + pair, grad)
        tl.store(names, sequence.to(tl.int64))
        tl.store(names + 1, name_of(left, n))
        tl.store(names + 2, name_of(right, n))
        if which != 1:
            for side in tl.static_range(2):
                node = left if side == 0 else right
                tl.store(ids + pair * 2 + side, first_node + node)
                child = gradient_row(rows, sequence, node, True, B, n, K)
                tl.store(children + pair * 2 + side, child.to(tl.int64))


@triton.jit(do_not_specialize=["rows", "dropped"])
def activate_pairs_kernel(
    hidden, activated, names, seed, rows, dropped,
    UNITS: tl.constexpr, DROPS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """u = keep·GELU(h) goes into `activated`, and h becomes ∂u/∂h. A mask belongs to a pair."""
    tile, block = tl.program_id(0), tl.program_id(1)
    row, unit, inside, place = cell.unit_tile(tile, block, rows, UNITS, BLOCK_M, BLOCK_N)
    keep = 1.0
    if DROPS:
        name = names + row * 3
        sequence = tl.load(name, mask=row < rows, other=0)
        left = tl.load(name + 1, mask=row < rows, other=0)
        right = tl.load(name + 2, mask=row < rows, other=0)
        keep = cell.drawn_mask(tl.load(seed), left, sequence, right, unit, dropped)
    cell.activate_tile(hidden, keep, activated, hidden, place, inside, True, DROPS)


@triton.jit(do_not_specialize=["rows"])
def pull_scores_kernel(
    grads, normed, scales, gamma, scorer, gates, opened, rows,
    D: tl.constexpr, BLOCK_M: tl.constexpr, ALL_D: tl.constexpr,
):  # fmt: skip
    """From the gradients of scores: ∂p/∂gates become ∂L/∂gates, and σ(a), σ(b) the children's share by
    p = σ(a)·l + σ(b)·r + …."""
    row, inside, feature, real, mask, place = row_tile(tl.program_id(0), rows, D, ALL_D, BLOCK_M)
    y = tl.load(normed + place, mask=mask, other=0.0)
    slope = tl.load(gamma + feature, mask=real, other=0.0)
    slope *= tl.load(scorer + feature, mask=real, other=0.0)
    # A parent's gradient is w·∂L/∂e: the same direction for all rows, so ∂L/∂e joins the norm's scale.
    factor = tl.load(grads + row, mask=inside, other=0.0) * tl.load(scales + row, mask=inside, other=0.0)
    through = cell.through_norm(slope[None, :], y, factor, D)
    for gate in tl.static_range(4):
        place = gates + row[:, None] * (4 * D) + gate * D + feature[None, :]
        tl.store(place, tl.load(place, mask=mask, other=0.0) * through, mask=mask)
    for side in tl.static_range(2):
        place = opened + row[:, None] * (2 * D) + side * D + feature[None, :]
        tl.store(place, tl.load(place, mask=mask, other=0.0) * through, mask=mask)
