"""One tree a sequence, grown by straight-through choices: who takes part, how pairs are scored, what is kept.

A node never changes, so the growth keeps each vector once and lists ids. Sequences are handled longest first
and end together: a shorter one joins once the longer ones have shrunk to its length, so at every step all
have the same number of nodes and nothing is masked.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from beamtree.engine.built_in_parts import GatedCell, ParentScore, SlicedScore
from beamtree.engine.choosing import up_to_rounding
from beamtree.engine.record import ROWS_AT_ONCE
from beamtree.kernels.weights import Weights

Noise = Callable[[int, int, int], Tensor]  # step, sequences, pairs -> (sequences, pairs)


class Timetable:
    """Who takes part in which step, and where its merge is kept: merges are numbered by step, then sequence.

    Node 0 is none, then come the B·n leaves, then the merges. Pairs: those of leaves, then two a merge.

    With `n` given the host does not look at the lengths, as a CUDA graph asks for: every sequence takes part
    in every step, and one that is not yet as long as its list stays as it is.
    """

    def __init__(self, lengths: Tensor, n: int | None = None) -> None:
        self.B, self.lengths, self.masked = len(lengths), lengths, n is not None
        self.order = lengths.argsort(descending=True, stable=True)  # (B,)
        if n is None:
            having = Counter(lengths.tolist())
            n = max([1, *having])
            self.counts = list(accumulate(having[n - t] for t in range(n - 1)))
        else:
            self.counts = [self.B] * (n - 1)
        self.n = n
        self.starts = [0, *accumulate(self.counts)]
        self.made = self.starts[-1]
        self.first_node = 1 + self.B * n
        self.first_pair = self.B * (n - 1)
        self.pairs = self.first_pair + 2 * self.made

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
        return self.lengths[self.order, None] >= self.n - t if self.masked else None

    def merges(self, positions: Tensor) -> Tensor:
        """From places (made, 1) to merges (B, n−1), each sequence's from its first step on, then −1."""
        step = torch.arange(self.n - 1, device=positions.device)
        by_step = self._by_step(positions)
        own = self.n - self.lengths[self.order, None] + step  # (B, n−1)
        found = by_step.T.gather(1, own.clamp(max=self.n - 2)).masked_fill(own > self.n - 2, -1)
        return torch.empty_like(found).index_copy_(0, self.order, found)

    def _by_step(self, positions: Tensor) -> Tensor:
        if self.masked:
            return positions.view(self.n - 1, self.B) - 1
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
        if self.masked:
            return torch.arange(self.n, device=self.order.device) * self.B
        return torch.tensor(self.starts, dtype=torch.int64, device=self.order.device)


class PairScores:
    """Scores of pairs of nodes (rows, 2, d), sliced or entangled, and their derivatives."""

    def __init__(self, weights: Weights[Any], product_dtype: torch.dtype) -> None:
        self.makes_parents = weights.entangled
        self.score: SlicedScore | ParentScore
        if self.makes_parents:
            self.score = ParentScore(weights, product_dtype)
        else:
            # A pull sums up the gradients of the parameters too, of which slopes are no part.
            self.score, self._sloping = SlicedScore(weights.scorer), SlicedScore(weights.scorer)

    def __call__(self, pairs: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Scores (rows,), and the parents (rows, d) where scores are read off them."""
        if isinstance(self.score, SlicedScore):
            return self.score(pairs), None
        parents = self.score.cell(pairs, keep)
        return self.score.of(parents), parents

    def slopes(self, pairs: Tensor, keep: Tensor | None) -> Tensor:
        """The derivative of each score by its pair, (rows, 2, s): the s features that it reads."""
        if isinstance(self.score, SlicedScore):
            one = pairs.new_ones(len(pairs), dtype=self.score.w1.dtype)
            return self._sloping.pull(pairs, one)[..., : self.score.slice_size]
        self.score.cell.recall(pairs, keep)
        return self.score.cell.pull(slice(None), self.score.weight.repeat(len(pairs), 1))

    def pull_parameters(self, pairs: Tensor, keep: Tensor | None, grad: Tensor) -> None:
        """Add the gradients of the parameters, from those of the scores (rows,)."""
        if isinstance(self.score, SlicedScore):
            self.score.pull(pairs, grad)
        else:
            self.score.pull(pairs, grad, keep)


class Growth(NamedTuple):
    """What the sweep needs of the growth."""

    nodes: Tensor  # (1 + B·n + made, d)
    windows: Tensor  # (2, made, 4) nodes and pairs at a merge: left neighbour, left, right, right neighbour
    positions: Tensor  # (made, 1) place of the left child in its list
    lists: Tensor  # (2, sequences, 3) at the end
    candidates: Tensor | None  # (pairs, d) the parent of every pair, where scores are read off them
    chances: list[Tensor]  # q of every step, (sequences, pairs)

    def roots(self, timetable: Timetable) -> Tensor:  # (B, d)
        single = 1 + timetable.order[self.lists.shape[1] :] * timetable.n
        ids = torch.cat((self.lists[0, :, 1], single))
        return self.nodes[torch.empty_like(ids).index_copy_(0, timetable.order, ids)]


@torch.no_grad()
def grow(
    leaves: Tensor,  # (B, n, d)
    timetable: Timetable,
    cell: GatedCell,
    score: PairScores,
    *,
    keep: Tensor | None,  # dropout masks: of every pair if scores are read off parents, else of every merge
    noise: Noise | None,
) -> Growth:
    n, d = leaves.shape[1:]
    device, first = leaves.device, timetable.first_node
    nodes = leaves.new_zeros(first + timetable.made, d)
    nodes[1:first] = leaves.reshape(-1, d)
    initial = timetable.lists()
    pair_keep, merge_keep = (keep, None) if score.makes_parents else (None, keep)
    scored = [score(nodes[some], mask) for _, some, mask in in_chunks(timetable.leaf_pairs(), pair_keep)]
    room = 2 * timetable.made  # for the pairs to come
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
        active = timetable.active(t)
        if active is not None:
            lists = torch.where(active, lists, initial[:, :, : width + 1])
    return Growth(nodes, windows, positions, lists, candidates, chances)


def in_chunks(pairs: Tensor, keep: Tensor | None) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
    """Pairs a bounded number at a time: which rows, their node ids, their dropout masks."""
    for start in range(0, len(pairs), ROWS_AT_ONCE):
        rows = slice(start, min(start + ROWS_AT_ONCE, len(pairs)))
        yield rows, pairs[rows], None if keep is None else keep[rows]
