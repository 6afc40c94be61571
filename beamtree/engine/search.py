"""The search: leaves → the K best beams, and a record (`Tape`) from which replay.py computes the gradient.

Three facts make it cheap and exact. A node never changes, so all beams share one table of vectors, and a beam
is a row of node ids with the scores of the pairs between them. A pair's score never changes, so after the
pairs of leaves only the two that a merge makes are scored, in the beam that makes it. Choosing has no
gradient, so no graph is built; replay.py differentiates the survivors.

A beam's score is the log-probability of its merges: at each step it adds e − log Z, where e is the score of
the pair chosen and Z = Σ exp(e) over all pairs that the beam has then. A step selects twice: the best K pairs
of each beam, then the best K of these candidates.

`step` is the idea, and stores nothing. `search` calls it with its sequences longest first: those still
running are then a prefix, and a finished one is simply left behind. With lists of a fixed width, as CUDA
graphs (graphs/static_search.py) and `torch.export` (export.py) need them, finished sequences go on merging
nothing, and nobody reads them.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from beamtree.engine.choosing import Fence, choose, stable_topk
from beamtree.engine.randomness import Draws, Randomness, pair_masks
from beamtree.engine.record import NONE, ROWS_AT_ONCE, Compose, Score, Tape, Timeline, nodes_before

if TYPE_CHECKING:
    from beamtree.engine.equal_trees import EqualTrees


class Lists(NamedTuple):
    """The beams of A sequences between two steps, K rows a sequence, with an empty column on either side."""

    ids: Tensor  # (A·K, width) of the nodes still there, NONE around them
    pair_scores: Tensor  # (A·K, width) of (ids[c], ids[c+1]), −inf where that is no pair
    scores: Tensor  # (A, K) of the beams, less the first one's; −inf for dead beams


class Made(NamedTuple):
    """What a step leaves to be stored, a row a beam; most of it is columns of the tape."""

    parents: Tensor  # (A·K, d)
    source: Tensor  # (A·K, 1) the row of the beam that went on
    near: Tensor  # (A·K, 4) ids: left neighbour, left, right, right neighbour
    column: Tensor  # (A·K, 1) of the left child: its position + 1, as the first column is empty
    ended: Tensor  # (A·K, 3) scores of the pairs between those
    log_z: Tensor  # (A, K) of the beams before the step, by their own rows
    lead: Tensor  # (A, 1) what the first beam's score has become, before it is taken off all


class Places:
    """Index tensors that every step needs, made once for a search."""

    def __init__(
        self, sequences: int, K: int, width: int, device: torch.device, *, roomy: bool = False
    ) -> None:
        # roomy: the caller promises lists at least K wide, as a traced width cannot be compared with K.
        self.K, self.roomy = K, roomy
        self.column = torch.arange(width, device=device)
        self.slot = torch.arange(K, device=device)
        self.row = torch.arange(sequences, device=device).unsqueeze(1) * K  # (sequences, 1) of the first slot
        self.around = torch.arange(-1, 3, device=device)  # columns near a left child's

    def most(self, width: int) -> int:
        """How many pairs of one beam may survive a step."""
        return self.K if self.roomy else min(width, self.K)


def step(
    lists: Lists,
    new_ids: Tensor,  # (A·K, 1) of the nodes that are made
    columns: Tensor,  # (new width,) 0, 1, …: which columns of the lists now the new ones come from
    gather: Callable[[Tensor], Tensor],  # ids (A·K, 4) -> vectors (A·K, 4, d)
    compose: Compose,
    score: Score,
    at: Places,
    *,
    noise: tuple[Tensor, Tensor] | None = None,  # (A, K, pairs), (A, K, K): moves the choice, not the scores
    followed: Tensor | None = None,  # (A, 1) positions of a given tree, instead of a choice
    keep: Tensor | None = None,  # (A·K, hidden) dropout masks of the nodes
    mask_pairs: Callable[[Tensor], Tensor] | None = None,  # pairs of ids (rows, 2) -> their dropout masks
    fence: Fence | None = None,
    equal_trees: "EqualTrees | None" = None,  # where beams with the same tree are united; off by default
    may_die: bool = True,  # whether some beam may be dead, or some sequence finished
) -> tuple[Lists, Made]:
    """One merge in every beam: the lists after it, and what it leaves to be stored."""
    ids, pair_scores, scores = lists
    A, K, (rows, width) = scores.shape[0], at.K, ids.shape
    by_beam = pair_scores.view(A, K, width)
    log_z = by_beam.double().logsumexp(-1).to(scores.dtype)  # (A, K); in float64: padding must not change it
    if may_die:
        log_z = log_z.clamp(min=torch.finfo(log_z.dtype).min)  # −inf without pairs, which would make NaN
    base = scores - log_z
    if followed is None:
        scores, slot, column = choose(by_beam, base, at.most(width), noise, may_die, ids, equal_trees)
    else:
        slot, column = torch.zeros_like(followed), followed + 1
        scores = base + by_beam.gather(-1, column.unsqueeze(-1)).squeeze(-1)
    lead = scores[:, :1]  # the best, unless noise has moved the choice

    source = (slot + at.row[:A]).view(rows, 1)  # the row of the beam that each new one goes on from
    here = column.view(rows, 1)  # of the left child
    window = torch.add(here, source, alpha=width) + at.around  # (rows, 4)
    near = ids.take(window)  # left neighbour, left, right, right neighbour
    vectors = gather(near)
    if mask_pairs is not None:
        keep = mask_pairs(near[:, 1:3])
    parents = compose(vectors[:, 1:3], keep).to(vectors.dtype)  # (rows, d)

    # The two pairs of the parent: with the neighbour on its left, and with the one on its right.
    new_pairs = torch.cat((vectors[:, 0], parents, parents, vectors[:, 3]), 1).view(2 * rows, 2, -1)
    is_none = near[:, ::3] == NONE  # (rows, 2)
    if mask_pairs is None and fence is None:
        new_scores = score(new_pairs)
    else:
        pairs = torch.cat((near[:, :1], new_ids, new_ids, near[:, 3:]), 1).view(2 * rows, 2)
        new_scores = score(new_pairs) if mask_pairs is None else score(new_pairs, mask_pairs(pairs))
        if fence is not None:
            fence.enclose(new_ids.squeeze(1), *near[:, 1:3].unbind(1))
            is_none |= fence.crosses(pairs.view(A, 2 * K, 2)).view(rows, 2)
    new_scores = new_scores.to(scores.dtype).view(rows, 2).masked_fill(is_none, -torch.inf)
    if equal_trees is not None:
        equal_trees.enclose(new_ids.squeeze(1), *near[:, 1:3].unbind(1))

    shift = torch.add(columns, source, alpha=width).add_(columns > here)  # the right child's place closed
    after = Lists(
        ids.take(shift).scatter_(1, here, new_ids),
        pair_scores.take(shift).scatter_(1, here + at.around[:2], new_scores),
        scores - lead,
    )
    ended = pair_scores.take(window[:, :3])
    return after, Made(parents, source, near, here, ended, log_z, lead)


def start(ids: Tensor, pair_scores: Tensor, K: int) -> Lists:
    """The lists before the first step, of leaves (B, width): the first beam of each sequence is alive."""
    B, width = ids.shape
    scores = pair_scores.new_full((B, K), -torch.inf)
    scores[:, 0] = 0
    return Lists(ids.repeat(1, K).view(-1, width), pair_scores.repeat(1, K).view(-1, width), scores)


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
    wide = torch.promote_types(leaves.dtype, torch.float32)
    timeline = Timeline(lengths, n, K)
    order, running, first = timeline.order, timeline.running, timeline.first
    capacity = B * K * (n - 1)

    nodes = leaves.new_empty(first + capacity, d)
    nodes[NONE] = 0
    nodes[1:first] = leaves.reshape(B * n, d)
    fence = Fence(pins, order, n, first + capacity) if pins is not None else None
    draws = Draws(randomness, order, K, n, leaves.dtype) if randomness is not None else None
    mask_pairs = None
    if randomness is not None and randomness.per_pair and randomness.dropout > 0.0:
        mask_pairs = partial(pair_masks, randomness, timeline, dtype=leaves.dtype)

    def score_pairs(pairs: Tensor) -> Tensor:  # (rows, 2) ids -> (rows,)
        vectors = torch.embedding(nodes, pairs)
        return (score(vectors) if mask_pairs is None else score(vectors, mask_pairs(pairs))).to(wide)

    at = Places(B, K, n + 2, leaves.device)
    is_token = (at.column >= 1) & (at.column <= lengths[order, None])  # (B, n+2)
    ids = torch.where(is_token, order[:, None] * n + at.column, NONE)  # (B, n+2): none, leaves, none
    lists = start(ids, _score_leaves(ids, score_pairs, fence, wide), K)
    new_ids = torch.arange(first, first + capacity, device=leaves.device).unsqueeze(1)
    gather = partial(torch.embedding, nodes)

    offset = torch.zeros(B, 1, dtype=torch.float64, device=leaves.device)
    roots = lengths.new_full((B, K), NONE)
    roots[:, 0] = order * n + 1  # where there is no merge the root is the leaf
    final_scores, final_offset = lists.scores.clone(), offset.clone()
    # A sequence of at most K tokens has fewer than K first merges, so some of its beams are dead.
    may_die = fence is not None or min(lengths.tolist(), default=0) <= K
    history = []  # the columns of the tape
    begin, A = 0, B
    for t, still_running in enumerate(running):
        if still_running == 0:
            break
        if still_running < A:
            A = still_running
            offset = offset[:A]
            lists = Lists(lists.ids[: A * K], lists.pair_scores[: A * K], lists.scores[:A])
        end, pairs = begin + A * K, n - 1 - t
        lists, made = step(
            lists,
            new_ids[begin:end],
            at.column[: pairs + 2],
            gather,
            compose,
            score,
            at,
            noise=draws.gumbel(t, A, pairs) if draws is not None and draws.noisy and merges is None else None,
            followed=None if merges is None else merges[order[:A], t].unsqueeze(1),
            keep=None if draws is None else draws.keep(t, A),
            mask_pairs=mask_pairs,
            fence=fence,
            equal_trees=equal_trees,
            may_die=may_die,
        )
        nodes[first + begin : first + end] = made.parents
        offset = offset + made.lead
        history.append(made[1:6])
        begin = end
        go_on = running[t + 1] if t + 1 < len(running) else 0
        if go_on < A:
            done = slice(go_on, A)
            roots[done] = new_ids[end - A * K : end].view(A, K)[done]
            final_scores[done], final_offset[done] = lists.scores[done], offset[done]

    links = lengths.new_zeros(capacity, 6)
    ended = leaves.new_zeros(capacity, 4, dtype=wide)
    if history:
        source, near, column, scores, log_z = (torch.cat(part) for part in zip(*history, strict=True))
        first_of_step, before = nodes_before(source, timeline.begins, first)
        torch.cat((before, near, column - 1), 1, out=links[:begin])
        # log Z is kept by the rows of the beams before a step, so it is looked up by where they went on from
        torch.cat((scores, log_z.take(first_of_step + source)), 1, out=ended[:begin])
    return Tape(nodes, links, ended, *rank_beams(roots, final_scores, final_offset, order))


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
    scores = scores.cummin(1).values  # near-ties keep their order, so that a later one may be larger by a bit
    roots = roots.gather(1, rank).masked_fill_(scores == -torch.inf, NONE)
    restore = order.argsort()
    return roots[restore], scores[restore], offset[restore, 0]
