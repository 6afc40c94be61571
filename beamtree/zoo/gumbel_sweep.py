"""One tree grown by straight-through Gumbel choices, and its dense gradient by one sweep backwards.

A node never changes, so the growth keeps each vector once and lists ids. The gradient touches every live node
at every step, but only through scalar products: one accumulator a live node suffices, beside each step's
probabilities q. That is O(n·d) memory and O(n²) scalars, where autograd keeps O(n²·d).

    y = onehot(argmax) + q − stopgrad(q)        c = cumsum(y)
    h'_j = y_j·p_j + (1 − c_j)·h_j + (c_j − y_j)·h_{j+1}
    ∂L/∂y_i = ⟨D_i, p_i − h_{i+1}⟩ + Σ_{j≥i} ⟨D_j, h_{j+1} − h_j⟩        D = ∂L/∂h'

Sequences are handled longest first and end together: a shorter one joins once the longer ones have shrunk to
its length, so at every step all have the same number of nodes and nothing is masked.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from beamtree.engine.gated_cell import GatedCell
from beamtree.engine.record import ROWS_AT_ONCE
from beamtree.engine.ties import up_to_rounding
from beamtree.zoo.gumbel_scores import Judge
from beamtree.zoo.running_sum import running_sum

Noise = Callable[[int, int, int], Tensor]  # step, sequences, pairs -> (sequences, pairs)


class Schedule:
    """Who takes part in which step, and where its merge is kept: merges are numbered by step, then sequence.

    Node 0 is none, then come the B·n leaves, then the merges. Pairs: those of leaves, then two a merge.
    """

    def __init__(self, lengths: Tensor) -> None:
        having = Counter(lengths.tolist())
        self.B, self.n, self.lengths = len(lengths), max([1, *having]), lengths
        n = self.n
        self.order = lengths.argsort(descending=True, stable=True)  # (B,)
        self.counts = list(accumulate(having[n - t] for t in range(n - 1)))
        self.starts = [0, *accumulate(self.counts)]
        self.made = self.starts[-1]
        self.first_node = 1 + self.B * n
        self.first_pair = self.B * (n - 1)

    def lists(self) -> Tensor:
        """Ids of nodes and of pairs (c, c+1), longest sequence first, (2, B, n+2); place 0 is empty."""
        place = torch.arange(self.n + 2, device=self.order.device)
        ids = self.order[:, None] * self.n + place
        ids = torch.where(place <= self.lengths[self.order, None], ids, 0)
        ids[:, 0] = 0
        row = torch.arange(self.B, device=self.order.device)[:, None]
        return torch.stack((ids, (row * (self.n - 1) + place - 1).clamp(0, self.first_pair)))

    def leaf_pairs(self) -> Tensor:  # (B·(n−1), 2)
        ids = self.lists()[0]
        return torch.stack((ids[:, 1:-2], ids[:, 2:-1]), -1).view(-1, 2)

    def active(self, t: int) -> Tensor | None:
        """Which of a step's sequences merge, (sequences, 1), where it is not all of them."""
        return None

    def merges(self, positions: Tensor) -> Tensor:
        """From places (made, 1) to merges (B, n−1), each sequence's from its first step on, then −1."""
        step = torch.arange(self.n - 1, device=positions.device)
        by_step = self._by_step(positions)
        own = self.n - self.lengths[self.order, None] + step  # (B, n−1)
        found = by_step.T.gather(1, own.clamp(max=self.n - 2)).masked_fill(own > self.n - 2, -1)
        return torch.empty_like(found).index_copy_(0, self.order, found)

    def _by_step(self, positions: Tensor) -> Tensor:
        counts = torch.tensor(self.counts, dtype=torch.int64, device=positions.device)
        by_step = positions.new_full((self.n - 1, self.B), -1)
        by_step[torch.arange(self.B, device=positions.device) < counts[:, None]] = positions[:, 0] - 1
        return by_step

    def nodes(self) -> Tensor:
        """The id of the node made at each step of each sequence, (B, n−1), 0 where there is none."""
        step = torch.arange(self.n - 1, device=self.order.device)
        own = self.n - self.lengths[self.order, None] + step  # (B, n−1)
        rank = torch.arange(self.B, device=self.order.device)[:, None]
        ids = self.first_node + self._starts()[own.clamp(max=self.n - 2)] + rank
        return torch.empty_like(ids).index_copy_(0, self.order, ids.masked_fill(own > self.n - 2, 0))

    def _starts(self) -> Tensor:
        return torch.tensor(self.starts, dtype=torch.int64, device=self.order.device)


class Growth(NamedTuple):
    """What the sweep needs of the growth."""

    nodes: Tensor  # (1 + B·n + made, d)
    windows: Tensor  # (2, made, 4) nodes and pairs at a merge: left neighbour, left, right, right neighbour
    positions: Tensor  # (made, 1) place of the left child in its list
    lists: Tensor  # (2, sequences, 3) at the end
    candidates: Tensor | None  # (pairs, d) the parent of every pair, where the judge makes them
    chances: list[Tensor]  # q of every step, (sequences, pairs)

    def roots(self, schedule: Schedule) -> Tensor:  # (B, d)
        single = 1 + schedule.order[self.lists.shape[1] :] * schedule.n
        ids = torch.cat((self.lists[0, :, 1], single))
        return self.nodes[torch.empty_like(ids).index_copy_(0, schedule.order, ids)]


@torch.no_grad()
def grow(
    leaves: Tensor,  # (B, n, d)
    schedule: Schedule,
    cell: GatedCell,
    judge: Judge,
    *,
    keep: Tensor | None,  # dropout masks: of every pair if the judge makes parents, else of every merge
    noise: Noise | None,
) -> Growth:
    n, d = leaves.shape[1:]
    device, first = leaves.device, schedule.first_node
    nodes = leaves.new_zeros(first + schedule.made, d)
    nodes[1:first] = leaves.reshape(-1, d)
    initial = schedule.lists()
    pair_keep, merge_keep = (keep, None) if judge.makes_parents else (None, keep)
    judged = [judge(nodes[some], mask) for _, some, mask in in_chunks(schedule.leaf_pairs(), pair_keep)]
    room = 2 * schedule.made  # for the pairs to come
    scores = F.pad(torch.cat([score for score, _ in judged]), (0, room))
    parents = [parent for _, parent in judged if parent is not None]
    candidates = F.pad(torch.cat(parents), (0, 0, 0, room)) if parents else None

    windows = initial.new_empty(2, schedule.made, 4)
    positions = initial.new_empty(schedule.made, 1)
    new_nodes = torch.arange(first, nodes.shape[0], device=device).unsqueeze(1)  # (made, 1)
    new_pairs = torch.arange(schedule.first_pair, scores.shape[0], device=device).view(-1, 2)
    place = torch.arange(n + 2, device=device)
    around = place[:4] - 1
    chances: list[Tensor] = []
    lists = initial[:, :0]

    for t, count in enumerate(schedule.counts):
        width = n - t
        merges = slice(schedule.starts[t], schedule.starts[t + 1])
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
        made = slice(schedule.first_pair + 2 * merges.start, schedule.first_pair + 2 * merges.stop)
        scores[made], parent_of = judge(fresh, None if pair_keep is None else pair_keep[made])
        if candidates is not None and parent_of is not None:
            candidates[made] = parent_of

        kept = place[: width + 1] + (place[: width + 1] > at)  # (A, width+1)
        lists = lists.gather(2, kept.expand(2, count, width + 1))
        lists[0].scatter_(1, at, new_nodes[merges])
        lists[1].scatter_(1, at + around[:2], new_pairs[merges])
        active = schedule.active(t)
        if active is not None:
            lists = torch.where(active, lists, initial[:, :, : width + 1])
    return Growth(nodes, windows, positions, lists, candidates, chances)


class Gradients(NamedTuple):
    leaves: Tensor  # (B, n, d)
    merged: Tensor  # (made, d) of the nodes, for the cell's parameters
    pairs: Tensor  # (pairs, 2) node ids
    scores: Tensor  # (pairs,) summed over the steps a pair lives


@torch.no_grad()
def sweep(
    growth: Growth,
    schedule: Schedule,
    cell: GatedCell,
    judge: Judge,
    *,
    keep: Tensor | None,
    grad_roots: Tensor,  # (B, d)
    grad_nodes: Tensor | None = None,  # (1 + B·n + made, d) of nodes that are read beside the roots
) -> Gradients:
    nodes, windows, first = growth.nodes, growth.windows, schedule.first_node
    d, wide, n = nodes.shape[1], grad_roots.dtype, schedule.n
    pair_keep = keep if judge.makes_parents else None
    merge_keep = pair_keep[windows[1, :, 1]] if pair_keep is not None else keep
    cell.recall(nodes[windows[0, :, 1:3]], merge_keep)
    pairs = torch.cat((schedule.leaf_pairs(), _new_pairs(windows[0], first)))
    one = grad_roots.new_ones(pairs.shape[0])
    slopes = torch.cat(
        [judge.pull(nodes[some], mask, one[rows]) for rows, some, mask in in_chunks(pairs, pair_keep)]
    )  # (pairs, 2, s)
    s = slopes.shape[-1]

    totals = grad_roots.new_zeros(pairs.shape[0])
    merged = grad_roots.new_zeros(schedule.made, d)
    grad_leaves = grad_roots.new_zeros(schedule.B, n, d)
    ordered = grad_roots[schedule.order]
    initial, lists = schedule.lists(), growth.lists
    grads = F.pad(ordered[: lists.shape[1], None], (0, 0, 1, 1))  # (A, 3, d)
    grad_leaves[lists.shape[1] :, 0] = ordered[lists.shape[1] :]
    place = torch.arange(n + 2, device=nodes.device)
    previous, around = place - 1, place[:3] - 1
    row = torch.arange(schedule.B, device=nodes.device).unsqueeze(1)

    for t in range(n - 2, -1, -1):
        width, count = n - t, schedule.counts[t]
        merges = slice(schedule.starts[t], schedule.starts[t + 1])
        at = growth.positions[merges]  # (A, 1)
        after = grads[:, 1:width]  # (A, pairs, d)
        flat = grads.flatten(0, 1)
        base = row[:count] * (width + 1)
        to_parents = torch.index_select(flat, 0, (base + at).squeeze(1), out=merged[merges])
        if grad_nodes is not None:
            to_parents += grad_nodes[first + merges.start : first + merges.stop]
        active = schedule.active(t)
        if active is not None:
            to_parents.masked_fill_(~active, 0.0)
        to_children = cell.pull(merges, to_parents)  # (A, 2, d)

        kept = previous[: width + 2] + (place[: width + 2] <= at)  # (A, width+2)
        lists = lists.gather(2, kept.expand(2, count, width + 2))
        lists.scatter_(2, (at + around).expand(2, count, 3), windows[:, merges, :3])
        restored = flat.index_select(0, (base + kept).view(-1)).view(count, width + 2, d)
        restored.scatter_(1, (at + place[:2]).unsqueeze(-1).expand(count, 2, d), to_children)
        if active is not None:
            lists = torch.where(active, lists, initial[:, :, : width + 2])
            restored = torch.where(active.unsqueeze(-1), restored, F.pad(grads, (0, 0, 0, 1)))
        grads = restored

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
            # The softmax ignores a constant, so the sum over j ≥ i may be taken as minus that over j < i.
            to_choice = to_parent - to_left - running_sum(to_right - to_left)
            to_score = torch.ops.aten._softmax_backward_data(to_choice, growth.chances[t], -1, wide)
            if active is not None:
                to_score = to_score.masked_fill(~active, 0.0)
            totals.index_add_(0, pair.reshape(-1), to_score.view(-1))
            to_pair = slopes[pair] * to_score[..., None, None]  # (A, pairs, 2, s)
            grads[:, 1:width, :s] += to_pair[:, :, 0]
            grads[:, 2 : width + 1, :s] += to_pair[:, :, 1]

        staying = schedule.counts[t - 1] if t > 0 else 0
        if staying < count:
            grad_leaves[staying:count, :width] = grads[staying:, 1:-1]
            grads, lists = grads[:staying], lists[:, :staying]

    grad_leaves = torch.empty_like(grad_leaves).index_copy_(0, schedule.order, grad_leaves)
    return Gradients(grad_leaves, merged, pairs, totals)


def in_chunks(pairs: Tensor, keep: Tensor | None) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
    """Pairs a bounded number at a time: which rows, their node ids, their dropout masks."""
    for start in range(0, len(pairs), ROWS_AT_ONCE):
        rows = slice(start, min(start + ROWS_AT_ONCE, len(pairs)))
        yield rows, pairs[rows], None if keep is None else keep[rows]


def _new_pairs(windows: Tensor, first: int) -> Tensor:
    """The two pairs that each merge made, as node ids (2·made, 2)."""
    made = torch.arange(first, first + windows.shape[0], device=windows.device)
    return torch.stack((windows[:, 0], made, made, windows[:, 3]), 1).view(-1, 2)
