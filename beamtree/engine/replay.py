"""The backward pass: from the final beams back to the leaves and the parameters.

Only merges in the lineage of a final beam have a gradient; they are called survivors, and S is their number.
Merge m made node `first + m`. `Tape.links` chains the merges of a lineage, so a sum over part of a lineage is
one over a linked list. It is computed for all survivors at once by log₂ n rounds of pointer doubling.

A level is the set of survivors of one height, the length of the longest path to a leaf. Parents are higher
than their children, so going from the highest level down, a node's gradient is complete when it is pulled.
"""

from itertools import pairwise
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from beamtree.engine.equal_trees import EqualTrees
from beamtree.engine.randomness import Randomness, node_masks, pair_masks
from beamtree.engine.record import (
    BEFORE,
    LEFT,
    LEFT_NEIGHBOUR,
    LOG_Z,
    RIGHT,
    RIGHT_NEIGHBOUR,
    ROWS_AT_ONCE,
    Tape,
    Timeline,
)


class DifferentiableCell(Protocol):
    def __call__(self, children: Tensor, keep: Tensor | None) -> Tensor: ...

    def recompute(self, children: Tensor, keep: Tensor | None) -> None:
        """Recompute what the derivatives need from the children (S, 2, d) and masks of all survivors, ordered
        by height. Called once, before the first `pull`."""

    def pull(self, rows: slice, grad: Tensor) -> Tensor:
        """Vector–Jacobian product: from ∂L of the parents of these rows of `recompute` (m, d) to ∂L of their
        children (m, 2, d).

        Every row is pulled exactly once; for each, the call stores what `parameter_gradients` needs."""

    def parameter_gradients(self, grad: Tensor) -> list[Tensor]:
        """From ∂L of all survivors (S, d) to ∂L of the parameters."""


class DifferentiableScore(Protocol):
    def __call__(self, pairs: Tensor, keep: Tensor | None = None) -> Tensor: ...

    def pull(self, pairs: Tensor, grad: Tensor, keep: Tensor | None = None) -> Tensor:
        """From ∂L/∂e of pairs (m, 2, d) to ∂L of the pairs, (m, 2, d); accumulates ∂L of the parameters."""

    def parameter_gradients(self) -> list[Tensor]:
        """What all pulls have accumulated."""


class Gradients(NamedTuple):
    leaves: Tensor  # (B, n, d)
    cell: list[Tensor]
    scorer: list[Tensor]


@torch.no_grad()
def replay(
    tape: Tape,
    lengths: Tensor,  # (B,)
    grad_roots: Tensor,  # (B, K, d), of the vectors of the roots
    grad_scores: Tensor,  # (B, K)
    grad_inner: Tensor,  # (B, K, n−1, d), of the nodes of the lineages; (B, K, 0, d) if nobody asked for them
    lineages: Tensor,  # (B, K, n−1), by `find_lineages`
    cell: DifferentiableCell,
    score: DifferentiableScore,
    *,
    n: int,
    randomness: Randomness | None = None,
    equal_trees: EqualTrees | None = None,  # as used in the search (`merge_equal_trees`)
    heights: Tensor | None = None,  # of all nodes, if the search recorded them (graphs/cell_graphs.py)
) -> Gradients:
    """Gradients of leaves, cell and scorer, given those of the roots and of the beams' scores."""
    B, K = tape.roots.shape
    d = tape.nodes.shape[1]
    wide = tape.relative.dtype
    timeline = Timeline(lengths, n, K)
    first = timeline.first

    is_merge = lineages >= 0
    if equal_trees is None:
        survivors = lineages[is_merge].unique()  # in the order they were made
    else:
        survivors, pairs, grad_pairs = equal_trees.differentiate(
            tape.roots, grad_scores.to(wide), tape.links, timeline
        )
    # Indices of a survivor:
    #   m            number of its merge; `survivors` in order of creation, `by_height` in order of height
    #   place_of[m]  place among the survivors in order of creation; the rows of `survivor_links` and `height`
    #   row_of[id]   row in `grad`: leaves as in `nodes`, then survivors in order of height
    S = survivors.shape[0]
    survivor_links = tape.links[survivors]
    place_of = torch.full((timeline.numbers + 1,), S, device=survivors.device)
    place_of[survivors] = torch.arange(S, device=survivors.device)

    if heights is None:
        height = _heights(survivor_links[:, LEFT : RIGHT + 1], place_of, first)
    else:
        height = heights[first + survivors]
    by_height = survivors[height.argsort(stable=True)]  # makes each level a slice of `grad`
    row_of = torch.arange(first + timeline.numbers, device=survivors.device)
    # Maps ids to rows of `grad`. Only leaves and survivors are ever looked up: the neighbours of a survivor
    # were made by its own lineage, so they are survivors too.
    row_of[first + by_height] = torch.arange(first, first + S, device=survivors.device)

    grad = tape.nodes.new_zeros(first + S, d, dtype=wide)
    alive = tape.roots.view(-1).nonzero().squeeze(1)
    grad.index_add_(0, row_of[tape.roots.view(-1)[alive]], grad_roots.reshape(-1, d)[alive].to(wide))

    if grad_inner.shape[2]:
        grad.index_add_(0, row_of[lineages[is_merge] + first], grad_inner[is_merge].to(wide))

    # The gradients that nodes receive from scores must be complete before the first level is pulled.
    if equal_trees is None:
        # ∂L/∂score, summed over the final beams that contain the merge
        grad_merges = tape.relative.new_zeros(S)
        of_beams = grad_scores.to(wide).unsqueeze(2).expand_as(lineages)
        grad_merges.index_add_(0, place_of[lineages[is_merge]], of_beams[is_merge])
        pairs, grad_pairs = _pair_gradients(tape, survivors, survivor_links, place_of, grad_merges, timeline)
    for some, grad_some in zip(pairs.split(ROWS_AT_ONCE), grad_pairs.split(ROWS_AT_ONCE), strict=True):
        vectors, keep = tape.nodes[some], None
        if randomness is not None and randomness.masks_pairs:
            keep = pair_masks(randomness, timeline, some, vectors.dtype)
        pulled = score.pull(vectors, grad_some, keep)
        grad.index_add_(0, row_of[some.view(-1)], pulled.reshape(-1, d).to(wide))

    children = tape.links[by_height, LEFT : RIGHT + 1]  # (S, 2) ids
    keep = _masks(randomness, timeline, by_height, children, tape.nodes.dtype)
    cell.recompute(tape.nodes[children.view(-1)].view(S, 2, d), keep)
    child_rows = row_of[children]
    ends = height.bincount()[1:].cumsum(0).tolist() if S else []
    for start, end in reversed(list(pairwise([0, *ends]))):
        level = slice(start, end)
        pulled = cell.pull(level, grad[first + start : first + end])
        grad.index_add_(0, child_rows[level].view(-1), pulled.reshape(-1, d).to(wide))

    grad_leaves = (
        grad[1:first].view(B, n, d).to(tape.nodes.dtype, copy=True)
    )  # no view, which would keep `grad`
    return Gradients(grad_leaves, cell.parameter_gradients(grad[first:]), score.parameter_gradients())


def _masks(
    randomness: Randomness | None, timeline: Timeline, merges: Tensor, children: Tensor, dtype: torch.dtype
) -> Tensor | None:
    """Draw the dropout masks of these merges again."""
    if randomness is None or randomness.dropout == 0.0:
        return None
    if randomness.masks_pairs:
        return pair_masks(randomness, timeline, children, dtype)
    return node_masks(randomness, timeline, merges, dtype)


def _earlier_merges(before: Tensor) -> Tensor:
    """For each of S merges, the previous merge of its beam, (S + 1,); the value S means "no merge"."""
    no_merge = before.shape[0]
    return torch.cat((torch.where(before < 0, no_merge, before), before.new_full((1,), no_merge)))


def _heights(children: Tensor, place_of: Tensor, first: int) -> Tensor:
    """Heights of the survivors in order of creation, (S,).

    A Python loop, because a height depends on those of the children: vectorised by levels, a deep tree would
    take as many rounds as it has nodes.
    """
    S = children.shape[0]
    places = torch.where(children < first, S, place_of[(children - first).clamp(min=0)])
    heights = [0] * (S + 1)  # the last entry is a leaf's
    for i, (left, right) in enumerate(places.tolist()):
        heights[i] = 1 + max(heights[left], heights[right])
    return torch.tensor(heights[:S], dtype=torch.int64, device=children.device)


def _pair_gradients(
    tape: Tape,
    survivors: Tensor,
    survivor_links: Tensor,  # (S, 6)
    place_of: Tensor,
    grad_merges: Tensor,  # (S,)
    timeline: Timeline,
) -> tuple[Tensor, Tensor]:
    """The pairs (P, 2) ended by survivors, and ∂L/∂e of each, (P,).

    A pair is part of Z_t from the step after its younger node was made up to and including the step that
    merges the pair or one of its nodes: its life. Hence ∂s/∂e = [chosen] − Σ_life exp(e − log Z_t) for the
    score s of a beam with this merge, and ∂L/∂e is this times the sum of ∂L/∂s over all such final beams,
    which have the same history up to this merge. A lineage ends each of its pairs exactly once; a pair that
    several lineages end gets the sum of what each contributes.
    """
    near = survivor_links[:, LEFT_NEIGHBOUR : RIGHT_NEIGHBOUR + 1]
    pairs = near.unfold(1, 2, 1)  # (S, 3, 2): left, chosen, right
    ended = tape.ended[survivors]
    pair_scores, log_z = ended[:, :LOG_Z], ended[:, LOG_Z]  # (S, 3), (S,)
    birth = timeline.born(pairs).amax(-1)  # (S, 3)
    life = timeline.step(survivors).unsqueeze(1) + 1 - birth
    before = survivor_links[:, BEFORE] - timeline.first
    earlier = _earlier_merges(torch.where(before < 0, -1, place_of[before.clamp(min=0)]))
    log_sum = _lineage_log_sum(-log_z, earlier, life)  # (S, 3): log Σ_life 1/Z_t
    grad = -(pair_scores + log_sum).exp()
    grad[:, 1] += 1
    grad *= grad_merges.unsqueeze(1)
    exists = (pair_scores > -torch.inf).nonzero(as_tuple=True)
    return pairs[exists], grad[exists]


def _lineage_log_sum(values: Tensor, earlier: Tensor, life: Tensor) -> Tensor:
    """log Σ exp(values) over the last `life` (S, m) merges of each lineage, this merge included; (S, m).

    The binary digits of `life` split it into windows of 1, 2, 4, … merges. Each window size is built from two
    windows of the previous size. Differences of prefix sums would cancel where log Z changes a lot.
    """
    window = torch.cat((values, values.new_full((1,), -torch.inf)))
    total = values.new_full(life.shape, -torch.inf)
    place = torch.arange(values.shape[0], device=values.device).unsqueeze(1).expand_as(life)
    while bool(life.any()):
        odd = life % 2 == 1
        total = torch.where(odd, torch.logaddexp(total, window[place]), total)
        place = torch.where(odd, earlier[place], place)
        window = torch.logaddexp(window, window[earlier])
        earlier = earlier[earlier]
        life = life // 2
    return total
