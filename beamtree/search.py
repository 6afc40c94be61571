"""The search: leaves → the beams alive at the end, with everything the gradient needs and nothing else.

Three facts make it cheap and exact. A node never changes, so each vector is kept once and a beam is a list of
node ids. A pair's score never changes, so only the two pairs a merge makes are scored. Choosing has no
gradient, so no graph is built; replay.py differentiates the survivors.

Sequences are handled longest first: those still running at a step are then a prefix, and a finished one is
simply left behind.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from beamtree.noise import FIRST_LEVEL, SECOND_LEVEL, draw_keep, gumbel
from beamtree.ops.reference import stable_topk
from beamtree.pins import Fence

NONE = 0  # the id of no node; leaves are 1 … B·n, the nodes made at step t follow those made before
BEFORE, LEFT_NEIGHBOUR, LEFT, RIGHT, RIGHT_NEIGHBOUR, POSITION = range(6)  # columns of Tape.links

ROWS_AT_ONCE = 8192  # bounds what a batched computation holds beside the tape
_DRAWS_AT_ONCE = 1 << 17

Compose = Callable[[Tensor, Tensor | None], Tensor]  # child pairs (rows, 2, d), keep -> parents (rows, d)
Score = Callable[[Tensor], Tensor]  # pairs (rows, 2, d) -> scores (rows,)


@dataclass(frozen=True)
class Randomness:
    """What is drawn in training: noise on the two selections, dropout masks of the created nodes."""

    seed: Tensor
    noisy: bool
    dropout: float
    hidden_size: int  # the width of a dropout mask


class Tape(NamedTuple):
    """The search's record. A row of `links` and `energies` is a merge, and a merge is the node it made."""

    nodes: Tensor  # (1 + B·n + B·K·(n−1), d) row NONE is zero
    links: (
        Tensor  # (B·K·(n−1), 6) the beam's merge before, the children between their neighbours, the position
    )
    energies: Tensor  # (B·K·(n−1), 4) scores of the pairs it ended: left, chosen, right; log Z
    roots: Tensor  # (B, K) ids, best beam first, NONE for dead beams
    relative: Tensor  # (B, K) accumulated scores less `offset`, −inf for dead beams
    offset: Tensor  # (B,) float64


def running_counts(lengths: list[int], n: int) -> list[int]:
    """How many sequences still merge at each of the n−1 steps."""
    ends = [0] * n
    for length in lengths:
        ends[length - 1] += 1
    counts, running = [], len(lengths)
    for t in range(n - 1):
        running -= ends[t]
        counts.append(running)
    return counts


@torch.no_grad()
def search(
    leaves: Tensor,  # (B, n, d)
    lengths: Tensor,  # (B,)
    compose: Compose,
    score: Score,
    *,
    beam_size: int,
    randomness: Randomness | None = None,
    merges: Tensor | None = None,  # (B, n−1): follow this tree instead of searching
    pins: Tensor | None = None,  # (B, P, 2): spans that every tree contains, −1 for none
) -> Tape:
    B, n, d = leaves.shape
    K = 1 if merges is not None else beam_size
    device = leaves.device
    wide = torch.promote_types(leaves.dtype, torch.float32)
    order = lengths.argsort(descending=True, stable=True)
    running = running_counts(lengths.tolist(), n)

    nodes = leaves.new_empty(1 + B * n + B * K * (n - 1), d)
    nodes[NONE] = 0
    nodes[1 : 1 + B * n] = leaves.reshape(B * n, d)
    links = lengths.new_zeros(B * K * (n - 1), 6)
    energies = leaves.new_zeros(B * K * (n - 1), 4, dtype=wide)
    fence = Fence(pins, order, n, nodes.shape[0]) if pins is not None else None

    column = torch.arange(n + 2, device=device)
    is_token = (column >= 1) & (column <= lengths[order, None])  # (B, n+2)
    ids = torch.where(is_token, order[:, None] * n + column, NONE)  # (B, n+2): none, leaves, none
    pair_scores = _score_leaves(nodes, ids, score, fence, wide)  # (B, n+2): of (ids[c], ids[c+1])
    ids = ids.repeat_interleave(K, 0)
    pair_scores = pair_scores.repeat_interleave(K, 0)

    scores = torch.full((B, K), -torch.inf, dtype=wide, device=device)
    scores[:, 0] = 0
    before = ids.new_zeros(B, K)
    offset = torch.zeros(B, dtype=torch.float64, device=device)
    roots = before.clone()
    roots[:, 0] = order * n + 1  # where there is no merge the root is the leaf
    final = scores.clone()

    draws = _Draws(randomness, order, K, running, leaves.dtype) if randomness is not None else None
    beam_base = torch.arange(B, device=device).unsqueeze(1) * K  # (B, 1)
    around = torch.arange(-1, 3, device=device)
    shortest = int(lengths.min()) if B else 0
    made = 0

    for t, A in enumerate(running):
        if A == 0:
            break
        rows, width = A * K, n - t + 2
        ids, pair_scores, scores, before = ids[:rows], pair_scores[:rows], scores[:A], before[:A]
        energy = pair_scores.view(A, K, width)[..., 1 : width - 2]  # (A, K, pairs)
        log_z = energy.logsumexp(-1)  # (A, K)
        if merges is not None:
            parent = torch.zeros_like(before)
            position = merges[order[:A], t].unsqueeze(1)
            scores = scores + energy.gather(-1, position.unsqueeze(-1)).squeeze(-1) - log_z
        else:
            may_die = fence is not None or shortest <= K
            scores, parent, position = _choose(energy, scores - log_z, draws, t, may_die)
        offset[:A] += scores[:, 0]
        scores = scores - scores[:, :1]

        parent += beam_base[:A]  # rows of the chosen beams
        start = (parent * width + position + 1).view(rows, 1)  # where the left child stands
        near = ids.view(-1)[start + around]  # (rows, 4): left neighbour, left, right, right neighbour
        parent = parent.view(-1)
        new_ids = torch.arange(1 + B * n + made, 1 + B * n + made + rows, device=device)
        record = slice(made, made + rows)
        links[record, BEFORE] = before.view(-1)[parent]
        links[record, LEFT_NEIGHBOUR:POSITION] = near
        links[record, POSITION] = position.view(-1)
        energies[record, :3] = pair_scores.view(-1)[start + around[:3]]
        energies[record, 3] = log_z.view(-1)[parent]

        children = nodes.index_select(0, near[:, 1:3].reshape(-1)).view(rows, 2, d)
        keep = draws.keep(t, A) if draws is not None else None
        nodes[1 + B * n + made : 1 + B * n + made + rows] = compose(children, keep)
        near[:, 1:3] = new_ids.unsqueeze(1)
        new_pairs = near.view(2 * rows, 2)
        new_scores = score(nodes.index_select(0, near.view(-1)).view(2 * rows, 2, d)).to(wide)
        new_scores.masked_fill_((new_pairs == NONE).any(1), -torch.inf)
        if fence is not None:
            fence.enclose(new_ids, links[record, LEFT], links[record, RIGHT])
            new_scores.masked_fill_(fence.crosses(new_pairs.view(A, K * 2, 2)).view(-1), -torch.inf)

        here = position.view(rows, 1) + 1
        shift = (parent * width).unsqueeze(1) + column[: width - 1] + (column[: width - 1] > here)
        ids = ids.view(-1)[shift].scatter_(1, here, new_ids.unsqueeze(1))
        pair_scores = pair_scores.view(-1)[shift]
        pair_scores.scatter_(1, here + around[:2], new_scores.view(rows, 2))
        before = new_ids.view(A, K)
        made += rows

        done = slice(running[t + 1] if t + 1 < len(running) else 0, A)
        final[done], roots[done] = scores[done], before[done]

    final, best = final.sort(dim=1, descending=True, stable=True)
    roots = roots.gather(1, best).masked_fill_(final == -torch.inf, NONE)
    restore = order.argsort()
    return Tape(nodes, links, energies, roots[restore], final[restore], offset[restore])


def _score_leaves(nodes: Tensor, ids: Tensor, score: Score, fence: Fence | None, wide: torch.dtype) -> Tensor:
    """Scores of all pairs of neighbouring leaves, (B, n+2), −inf where there is no pair."""
    pairs = torch.stack((ids[:, :-1], ids[:, 1:]), -1)  # (B, n+1, 2)
    is_pair = (pairs != NONE).all(-1)
    if fence is not None:
        is_pair &= ~fence.crosses(pairs)
    scores = nodes.new_full(ids.shape, -torch.inf, dtype=wide)
    for some in is_pair.nonzero().split(ROWS_AT_ONCE):
        b, c = some.unbind(1)
        scores[b, c] = score(nodes[pairs[b, c]]).to(wide)
    return scores


def _choose(
    energy: Tensor, base: Tensor, draws: "_Draws | None", t: int, may_die: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Keep K of the candidates: accumulated scores, parent slots and merge positions, (A, K) each.

    `base` is a beam's accumulated score less its log Z. Ties go to the lower (beam, position). A dead slot
    takes the best candidate's place with score −inf, so that every list stays a list of real nodes.
    """
    A, K, pairs = energy.shape
    k = min(pairs, K)
    if draws is None or not draws.noisy:
        top, position = stable_topk(energy, k)  # (A, K, k)
        candidates = (top + base.unsqueeze(-1)).view(A, K * k)
        chosen = stable_topk(candidates, K)[1]  # (A, K)
    else:
        first, second = draws.gumbel(t, A, pairs)
        position = stable_topk(energy + first, k)[1]
        candidates = energy.gather(-1, position) + base.unsqueeze(-1)
        chosen = stable_topk((candidates + second[..., :k]).reshape(A, K * k), K)[1]
        candidates = candidates.view(A, K * k)
    scores = candidates.gather(1, chosen)
    if may_die:
        chosen = torch.where(scores > -torch.inf, chosen, chosen[:, :1])
    return scores, chosen // k, position.reshape(A, K * k).gather(1, chosen)


class _Draws:
    """A step's noise and masks, drawn for several steps at once where a step's are few."""

    def __init__(
        self, randomness: Randomness, order: Tensor, K: int, running: list[int], dtype: torch.dtype
    ) -> None:
        self.randomness, self.order, self.K, self.running, self.dtype = randomness, order, K, running, dtype
        self.noisy = randomness.noisy
        self._noise_until = self._masks_until = 0

    def gumbel(self, t: int, A: int, pairs: int) -> tuple[Tensor, Tensor]:  # (A, K, pairs), (A, K, K)
        if t >= self._noise_until:
            steps, sequence, slot = self._counters(t, A, pairs + self.K)
            wide = torch.promote_types(self.dtype, torch.float32)
            seed = self.randomness.seed
            self._first = gumbel(seed, FIRST_LEVEL, steps, sequence, slot, pairs, wide)
            self._second = gumbel(seed, SECOND_LEVEL, steps, sequence, slot, self.K, wide)
            self._noise_from, self._noise_until = t, t + len(steps)
        i = t - self._noise_from
        return self._first[i, :A, :, :pairs], self._second[i, :A]

    def keep(self, t: int, A: int) -> Tensor | None:  # (A·K, hidden)
        width, dropout = self.randomness.hidden_size, self.randomness.dropout
        if dropout == 0.0:
            return None
        if t >= self._masks_until:
            steps, sequence, slot = self._counters(t, A, width)
            self._keep = draw_keep(self.randomness.seed, steps, sequence, slot, width, dropout, self.dtype)
            self._masks_from, self._masks_until = t, t + len(steps)
        return self._keep[t - self._masks_from, :A].reshape(A * self.K, width)

    def _counters(self, t: int, A: int, per_beam: int) -> tuple[Tensor, Tensor, Tensor]:
        """Index tensors (steps, A, K), by broadcasting, of about as many steps as a block of draws holds."""
        steps = max(1, min(len(self.running) - t, _DRAWS_AT_ONCE // (A * self.K * per_beam)))
        device = self.order.device
        step = torch.arange(t, t + steps, device=device).view(-1, 1, 1)
        return step, self.order[:A].view(1, A, 1), torch.arange(self.K, device=device).view(1, 1, -1)
