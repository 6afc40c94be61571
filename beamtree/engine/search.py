"""The search: from leaves to the K best beams, plus a record (`Tape`) for computing gradients in replay.py.

Three facts make it cheap and exact:
- A node never changes, so all beams share one table of node vectors. A beam is just a row of node ids, the
  scores of neighbouring pairs, and a score of its own.
- The score of a pair of nodes never changes. All pairs of leaves are scored once at the start; after that
  each merge scores only the two new pairs that it creates.
- Choosing has no gradient, so the search builds no autograd graph. replay.py differentiates the final beams
  afterwards.

The score of a beam is the log-probability of its merges: each step adds e − log Z, where e is the score of
the chosen pair and Z = Σ exp(e) over all pairs of the beam at that step. A step selects twice: first the best
K pairs of each beam, then the best K of all these candidates. Without noise the first selection only saves
work; with noise each draws its own.

There are more orders of merging than trees, so two of the K beams may hold the same tree, made in different
orders; equal_trees.py unites them if asked to.

`step` is the algorithm; its caller stores nodes and tape. `search` calls it step by step. It sorts sequences
by length, longest first, so that those still running are always a prefix of the batch and finished ones drop
off the end.

CUDA graphs (graphs/static_search.py) and `torch.export` (export.py) call the same `step` on lists of fixed
width, where finished sequences keep making merges that are never read. For the most common cases compiled.c
on a CPU and kernels/search/ on a GPU do what this file does.

Letters: B sequences, of which A are still running; K beams; n tokens of the longest sequence; d features;
`rows` = A·K beams in all; `width`, columns of a list. A slot is the place of a beam among the K of one step;
in the next step slot k may continue any other slot.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from beamtree.engine.choosing import Fence, choose, stable_topk
from beamtree.engine.equal_trees import EqualTrees
from beamtree.engine.randomness import Draws, Randomness, pair_masks
from beamtree.engine.record import NONE, ROWS_AT_ONCE, Compose, Score, Tape, Timeline


class Lists(NamedTuple):
    """The beams of A sequences between two steps: K rows per sequence, with an empty column at either end.

    `Beams` in record.py are the final ones."""

    ids: Tensor  # (A·K, width) of the remaining nodes, padded with NONE
    pair_scores: Tensor  # (A·K, width) of (ids[c], ids[c+1]), −inf where there is no pair
    scores: Tensor  # (A, K) of the beams minus that of the first, in slot 0; −inf for dead beams


class Made(NamedTuple):
    """The result of a step that the caller has to store, one row per beam; most of it goes to the tape."""

    parents: Tensor  # (A·K, d)
    source: Tensor  # (A·K, 1) the row of the beam that this one continues
    near: Tensor  # (A·K, 4) ids: left neighbour, left, right, right neighbour
    column: Tensor  # (A·K, 1) of the left child: position + 1, since the first column is empty
    ended: Tensor  # (A·K, 4) scores of the three pairs among `near`, which cease to exist; log Z
    lead: Tensor  # (A, 1) the new score of the first beam, which was subtracted from all


class Places:
    """Index tensors that every step needs, made once per search."""

    def __init__(
        self, sequences: int, K: int, width: int, device: torch.device, *, at_least_K: bool = False
    ) -> None:
        # at_least_K: the caller guarantees lists of width K or more; a traced width cannot be compared.
        self.K, self.at_least_K = K, at_least_K
        self.column = torch.arange(width, device=device)
        self.slot = torch.arange(K, device=device)
        self.row = torch.arange(sequences, device=device).unsqueeze(1) * K  # (sequences, 1) of the first slot
        self.around = torch.arange(-1, 3, device=device)  # offsets of the columns around a left child

    def most(self, width: int) -> int:
        """How many candidates a beam offers to the second selection; empty columns may be among them."""
        return self.K if self.at_least_K else min(width, self.K)


def step(
    lists: Lists,
    new_ids: Tensor,  # (A·K, 1) of the nodes this step makes
    columns: Tensor,  # (new width,) 0, 1, …: the columns of the new lists; one less than now, or as many
    gather: Callable[[Tensor], Tensor],  # ids (A·K, 4) -> vectors (A·K, 4, d)
    compose: Compose,
    score: Score,
    at: Places,
    *,
    noise: tuple[Tensor, Tensor] | None = None,  # (A, K, pairs), (A, K, K): moves the choice, not the scores
    given: Tensor | None = None,  # (A, 1) positions of a given tree, which replace the choice
    # Dropout masks: either of the nodes, or, where a pair is scored by its parent (BT-GRC), of the pairs.
    keep: Tensor | None = None,  # (A·K, hidden)
    mask_pairs: Callable[[Tensor], Tensor] | None = None,  # pairs of ids (rows, 2) -> masks (rows, hidden)
    fence: Fence | None = None,
    equal_trees: EqualTrees | None = None,  # if given, beams with the same tree are united
    may_die: bool = True,  # False promises that every beam has a pair, and that K beams survive
) -> tuple[Lists, Made]:
    """Merge one pair in every beam; return the new lists and what has to be stored."""
    ids, pair_scores, scores = lists
    A, K, (rows, width) = scores.shape[0], at.K, ids.shape
    by_beam = pair_scores.view(A, K, width)
    log_z = by_beam.double().logsumexp(-1).to(scores.dtype)  # in float32 it would depend on the padding
    if may_die:
        log_z = log_z.clamp(min=torch.finfo(log_z.dtype).min)  # −inf without pairs: −inf − −inf is NaN
    base = scores - log_z
    if given is None:
        scores, continued, column = choose(by_beam, base, at.most(width), noise, may_die, ids, equal_trees)
    else:
        continued, column = torch.zeros_like(given), given + 1
        scores = base + by_beam.gather(-1, column.unsqueeze(-1)).squeeze(-1)
    lead = scores[:, :1]  # the best score, unless noise changed the choice

    source = (continued + at.row[:A]).view(rows, 1)  # the row of the beam that each new one continues
    here = column.view(rows, 1)  # of the left child
    window = torch.add(here, source, alpha=width) + at.around  # (rows, 4) indices row·width + column
    near = ids.take(window)  # left neighbour, left, right, right neighbour
    vectors = gather(near)
    if mask_pairs is not None:
        keep = mask_pairs(near[:, 1:3])
    parents = compose(vectors[:, 1:3], keep).to(vectors.dtype)  # (rows, d)

    # The two new pairs: the left neighbour with the parent, and the parent with the right neighbour.
    new_pairs = torch.cat((vectors[:, 0], parents, parents, vectors[:, 3]), 1).view(2 * rows, 2, -1)
    is_none = near[:, ::3] == NONE  # (rows, 2)
    if mask_pairs is not None or fence is not None:
        pairs = torch.cat((near[:, :1], new_ids, new_ids, near[:, 3:]), 1).view(2 * rows, 2)
    new_scores = score(new_pairs, mask_pairs(pairs) if mask_pairs else None)
    if fence is not None:
        fence.enclose(new_ids.squeeze(1), *near[:, 1:3].unbind(1))
        is_none |= fence.crosses(pairs.view(A, 2 * K, 2)).view(rows, 2)
    new_scores = new_scores.to(scores.dtype).view(rows, 2).masked_fill(is_none, -torch.inf)
    if equal_trees is not None:
        equal_trees.enclose(new_ids.squeeze(1), *near[:, 1:3].unbind(1))

    # Each column of the new lists reads the same old column or, right of the left child, the next one.
    shift = torch.add(columns, source, alpha=width).add_(columns > here)
    after = Lists(
        ids.take(shift).scatter_(1, here, new_ids),
        pair_scores.take(shift).scatter_(1, here + at.around[:2], new_scores),
        scores - lead,
    )
    ended = torch.cat((pair_scores.take(window[:, :3]), log_z.take(source)), 1)
    return after, Made(parents, source, near, here, ended, lead)


def start(ids: Tensor, pair_scores: Tensor, K: int) -> Lists:
    """The lists before the first step, from leaf ids (B, width); only the first beam of each is alive."""
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
    merges: Tensor | None = None,  # (B, n−1): follow this tree, with one beam, instead of searching
    pins: Tensor | None = None,  # (B, P, 2): spans that every tree contains, −1 for none
    equal_trees: EqualTrees | None = None,  # if given, unites beams with the same tree
    may_forbid: bool = False,  # whether `score` may forbid a merge by −inf
) -> Tape:
    """Search for the `beam_size` best trees of every sequence and record what the gradient needs."""
    B, n, d = leaves.shape
    K = 1 if merges is not None else beam_size
    wide = torch.promote_types(leaves.dtype, torch.float32)
    timeline = Timeline(lengths, n, K)
    order, running, first, per_step = timeline.order, timeline.running, timeline.first, timeline.per_step
    capacity = per_step * (n - 1)

    nodes = leaves.new_empty(first + capacity, d)
    nodes[NONE] = 0
    nodes[1:first] = leaves.reshape(B * n, d)
    links = lengths.new_zeros(capacity, 6)
    ended = leaves.new_zeros(capacity, 4, dtype=wide)
    fence = Fence(pins, order, n, first + capacity) if pins is not None else None
    draws = Draws(randomness, order, K, n, leaves.dtype) if randomness is not None else None
    mask_pairs = None
    if randomness is not None and randomness.masks_pairs:
        mask_pairs = partial(pair_masks, randomness, timeline, dtype=leaves.dtype)

    def score_pairs(pairs: Tensor) -> Tensor:  # (rows, 2) ids -> (rows,)
        return score(torch.embedding(nodes, pairs), mask_pairs(pairs) if mask_pairs else None).to(wide)

    at = Places(B, K, n + 2, leaves.device)
    is_token = (at.column >= 1) & (at.column <= lengths[order, None])  # (B, n+2)
    ids = torch.where(is_token, order[:, None] * n + at.column, NONE)  # (B, n+2): NONE, leaves, NONE
    lists = start(ids, _score_leaves(ids, score_pairs, fence, wide), K)
    new_ids = torch.arange(first, first + capacity, device=leaves.device).unsqueeze(1)
    gather = partial(torch.embedding, nodes)

    offset = torch.zeros(B, 1, dtype=torch.float64, device=leaves.device)
    roots = lengths.new_full((B, K), NONE)
    roots[:, 0] = order * n + 1  # a single token is its own root
    final_scores, final_offset = lists.scores.clone(), offset.clone()
    # A slot is dead if a step has fewer than K candidates: in sequences of at most K tokens, or if merges are
    # forbidden. Otherwise the pairs of the only beam of the first step fill all K slots, and each beam has a
    # pair left to merge at every later step.
    may_die = may_forbid or fence is not None or min(lengths.tolist(), default=0) <= K
    leads = []  # the best score of each step
    A = B
    for t, still_running in enumerate(running):
        if still_running == 0:
            break
        if still_running < A:
            A = still_running
            offset = offset[:A]
            lists = Lists(lists.ids[: A * K], lists.pair_scores[: A * K], lists.scores[:A])
        begin, pairs = t * per_step, n - 1 - t  # pairs that the longest list has before this step
        rows = slice(begin, begin + A * K)
        lists, made = step(
            lists,
            new_ids[rows],
            at.column[: pairs + 2],  # as many nodes will be left as there are pairs; two empty columns
            gather,
            compose,
            score,
            at,
            noise=draws.gumbel(t, A, pairs) if draws is not None and draws.noisy and merges is None else None,
            given=None if merges is None else merges[order[:A], t].unsqueeze(1),
            keep=None if draws is None else draws.keep(t, A),
            mask_pairs=mask_pairs,
            fence=fence,
            equal_trees=equal_trees,
            may_die=may_die,
        )
        nodes[first:][rows] = made.parents
        # The id of the node that the continued beam made one step earlier.
        before = made.source + (first + begin - per_step) if t > 0 else torch.zeros_like(made.source)  # NONE
        torch.cat((before, made.near, made.column - 1), 1, out=links[rows])
        ended[rows] = made.ended
        offset = offset + made.lead
        leads.append(made.lead)
        go_on = running[t + 1] if t + 1 < len(running) else 0
        if go_on < A:
            done = slice(go_on, A)
            roots[done] = new_ids[rows].view(A, K)[done]
            final_scores[done], final_offset[done] = lists.scores[done], offset[done]
    if may_forbid:
        _refuse_if_stuck(leads, order)

    return Tape(nodes, links, ended, *rank_beams(roots, final_scores, final_offset, order))


def _refuse_if_stuck(leads: list[Tensor], order: Tensor) -> None:
    """Raise if at some step all beams of a sequence were left without a permitted merge."""
    if leads and (torch.cat(leads) == -torch.inf).any():
        refuse_stuck(torch.cat([order[: len(lead)][lead[:, 0] == -torch.inf] for lead in leads]))


def refuse_stuck(sequences: Tensor) -> None:
    """Raise if there are any: their beams were left without a permitted merge."""
    if sequences.numel():
        raise ValueError(
            f"the scorer forbids, by −inf, every merge that the beams of sequence {int(sequences.min())} "
            "have left: it must permit some tree; a low finite score in place of −inf always does"
        )


def _score_leaves(
    ids: Tensor, score_pairs: Callable[[Tensor], Tensor], fence: Fence | None, wide: torch.dtype
) -> Tensor:
    """The scores of all pairs of neighbouring leaves, (B, n+2), −inf where there is no pair."""
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
    """Roots and scores (B, K), best first, and offsets (B,), with sequences back in their original order."""
    scores, rank = stable_topk(scores, scores.shape[1])
    # Near-ties stay in order of their slots, so a later score may be larger by a rounding error.
    scores = scores.cummin(1).values
    roots = roots.gather(1, rank).masked_fill_(scores == -torch.inf, NONE)
    restore = order.argsort()
    return roots[restore], scores[restore], offset[restore, 0]
