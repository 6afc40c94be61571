"""Grows one tree per sequence by straight-through choices, and computes the gradient in a backward sweep.

The gradient touches every live node at every step, but only through scalar products. So one accumulator per
live node and each step's probabilities q are enough: O(n·d) memory and O(n²) scalars, while autograd would
keep O(n²·d).

    y = onehot(argmax) + q − stopgrad(q)        c = cumsum(y)
    h'_j = y_j·p_j + (1 − c_j)·h_j + (c_j − y_j)·h_{j+1}
    ∂L/∂y_i = ⟨D_i, p_i − h_{i+1}⟩ + Σ_{j≥i} ⟨D_j, h_{j+1} − h_j⟩        D = ∂L/∂h'

A node never changes, so each vector is stored once, and a tree in progress is a list of ids. Sequences are
sorted by length, longest first, and end together: a shorter one joins once the longer ones have shrunk to its
length. So at every step all sequences have the same number of nodes, and nothing needs a mask.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from beamtree.engine.built_in_parts import EntangledScore, GatedCell, SlicedScore, weight_gradients
from beamtree.engine.choosing import up_to_rounding
from beamtree.engine.operators import weights_of
from beamtree.engine.record import ROWS_AT_ONCE
from beamtree.parts.cell import GatedRecursiveCell
from beamtree.parts.scorer import EntangledScorer, SlicedScorer
from beamtree.parts.weights import Weights
from beamtree.pytorch.derivatives import refuse_double_backward
from beamtree.pytorch.precision import product_dtype, without_autocast
from beamtree.zoo.tree_encoder import running_sum, with_zero_gradients

Noise = Callable[[int, int, int], Tensor]  # step, sequences, pairs -> (sequences, pairs)


class Timetable:
    """Says which sequences take part in which step, and how nodes, merges and pairs are numbered.

    Merges are numbered by step, then by sequence. Nodes: 0 is a placeholder, then come the B·n leaves, then
    the merges. Pairs: first the pairs of leaves, then two per merge.
    """

    def __init__(self, lengths: Tensor, n: int) -> None:
        """Plan the merges of sequences of lengths (B,).

        `n` is used only on the meta device, where lengths are unknown: every sequence then has length n.
        """
        self.B = len(lengths)
        self.lengths = lengths.clone()  # the backward pass reads it; the caller gets `lengths` with the trees
        self.order = lengths.argsort(descending=True, stable=True)  # (B,)
        having = Counter([n] * self.B if lengths.is_meta else lengths.tolist())
        self.n = n = max([1, *having])
        self.counts = list(accumulate(having[n - t] for t in range(n - 1)))
        self.starts = [0, *accumulate(self.counts)]
        self.made = self.starts[-1]
        self.first_node = 1 + self.B * n
        self.first_pair = self.B * (n - 1)
        self.pairs = self.first_pair + 2 * self.made

    def lists(self) -> Tensor:
        """Return the ids of leaves and of their pairs (c, c+1), longest sequence first, (2, B, n+2).

        Place 0 is empty.
        """
        place = torch.arange(self.n + 2, device=self.order.device)
        ids = self.order[:, None] * self.n + place
        ids = torch.where(place <= self.lengths[self.order, None], ids, 0)
        ids[:, 0] = 0
        row = torch.arange(self.B, device=self.order.device)[:, None]
        return torch.stack((ids, (row * (self.n - 1) + place - 1).clamp(0, self.first_pair)))

    def leaf_pairs(self) -> Tensor:  # (B·(n−1), 2)
        ids = self.lists()[0]
        return torch.stack((ids[:, 1:-2], ids[:, 2:-1]), -1).view(-1, 2)

    def by_sequence(self) -> Tensor:
        """Return the number of the merge at each step of each sequence, (B, n−1), padded with −1."""
        step = torch.arange(self.n - 1, device=self.order.device)
        shared = self.n - self.lengths[self.order, None] + step  # (B, n−1): the common number of each step
        starts = torch.tensor(self.starts, device=self.order.device)
        rank = torch.arange(self.B, device=self.order.device)[:, None]
        merges = (starts[shared.clamp(max=self.n - 2)] + rank).masked_fill(shared > self.n - 2, -1)
        return torch.empty_like(merges).index_copy_(0, self.order, merges)


class PairScores:
    """Scores of pairs of nodes (rows, 2, d), sliced or entangled, and their derivatives."""

    def __init__(self, weights: Weights[Any], product_dtype: torch.dtype) -> None:
        self.makes_parents = weights.entangled
        self.score: SlicedScore | EntangledScore
        if self.makes_parents:
            self.score = EntangledScore(weights, product_dtype)
        else:
            # `pull` also accumulates gradients of the parameters; a second scorer keeps slopes out of these.
            self.score, self._sloping = SlicedScore(weights.scorer), SlicedScore(weights.scorer)

    def __call__(self, pairs: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the scores (rows,), and the parents (rows, d) if scores are computed from these."""
        if isinstance(self.score, SlicedScore):
            return self.score(pairs), None
        parents = self.score.cell(pairs, keep)
        return self.score.of(parents), parents

    def slopes(self, pairs: Tensor, keep: Tensor | None) -> Tensor:
        """Return the derivative of each score with respect to the s features it reads, (rows, 2, s)."""
        if isinstance(self.score, SlicedScore):
            one = pairs.new_ones(len(pairs), dtype=self.score.w1.dtype)
            return self._sloping.pull(pairs, one)[..., : self.score.slice_size]
        self.score.cell.recompute(pairs, keep)
        return self.score.cell.pull(slice(None), self.score.weight.repeat(len(pairs), 1))

    def pull_parameters(self, pairs: Tensor, keep: Tensor | None, grad: Tensor) -> None:
        """Accumulate the gradients of the parameters from the gradients of the scores (rows,)."""
        if isinstance(self.score, SlicedScore):
            self.score.pull(pairs, grad)
        else:
            self.score.pull(pairs, grad, keep)


class Growth(NamedTuple):
    """The record of the forward pass that the backward sweep needs."""

    nodes: Tensor  # (1 + B·n + made, d)
    windows: Tensor  # (2, made, 4) nodes and pairs at a merge: left neighbour, left, right, right neighbour
    positions: Tensor  # (made, 1) place of the left child in its list
    lists: Tensor  # (2, sequences, 3) the lists of ids after the last step
    candidates: Tensor | None  # (pairs, d) the parent of every pair, if scores are computed from parents
    chances: list[Tensor]  # q of every step, (sequences, pairs)

    def roots(self, timetable: Timetable) -> Tensor:  # (B, d)
        single = 1 + timetable.order[self.lists.shape[1] :] * timetable.n
        ids = torch.cat((self.lists[0, :, 1], single))
        return self.nodes[torch.empty_like(ids).index_copy_(0, timetable.order, ids)]


def straight_through_tree(
    leaves: Tensor,  # (B, n, d)
    timetable: Timetable,
    cell: GatedRecursiveCell,
    scorer: SlicedScorer | EntangledScorer,
    keep: Tensor | None = None,
    noise: Noise | None = None,
    need_nodes: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return roots (B, d), merges (B, n−1) and nodes (B, n−1 or 0, d), each by the step that made it.

    `keep` has one dropout mask per merge (sliced scorer) or per pair (entangled scorer).
    """
    parameters, product = weights_of(cell, scorer).flat(), product_dtype(leaves)
    B, n, d = leaves.shape
    if timetable.made == 0:
        merges = timetable.order.new_full((B, n - 1), -1)
        nodes = leaves.new_zeros(B, n - 1 if need_nodes else 0, d)
        return with_zero_gradients(leaves[:, 0], parameters), merges, nodes
    beyond = n - timetable.n  # columns that are padding in all sequences
    leaves = leaves[:, : timetable.n]
    with without_autocast(leaves):
        root, merges, nodes = _StraightThroughTree.apply(
            leaves, timetable, keep, noise, product, need_nodes, *parameters
        )
    if need_nodes:
        nodes = F.pad(nodes, (0, 0, 0, beyond))
    return root, F.pad(merges, (0, beyond), value=-1), nodes


class _StraightThroughTree(torch.autograd.Function):
    """`grow` as the forward pass and `sweep` as the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        leaves: Tensor,
        timetable: Timetable,
        keep: Tensor | None,
        noise: Noise | None,
        product: torch.dtype,
        need_nodes: bool,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        cell, score = _parts(parameters, product)
        growth = grow(leaves, timetable, cell, score, keep=keep, noise=noise)
        ctx.timetable, ctx.product, ctx.count = timetable, product, len(parameters)
        ctx.save_for_backward(*parameters, keep, *growth[:-1], *growth.chances)
        made = timetable.by_sequence()
        merges = torch.where(made < 0, -1, growth.positions[made, 0] - 1)
        ctx.mark_non_differentiable(merges)
        ctx.made = torch.where(made < 0, 0, timetable.first_node + made) if need_nodes else None
        nodes = leaves[:, :0] if ctx.made is None else growth.nodes[ctx.made]
        return growth.roots(timetable), merges, nodes

    @staticmethod
    def backward(ctx: Any, grad_roots: Tensor, _: Tensor, grad_made: Tensor) -> tuple[Any, ...]:
        refuse_double_backward()
        saved = ctx.saved_tensors  # read only once, as activation checkpointing allows no more
        parameters = saved[: ctx.count]
        keep, nodes, windows, positions, lists, candidates, *chances = saved[ctx.count :]
        growth = Growth(nodes, windows, positions, lists, candidates, chances)
        cell, score = _parts(parameters, ctx.product)
        wide = torch.promote_types(nodes.dtype, torch.float32)
        grad_nodes = None
        if ctx.made is not None:
            grad_nodes = torch.zeros_like(nodes, dtype=wide)
            grad_nodes[ctx.made.flatten()] = grad_made.flatten(0, 1).to(wide)
        with without_autocast(nodes):  # the caller may be under autocast here too
            found = sweep(growth, ctx.timetable, cell, score, keep, grad_roots.to(wide), grad_nodes)
            for rows, some, mask in _in_chunks(found.pairs, keep if score.makes_parents else None):
                score.pull_parameters(nodes[some], mask, found.scores[rows])
            gradients = weight_gradients(
                cell.parameter_gradients(found.merged), score.score.parameter_gradients(), score.makes_parents
            )
        return found.leaves.to(nodes.dtype), None, None, None, None, None, *gradients


def _parts(parameters: tuple[Tensor, ...], product: torch.dtype) -> tuple[GatedCell, PairScores]:
    weights = Weights.of(parameters)
    return GatedCell(weights.cell, product), PairScores(weights, product)


@torch.no_grad()
def grow(
    leaves: Tensor,  # (B, n, d)
    timetable: Timetable,
    cell: GatedCell,
    score: PairScores,
    *,
    keep: Tensor | None,  # dropout masks, one per pair if scores are computed from parents, else per merge
    noise: Noise | None,
) -> Growth:
    """Merge the best pair of every sequence at each step, until one node is left."""
    n, d = leaves.shape[1:]
    device, first = leaves.device, timetable.first_node
    nodes = leaves.new_zeros(first + timetable.made, d)
    nodes[1:first] = leaves.reshape(-1, d)
    initial = timetable.lists()
    pair_keep, merge_keep = (keep, None) if score.makes_parents else (None, keep)
    scored = [score(nodes[some], mask) for _, some, mask in _in_chunks(timetable.leaf_pairs(), pair_keep)]
    room = 2 * timetable.made  # for the pairs that merges will create
    scores = F.pad(torch.cat([one for one, _ in scored]), (0, room))
    parents = [parent for _, parent in scored if parent is not None]
    candidates = F.pad(torch.cat(parents), (0, 0, 0, room)) if parents else None

    windows = initial.new_empty(2, timetable.made, 4)
    positions = initial.new_empty(timetable.made, 1)
    new_nodes = torch.arange(first, nodes.shape[0], device=device).unsqueeze(1)  # (made, 1)
    new_pairs = torch.arange(timetable.first_pair, scores.shape[0], device=device).view(-1, 2)
    place = torch.arange(n + 2, device=device)
    around = place[:4] - 1
    chances: list[Tensor] = []
    lists = initial[:, :0]

    for t, count in enumerate(timetable.counts):
        width = n - t
        merges = slice(timetable.starts[t], timetable.starts[t + 1])
        if count > lists.shape[1]:
            lists = torch.cat((lists, initial[:, lists.shape[1] : count, : width + 2]), 1)
        logits = scores[lists[1, :, 1:width]]  # (A, pairs)
        if noise is not None and width > 2:
            logits = logits + noise(t, count, width - 1)
        chances.append(logits.softmax(-1))
        at = torch.add(up_to_rounding(logits).argmax(-1, keepdim=True), 1, out=positions[merges])  # (A, 1)
        window = torch.gather(lists, 2, (at + around).expand(2, count, 4), out=windows[:, merges])
        there = nodes[window[0]]  # (A, 4, d)
        if candidates is None:
            parent = cell(there[:, 1:3], None if merge_keep is None else merge_keep[merges])
        else:
            parent = candidates[window[1, :, 1]]
        nodes[first + merges.start : first + merges.stop] = parent
        fresh = torch.stack((there[:, 0], parent, parent, there[:, 3]), 1).view(-1, 2, d)
        made = slice(timetable.first_pair + 2 * merges.start, timetable.first_pair + 2 * merges.stop)
        scores[made], parent_of = score(fresh, None if pair_keep is None else pair_keep[made])
        if candidates is not None and parent_of is not None:
            candidates[made] = parent_of

        kept = place[: width + 1] + (place[: width + 1] > at)  # (A, width+1)
        lists = lists.gather(2, kept.expand(2, count, width + 1))
        lists[0].scatter_(1, at, new_nodes[merges])
        lists[1].scatter_(1, at + around[:2], new_pairs[merges])
    return Growth(nodes, windows, positions, lists, candidates, chances)


class SweptGradients(NamedTuple):
    """Gradients found by the sweep."""

    leaves: Tensor  # (B, n, d)
    merged: Tensor  # (made, d) of the nodes made, for the cell's parameters
    pairs: Tensor  # (pairs, 2) node ids of each pair
    scores: Tensor  # (pairs,) of the pairs' scores, summed over the steps at which a pair exists


@torch.no_grad()
def sweep(
    growth: Growth,
    timetable: Timetable,
    cell: GatedCell,
    score: PairScores,
    keep: Tensor | None,
    grad_roots: Tensor,  # (B, d)
    grad_nodes: Tensor | None,  # (1 + B·n + made, d), if nodes other than the roots are used
) -> SweptGradients:
    """Walk the steps of `grow` backwards, carrying one gradient per live node."""
    nodes, windows, first = growth.nodes, growth.windows, timetable.first_node
    d, wide, n = nodes.shape[1], grad_roots.dtype, timetable.n
    pair_keep = keep if score.makes_parents else None
    merge_keep = pair_keep[windows[1, :, 1]] if pair_keep is not None else keep
    cell.recompute(nodes[windows[0, :, 1:3]], merge_keep)
    made = torch.arange(first, len(nodes), device=nodes.device)
    left, right = windows[0, :, 0], windows[0, :, 3]
    new_pairs = torch.stack((left, made, made, right), 1).view(-1, 2)
    pairs = torch.cat((timetable.leaf_pairs(), new_pairs))
    slopes = torch.cat(
        [score.slopes(nodes[some], mask) for _, some, mask in _in_chunks(pairs, pair_keep)]
    )  # (pairs, 2, s)
    s = slopes.shape[-1]

    totals = grad_roots.new_zeros(pairs.shape[0])
    merged = grad_roots.new_zeros(timetable.made, d)
    grad_leaves = grad_roots.new_zeros(timetable.B, n, d)
    ordered = grad_roots[timetable.order]
    lists = growth.lists
    grads = F.pad(ordered[: lists.shape[1], None], (0, 0, 1, 1))  # (A, 3, d)
    grad_leaves[lists.shape[1] :, 0] = ordered[lists.shape[1] :]
    place = torch.arange(n + 2, device=nodes.device)
    previous, around = place - 1, place[:3] - 1
    row = torch.arange(timetable.B, device=nodes.device).unsqueeze(1)

    for t in range(n - 2, -1, -1):
        width, count = n - t, timetable.counts[t]
        merges = slice(timetable.starts[t], timetable.starts[t + 1])
        at = growth.positions[merges]  # (A, 1)
        after = grads[:, 1:width]  # (A, pairs, d)
        flat = grads.flatten(0, 1)
        base = row[:count] * (width + 1)
        to_parents = torch.index_select(flat, 0, (base + at).squeeze(1), out=merged[merges])
        if grad_nodes is not None:
            to_parents += grad_nodes[first + merges.start : first + merges.stop]
        to_children = cell.pull(merges, to_parents)  # (A, 2, d)

        kept = previous[: width + 2] + (place[: width + 2] <= at)  # (A, width+2)
        lists = lists.gather(2, kept.expand(2, count, width + 2))
        lists.scatter_(2, (at + around).expand(2, count, 3), windows[:, merges, :3])
        grads = flat.index_select(0, (base + kept).view(-1)).view(count, width + 2, d)
        grads.scatter_(1, (at + place[:2]).unsqueeze(-1).expand(count, 2, d), to_children)

        if width > 2:
            alive = nodes[lists[0, :, 1 : width + 1]].to(wide)  # (A, width, d)
            pair = lists[1, :, 1:width]  # (A, pairs)
            to_left, to_right = (after.unsqueeze(-1) * alive.unfold(1, 2, 1)).sum(2).unbind(-1)
            if growth.candidates is None:
                parent = nodes[first + merges.start : first + merges.stop].to(wide).unsqueeze(-1)
                to_parent = (after @ parent).squeeze(-1)
                through_children = alive @ to_children.transpose(1, 2)  # (A, width, 2)
                to_parent += through_children[:, :-1, 0] + through_children[:, 1:, 1]
            else:
                to_parent = (after * growth.candidates[pair]).sum(-1)
            # The softmax ignores a constant, so minus the sum over j < i can replace the sum over j ≥ i.
            to_choice = to_parent - to_left - running_sum(to_right - to_left)
            to_score = torch.ops.aten._softmax_backward_data(to_choice, growth.chances[t], -1, wide)
            totals.index_add_(0, pair.reshape(-1), to_score.view(-1))
            to_pair = slopes[pair] * to_score[..., None, None]  # (A, pairs, 2, s)
            grads[:, 1:width, :s] += to_pair[:, :, 0]
            grads[:, 2 : width + 1, :s] += to_pair[:, :, 1]

        staying = timetable.counts[t - 1] if t > 0 else 0
        if staying < count:
            grad_leaves[staying:count, :width] = grads[staying:, 1:-1]
            grads, lists = grads[:staying], lists[:, :staying]

    grad_leaves = torch.empty_like(grad_leaves).index_copy_(0, timetable.order, grad_leaves)
    return SweptGradients(grad_leaves, merged, pairs, totals)


def _in_chunks(pairs: Tensor, keep: Tensor | None) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
    """Yield chunks of at most ROWS_AT_ONCE pairs: the slice of rows, their node ids, their dropout masks."""
    for start in range(0, len(pairs), ROWS_AT_ONCE):
        rows = slice(start, min(start + ROWS_AT_ONCE, len(pairs)))
        yield rows, pairs[rows], None if keep is None else keep[rows]
