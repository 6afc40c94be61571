"""Unites beams that reach the same tree by different orders of merging, so that K beams are K trees.

A state of the search is a forest, identified by the set of spans made so far. Candidates for the same forest
are united: the best one continues, with the combined score of all,

    S(forest) = log Σ exp S(candidate),    ∂S(forest)/∂S(candidate) = exp(S(candidate) − S(forest)).

The history of a beam is then a network of merges instead of a chain, and the gradient flows back through it.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from beamtree.engine.choosing import NodeSpans, stable_topk
from beamtree.engine.randomness import mix
from beamtree.engine.record import LEFT_NEIGHBOUR, RIGHT_NEIGHBOUR, Timeline


class _Step(NamedTuple):
    """What the gradient needs from a step at which A sequences choose among C candidates."""

    ids: Tensor  # (A, K, width) the remaining nodes
    pair_scores: Tensor  # (A, K, width − 1) of neighbours, −inf where there is no pair
    column: Tensor  # (A, C) the pair that each candidate merges
    heir: Tensor  # (A, C) the slot in which its forest continues, K for none
    share: Tensor  # (A, C) its share of the forest's weight


class EqualTrees(NodeSpans):
    """Unites candidates for the same forest; with `record`, keeps what the gradient needs.

    A forest is identified by the sum of 64-bit hashes of its spans, which does not depend on their order. Two
    different forests collide with probability 2⁻⁶⁴.
    """

    def __init__(self, sequences: int, n: int, K: int, device: torch.device, record: bool) -> None:
        super().__init__(sequences, n, 1 + sequences * (n + K * (n - 1)), device)
        self.forests = torch.zeros(sequences, K, dtype=torch.int64, device=device)
        self.record = record
        self.steps: list[_Step] = []

    def unite(self, candidates: Tensor, column: Tensor, ids: Tensor) -> Tensor:
        """Scores (A, C): the best candidate of each forest gets the forest's score, the others −inf.

        `column` (A, C) holds the pairs that candidates merge, C/K per beam; `ids` (A·K, width) the remaining
        nodes.
        """
        A, C = candidates.shape
        K = self.forests.shape[1]
        column = column.clamp(max=ids.shape[1] - 2)  # missing candidates have arbitrary columns
        left = column.view(A * K, -1)
        start, end = self.spans[ids.gather(1, left), 0], self.spans[ids.gather(1, left + 1), 1]
        number = mix(mix(start) + end).view(A, K, -1)
        self.names = (self.forests[:A].unsqueeze(-1) + number).view(A, C)

        best_first = stable_topk(candidates, C)[1]
        by_name = self.names.gather(1, best_first).argsort(dim=1, stable=True)
        order = best_first.gather(1, by_name)  # equal forests side by side, the best candidate first
        name = self.names.gather(1, order)
        opens = torch.cat((torch.ones_like(name[:, :1], dtype=torch.bool), name[:, 1:] != name[:, :-1]), 1)
        family = opens.cumsum(1) - 1  # (A, C)
        self.family = torch.empty_like(family).scatter_(1, order, family)

        best = torch.full_like(candidates, -torch.inf).scatter_reduce_(1, self.family, candidates, "amax")
        best = best.masked_fill_(best == -torch.inf, 0)
        parts = (candidates - best.gather(1, self.family)).exp()
        mass = torch.zeros_like(best).scatter_add_(1, self.family, parts)
        self.together = (best + mass.log()).gather(1, self.family)  # (A, C)
        is_heir = torch.zeros_like(opens).scatter_(1, order, opens)
        self.candidates, self.column = candidates, column
        return self.together.masked_fill(~is_heir, -torch.inf)

    def keep(self, chosen: Tensor, scores: Tensor, ids: Tensor, pair_scores: Tensor) -> None:
        """Continue with the chosen candidates (A, K); those with score −inf are dead."""
        self.forests = self.names.gather(1, chosen)
        if not self.record:
            return
        A, K = chosen.shape
        C = self.family.shape[1]
        family = torch.where(scores > -torch.inf, self.family.gather(1, chosen), C)  # C means dead
        slots = torch.arange(K, device=chosen.device).expand(A, K)
        slot = chosen.new_full((A, C + 1), K).scatter_(1, family, slots)
        heir = slot.gather(1, self.family)
        share = torch.where(heir < K, (self.candidates - self.together).exp(), 0)
        lists = ids.view(A, K, -1), pair_scores[..., :-1]
        self.steps.append(_Step(*lists, self.column, heir, share))

    def differentiate(
        self, roots: Tensor, grad_scores: Tensor, links: Tensor, timeline: Timeline
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The merges with a gradient, the scored pairs (P, 2), and ∂L/∂e of each pair, (P,).

        Goes back from the roots: a state passes the gradient of its score on to the candidates that were
        united in it. The score of a candidate is that of its own state plus e − log Z, and all pairs present
        at that step are part of Z.
        """
        first, made, K = timeline.first, timeline.numbers, timeline.K
        flow = grad_scores.new_zeros(made)
        matters = torch.zeros(made, dtype=torch.bool, device=roots.device)
        merged = roots >= first
        flow[roots[merged] - first] = grad_scores[merged]
        matters[roots[merged] - first] = True
        grad_pairs = grad_scores.new_zeros(first + 2 * made)
        for t in range(len(self.steps) - 1, -1, -1):
            step = self.steps[t]
            A = step.ids.shape[0]
            begin = t * timeline.per_step
            rows = slice(begin, begin + A * K)
            passed = _of_heirs(flow[rows].view(A, K), step.heir) * step.share
            counts = _of_heirs(matters[rows].view(A, K), step.heir) & (step.share > 0)
            passed = passed.view(A, K, -1)
            state = passed.sum(-1, keepdim=True)  # (A, K, 1)
            grad = -state * step.pair_scores.softmax(-1).nan_to_num_(0)
            grad.scatter_add_(2, step.column.view(A, K, -1), passed)
            index = _number_pairs(step.ids[..., :-1], step.ids[..., 1:], first)
            grad_pairs.index_add_(0, index.reshape(-1), grad.view(-1))
            if t > 0:
                earlier = slice(begin - timeline.per_step, begin - timeline.per_step + A * K)
                flow[earlier] += state.view(-1)
                matters[earlier] |= counts.view(A * K, -1).any(1)
        used = grad_pairs.nonzero().squeeze(1)
        return matters.nonzero().squeeze(1), _find_pairs(used, links, first), grad_pairs[used]


def _of_heirs(values: Tensor, heir: Tensor) -> Tensor:
    """For each candidate the value of the slot in which its forest continues, (A, C); zero if in none."""
    return torch.cat((values, torch.zeros_like(values[:, :1])), 1).gather(1, heir)


def _number_pairs(left: Tensor, right: Tensor, first: int) -> Tensor:
    """A number for each pair: of two leaves the left id, else given by the younger node and its side."""
    younger = torch.maximum(left, right)
    return torch.where(younger < first, left, 2 * younger - first + (left == younger))


def _find_pairs(numbers: Tensor, links: Tensor, first: int) -> Tensor:
    """The pairs (P, 2) with these numbers."""
    merge = (numbers - first).clamp(min=0) // 2
    node = merge + first
    with_left = torch.stack((links[merge, LEFT_NEIGHBOUR], node), 1)
    with_right = torch.stack((node, links[merge, RIGHT_NEIGHBOUR]), 1)
    born = torch.where(((numbers - first) % 2 == 1).unsqueeze(1), with_right, with_left)
    leaves = torch.stack((numbers, numbers + 1), 1)
    return torch.where((numbers < first).unsqueeze(1), leaves, born)
