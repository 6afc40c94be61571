"""The gradient: from the beams alive at the end back to the leaves and the parameters.

Only the history of surviving beams matters: the merges in it are called survivors here, S of them. Merge m
made node `first + m`, and `Tape.links` chains the merges of a lineage, so a sum over a lineage is a sum over
a linked list: done for all merges at once, in log₂ n rounds of doubling.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

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

if TYPE_CHECKING:
    from beamtree.engine.equal_trees import EqualTrees


class DifferentiableCell(Protocol):
    def __call__(self, children: Tensor, keep: Tensor | None) -> Tensor: ...

    def recall(self, children: Tensor, keep: Tensor | None) -> None:
        """Compute again what the derivatives need, for the children (S, 2, d) and masks of all survivors,
        lowest first; before the first `pull`."""

    def pull(self, rows: slice, grad: Tensor) -> Tensor:
        """The vector–Jacobian product: ∂L of these rows' parents (m, d) → ∂L of their children (m, 2, d).

        Every row is pulled once; what it leaves behind makes the parameters' gradients."""

    def parameter_gradients(self, grad: Tensor) -> list[Tensor]:
        """∂L of all survivors (S, d) → ∂L of the parameters."""


class DifferentiableScore(Protocol):
    @property  # as a property, because only some scores take masks and a method has one signature
    def __call__(self) -> Callable[..., Tensor]: ...
    @property
    def pull(self) -> Callable[..., Tensor]: ...  # pairs, gradients, keep where a mask belongs to a pair
    def parameter_gradients(self) -> list[Tensor]: ...


class Gradients(NamedTuple):
    leaves: Tensor  # (B, n, d)
    cell: list[Tensor]
    scorer: list[Tensor]


@torch.no_grad()
def replay(
    tape: Tape,
    lengths: Tensor,  # (B,)
    grad_roots: Tensor,  # (B, K, d)
    grad_scores: Tensor,  # (B, K)
    cell: DifferentiableCell,
    score: DifferentiableScore,
    *,
    n: int,
    randomness: Randomness | None = None,
    inner: tuple[Tensor, Tensor] | None = None,  # lineages (B, K, n−1), ∂L of their nodes (B, K, n−1, d)
    equal_trees: "EqualTrees | None" = None,  # how the search united beams (`merge_equal_trees`)
    heights: Tensor | None = None,  # of all nodes, where the search has kept them (CUDA graphs)
) -> Gradients:
    B, K = tape.roots.shape
    d = tape.nodes.shape[1]
    wide = tape.relative.dtype
    timeline = Timeline(lengths, n, K)
    first = timeline.first

    if equal_trees is None:
        grad_lineages, beams_with = _lineage_sums(tape, grad_scores, first, timeline.made)
        survivors = beams_with.nonzero().squeeze(1)  # in the order they were made
    else:
        survivors, pairs, grad_pairs = equal_trees.differentiate(
            tape.roots, grad_scores.to(wide), tape.links, timeline
        )
    # A survivor has four numbers: its merge (`survivors`), its place among them in the order they were made,
    # its place lowest first (`by_height`), and its row of `grad`, which has the leaves first.
    S = survivors.shape[0]
    links = tape.links[survivors]
    place_of = torch.full((timeline.made + 1,), S, device=survivors.device)  # merge -> place among survivors
    place_of[survivors] = torch.arange(S, device=survivors.device)

    if heights is None:
        height = _heights(links[:, LEFT : RIGHT + 1], place_of, first)
    else:
        height = heights[first + survivors]
    by_height = survivors[height.argsort(stable=True)]  # so that a level is a slice of `grad`
    row_of = torch.arange(first + timeline.made, device=survivors.device)
    # From ids to rows of `grad`. Only leaves and survivors are ever asked for: a survivor's neighbours were
    # made by its own lineage, so they survive too.
    row_of[first + by_height] = torch.arange(first, first + S, device=survivors.device)

    grad = tape.nodes.new_zeros(first + S, d, dtype=wide)
    alive = tape.roots.view(-1).nonzero().squeeze(1)
    grad.index_add_(0, row_of[tape.roots.view(-1)[alive]], grad_roots.reshape(-1, d)[alive].to(wide))

    if inner is not None and inner[1].shape[2]:
        lineages, grad_inner = inner
        is_merge = lineages >= 0
        grad.index_add_(0, row_of[lineages[is_merge] + first], grad_inner[is_merge].to(wide))

    # What scores give to nodes must be there before the first level is pulled.
    if equal_trees is None:
        pairs, grad_pairs = _pair_gradients(
            tape, survivors, links, place_of, grad_lineages[survivors], timeline
        )
    for some, grad_some in zip(pairs.split(ROWS_AT_ONCE), grad_pairs.split(ROWS_AT_ONCE), strict=True):
        vectors = tape.nodes[some]
        if randomness is not None and randomness.per_pair and randomness.dropout > 0.0:
            pulled = score.pull(vectors, grad_some, pair_masks(randomness, timeline, some, vectors.dtype))
        else:
            pulled = score.pull(vectors, grad_some)
        grad.index_add_(0, row_of[some.view(-1)], pulled.reshape(-1, d).to(wide))

    children = tape.links[by_height, LEFT : RIGHT + 1]  # (S, 2) ids
    keep = _masks(randomness, timeline, by_height, children, tape.nodes.dtype)
    cell.recall(tape.nodes[children.view(-1)].view(S, 2, d), keep)
    child_rows = row_of[children]
    ends = height.bincount()[1:].cumsum(0).tolist() if S else []
    for start, end in reversed(list(pairwise([0, *ends]))):
        rows = slice(start, end)
        pulled = cell.pull(rows, grad[first + start : first + end])
        grad.index_add_(0, child_rows[rows].view(-1), pulled.reshape(-1, d).to(wide))

    grad_leaves = grad[1:first].view(B, n, d).to(tape.nodes.dtype, copy=True)  # not the storage of all
    return Gradients(grad_leaves, cell.parameter_gradients(grad[first:]), score.parameter_gradients())


def _masks(
    randomness: Randomness | None, timeline: Timeline, rows: Tensor, children: Tensor, dtype: torch.dtype
) -> Tensor | None:
    """The dropout masks these nodes were made with, drawn again."""
    if randomness is None or randomness.dropout == 0.0:
        return None
    if randomness.per_pair:
        return pair_masks(randomness, timeline, children, dtype)
    return node_masks(randomness, timeline, rows, dtype)


def _lineage_sums(tape: Tape, grad_scores: Tensor, first: int, made: int) -> tuple[Tensor, Tensor]:
    """For each merge the sum of ∂L/∂score over the surviving beams with it, and their number. (made,) each"""
    sums = tape.relative.new_zeros(made + 1, 2)  # the last row stands for "no merge"
    roots = tape.roots.view(-1)
    merged = (roots >= first).nonzero().squeeze(1)
    last = roots[merged] - first
    sums[last, 0] = grad_scores.reshape(-1)[merged].to(sums.dtype)
    sums[last, 1] = 1
    earlier = _earlier_merges(tape.links[:made, BEFORE] - first)
    while bool((earlier[:-1] < made).any()):
        sums.index_add_(0, earlier[:-1], sums[:-1].clone())
        earlier = earlier[earlier]
    grad_lineages, beams_with = sums[:-1].unbind(1)
    return grad_lineages, beams_with


def _earlier_merges(before: Tensor) -> Tensor:
    """The merge one step earlier in its beam, (m + 1,); m, the last entry, stands for "no merge"."""
    m = before.shape[0]
    return torch.cat((torch.where(before < 0, m, before), before.new_full((1,), m)))


def _heights(children: Tensor, place_of: Tensor, first: int) -> Tensor:
    """Heights of the survivors, given in the order they were made. (S,)

    In a loop: a height needs its children's first, and a deep tree is as many rounds as it has nodes.
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
    links: Tensor,
    place_of: Tensor,
    grad_lineages: Tensor,  # (S,) ∂L/∂score, summed over the beams with this merge
    timeline: Timeline,
) -> tuple[Tensor, Tensor]:
    """The pairs (P, 2) that survivors ended, and ∂L/∂e of each, (P,).

    A pair is in Z_t from the first step after its younger node was made, through the step that merges it or
    one of its nodes, so ∂score/∂e = [chosen] − Σ_life exp(e − log Z_t). A lineage ends every pair
    exactly once.
    """
    pairs = links[:, LEFT_NEIGHBOUR : RIGHT_NEIGHBOUR + 1].unfold(1, 2, 1)  # (S, 3, 2): left, chosen, right
    scores, log_z = tape.ended[survivors].split((LOG_Z, 1), 1)  # (S, 3), (S, 1)
    birth = timeline.born(pairs).amax(-1)  # (S, 3)
    life = timeline.step(survivors).unsqueeze(1) + 1 - birth
    before = links[:, BEFORE] - timeline.first
    earlier = _earlier_merges(torch.where(before < 0, -1, place_of[before.clamp(min=0)]))
    mass = _lineage_log_sum(-log_z.squeeze(1), earlier, life.clamp(min=0))  # (S, 3): log Σ_life 1/Z
    grad = -(scores + mass).exp()
    grad[:, 1] += 1
    grad *= grad_lineages.unsqueeze(1)
    exists = (scores > -torch.inf).nonzero(as_tuple=True)
    return pairs[exists], grad[exists]


def _lineage_log_sum(values: Tensor, earlier: Tensor, life: Tensor) -> Tensor:
    """log Σ exp(values) over the last `life` (S, m) merges of each lineage, this merge included. (S, m)

    A life is cut into windows of 1, 2, 4, … merges by the binary digits of its length; windows of the next
    size come from two of the last. Differences of prefix sums would cancel where log Z moves far.
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
