"""The search: leaves → the K best beams, and a record (`Tape`) from which replay.py computes the gradient.

Three facts make it cheap and exact. A node never changes, so all beams share one table of vectors, and a beam
is a row of node ids with the scores of the pairs between them. A pair's score never changes, so only the two
pairs a merge makes are scored. Choosing has no gradient, so no graph is built; replay.py differentiates the
survivors.

Sequences are handled longest first: those still running at a step are then a prefix, and a finished one is
simply left behind.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from beamtree.engine.pinned import Fence
from beamtree.engine.randomness import Draws, Randomness, pair_masks
from beamtree.engine.record import (
    BEFORE,
    LEFT,
    LEFT_NEIGHBOUR,
    NONE,
    POSITION,
    RIGHT,
    ROWS_AT_ONCE,
    Compose,
    Score,
    Tape,
    Timeline,
)
from beamtree.engine.ties import stable_topk

if TYPE_CHECKING:
    from beamtree.engine.equal_trees import EqualTrees


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
    equal_trees: "EqualTrees | None" = None,  # unites beams that reach the same tree
) -> Tape:
    B, n, d = leaves.shape
    K = 1 if merges is not None else beam_size
    device = leaves.device
    wide = torch.promote_types(leaves.dtype, torch.float32)
    timeline = Timeline(lengths, n, K)
    order, running, first = timeline.order, timeline.running, timeline.first
    capacity = B * K * (n - 1)

    nodes = leaves.new_empty(first + capacity, d)
    nodes[NONE] = 0
    nodes[1:first] = leaves.reshape(B * n, d)
    links = lengths.new_zeros(capacity, 6)
    energies = leaves.new_zeros(capacity, 4, dtype=wide)
    fence = Fence(pins, order, n, first + capacity) if pins is not None else None
    draws = Draws(randomness, order, K, n, leaves.dtype) if randomness is not None else None

    column = torch.arange(n + 2, device=device)
    is_token = (column >= 1) & (column <= lengths[order, None])  # (B, n+2)
    ids = torch.where(is_token, order[:, None] * n + column, NONE)  # (B, n+2): none, leaves, none
    mask_pairs = None
    if randomness is not None and randomness.per_pair and randomness.dropout > 0.0:
        mask_pairs = partial(pair_masks, randomness, timeline, dtype=leaves.dtype)

    def score_pairs(pairs: Tensor) -> Tensor:  # (rows, 2) ids -> (rows,)
        vectors = torch.embedding(nodes, pairs)
        return (score(vectors) if mask_pairs is None else score(vectors, mask_pairs(pairs))).to(wide)

    pair_scores = _score_leaves(ids, score_pairs, fence, wide)  # (B, n+2): of (ids[c], ids[c+1])
    ids = ids.repeat_interleave(K, 0)
    pair_scores = pair_scores.repeat_interleave(K, 0)
    made_ids = torch.arange(first, first + capacity, device=device)
    around = torch.arange(-1, 3, device=device)
    beam_row = torch.arange(B, device=device).unsqueeze(1) * K  # (B, 1)

    scores = torch.full((B, K), -torch.inf, dtype=wide, device=device)
    scores[:, 0] = 0
    offset = torch.zeros(B, 1, dtype=torch.float64, device=device)
    before = ids.new_zeros(B, K)  # each beam's last merge
    roots = before.clone()
    roots[:, 0] = order * n + 1  # where there is no merge the root is the leaf
    final_scores, final_offset = scores.clone(), offset.clone()
    # A sequence of at most K tokens has fewer than K first merges, so some of its beams are dead.
    may_die = fence is not None or min(lengths.tolist(), default=0) <= K
    chains, positions, log_zs = [], [], []
    made, A = 0, B

    for t, still_running in enumerate(running):
        if still_running == 0:
            break
        if still_running < A:
            A = still_running
            ids, pair_scores = ids[: A * K], pair_scores[: A * K]
            scores, offset, before, beam_row = scores[:A], offset[:A], before[:A], beam_row[:A]
        rows, width = A * K, n - t + 2
        energy = pair_scores.view(A, K, width)[..., 1 : width - 2]  # (A, K, pairs)
        log_z = energy.double().logsumexp(-1).to(wide)  # (A, K); in float64: padding must not change it
        if merges is not None:
            source, position = torch.zeros_like(before), merges[order[:A], t].unsqueeze(1)
            scores = scores + energy.gather(-1, position.unsqueeze(-1)).squeeze(-1) - log_z
        else:
            noise = draws.gumbel(t, A, energy.shape[2]) if draws is not None and draws.noisy else None
            scores, source, position = choose(energy, scores - log_z, noise, may_die, ids, equal_trees)
        best = scores[:, :1]
        offset, scores = offset + best, scores - best

        source = (source + beam_row).view(rows, 1)  # the beam that each new one goes on from
        here = position.view(rows, 1) + 1  # the left child's column
        line = source * width
        window = line + here + around  # (rows, 4)
        near = ids.take(window)  # left neighbour, left, right, right neighbour
        new_ids = made_ids[made : made + rows].unsqueeze(1)
        links[made : made + rows, LEFT_NEIGHBOUR:POSITION] = near
        energies[made : made + rows, :3] = pair_scores.take(window[:, :3])
        chains.append(before.take(source))
        positions.append(here)
        log_zs.append(log_z.take(source))

        children = near[:, 1:3]
        keep = draws.keep(t, A) if draws is not None else None
        if mask_pairs is not None:
            keep = mask_pairs(children)
        parents = compose(torch.embedding(nodes, children), keep)  # (rows, d)
        nodes[first + made : first + made + rows] = parents
        border = near[:, ::3] == NONE  # (rows, 2)
        near[:, 1:3] = new_ids
        new_pairs = near.view(2 * rows, 2)
        new_scores = score_pairs(new_pairs).view(rows, 2).masked_fill(border, -torch.inf)
        for spans in (fence, equal_trees):
            if spans is not None:
                spans.enclose(new_ids.squeeze(1), *links[made : made + rows, LEFT : RIGHT + 1].unbind(1))
        if fence is not None:
            new_scores.masked_fill_(fence.crosses(new_pairs.view(A, 2 * K, 2)).view(rows, 2), -torch.inf)

        columns = column[: width - 1]
        shift = (columns > here) + columns + line  # what stays, with the right child's place closed
        ids = ids.take(shift).scatter_(1, here, new_ids)
        pair_scores = pair_scores.take(shift).scatter_(1, here + around[:2], new_scores)
        before = new_ids.view(A, K)
        made += rows
        go_on = running[t + 1] if t + 1 < len(running) else 0
        if go_on < A:
            done = slice(go_on, A)
            roots[done], final_scores[done], final_offset[done] = before[done], scores[done], offset[done]

    if made:
        links[:made, BEFORE] = torch.cat(chains).squeeze(1)
        links[:made, POSITION] = torch.cat(positions).squeeze(1) - 1
        energies[:made, 3] = torch.cat(log_zs).squeeze(1)
    return Tape(nodes, links, energies, *rank_beams(roots, final_scores, final_offset, order))


def _score_leaves(
    ids: Tensor, score_pairs: Callable[[Tensor], Tensor], fence: Fence | None, wide: torch.dtype
) -> Tensor:
    """Scores of all pairs of neighbouring leaves, (B, n+2), −inf where there is no pair."""
    pairs = torch.stack((ids[:, :-1], ids[:, 1:]), -1)  # (B, n+1, 2)
    is_pair = (pairs != NONE).all(-1)
    if fence is not None:
        is_pair &= ~fence.crosses(pairs)
    scores = torch.full(ids.shape, -torch.inf, dtype=wide, device=ids.device)
    for some in is_pair.nonzero().split(ROWS_AT_ONCE):
        b, c = some.unbind(1)
        scores[b, c] = score_pairs(pairs[b, c])
    return scores


def rank_beams(roots: Tensor, scores: Tensor, offset: Tensor, order: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Roots and scores (B, K), best first, and offset (B,), for sequences in their own order again."""
    scores, rank = stable_topk(scores, scores.shape[1])
    scores = scores.cummin(1).values  # those equal up to rounding keep their order, which may rise by a bit
    roots = roots.gather(1, rank).masked_fill_(scores == -torch.inf, NONE)
    restore = order.argsort()
    return roots[restore], scores[restore], offset[restore, 0]


def choose(
    energy: Tensor,
    base: Tensor,
    noise: tuple[Tensor, Tensor] | None,
    may_die: bool,
    ids: Tensor,
    equal_trees: "EqualTrees | None" = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Keep K of the candidates: accumulated scores, source slots and merge positions, (A, K) each.

    `base` is a beam's accumulated score less its log Z. Ties go to the lower (beam, position). A dead slot
    takes the best candidate's place with score −inf, so that every list stays a list of real nodes.
    """
    A, K, pairs = energy.shape
    k = min(pairs, K)
    if noise is None:
        top, position = stable_topk(energy, k)  # (A, K, k)
    else:  # equal perturbed scores mean nothing: any of them is as likely as the other
        position = (energy + noise[0]).topk(k)[1]
        top = energy.gather(-1, position)
    candidates = (top + base.unsqueeze(-1)).view(A, K * k)
    position = position.reshape(A, K * k)
    if equal_trees is not None:
        candidates = equal_trees.unite(candidates, position, ids)
    if noise is None:
        chosen = stable_topk(candidates, K)[1]  # (A, K)
    else:
        chosen = (candidates + noise[1][..., :k].reshape(A, K * k)).topk(K)[1]
    scores = candidates.gather(1, chosen)
    if may_die:
        chosen = torch.where(scores > -torch.inf, chosen, chosen[:, :1])
    if equal_trees is not None:
        equal_trees.keep(chosen, scores, ids, energy)
    return scores, chosen // k, position.gather(1, chosen)
