"""The options of a recursion, the record that a search leaves, and functions that read this record.

Node ids: 0 means "no node"; leaf i of sequence b is 1 + b·n + i, both counted from 0; merge m makes node
`first + m`, first = 1 + B·n. Merges are numbered by step, then by sequence, longest first, then by slot:

    m = (step·B + rank)·K + slot

The rank of a sequence is its place in `Timeline.order`, the slot of a beam its place among the K of a step.
A sequence that is finished leaves its numbers unused. The lineage of a beam is the chain of merges that led
to it, as numbers m.

For example, two sequences of 3 and 4 tokens, K = 2: leaves 1 to 8 (4 is padding), first = 9. The second
sequence is longer and has rank 0. Step 0 makes its nodes 9 and 10, say of (6, 7) in slot 0 and of (5, 6) in
slot 1, and 11 and 12 of the first sequence. The beams of the second are now 5 9 8 and 10 7 8. If step 1
continues slot 0 twice, with 13 of (9, 8) and 14 of (5, 9), node 10 belongs to no lineage any more, and the
rows of `links` for 13 and 14 begin with 9. Nodes 15 and 16 end the first sequence; step 2 makes 17 and 18
of the second. Merges 10 and 11 of the first sequence (nodes 19 and 20) do not exist.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from beamtree.trees.beam_trees import BeamTrees

NONE = 0  # the id of no node
BEFORE, LEFT_NEIGHBOUR, LEFT, RIGHT, RIGHT_NEIGHBOUR, POSITION = range(6)  # columns of Tape.links
LOG_Z = 3  # the column of Tape.ended after the three pair scores

ROWS_AT_ONCE = 8192  # pairs that are scored or differentiated at once

# `keep` is a dropout mask: 0 or 1 / (1 − rate).
Compose = Callable[[Tensor, Tensor | None], Tensor]  # child pairs (rows, 2, d), keep -> parents (rows, d)
Score = Callable[[Tensor, Tensor | None], Tensor]  # pairs (rows, 2, d), keep if pairs have masks -> (rows,)


class Tape(NamedTuple):
    """The record of a search. Row m of `links` and `ended` describes merge m, which made node `first + m`.

    Scores are stored minus that of slot 0 (`offset`), because float32 cannot resolve the totals of long
    sequences. The softmax over beams is invariant to this shift, so `offset` needs no gradient.
    """

    nodes: Tensor  # (1 + B·n + B·K·(n−1), d) row NONE is zero; rows of unused numbers are uninitialised
    # (B·K·(n−1), 6) ids: the node that the beam made before, left neighbour, left child, right child, right
    # neighbour; then the position merged
    links: Tensor
    # (B·K·(n−1), 4) scores of the three pairs that the merge ends: left, chosen, right; log Z of the beam
    # that it continues, before this step
    ended: Tensor
    roots: Tensor  # (B, K) ids, best beam first (with noise it need not be slot 0), NONE for dead beams
    relative: Tensor  # (B, K) accumulated scores minus `offset`, −inf for dead beams
    offset: Tensor  # (B,) float64


class Options(NamedTuple):
    """The options of a recursion, in the order of the arguments of `beamtree::search`."""

    beam_size: int
    seed: Tensor | None  # seed of noise and dropout masks, new for each call; None if nothing is random
    noisy: bool  # Gumbel noise on both selections of a step
    dropout: float
    merges: Tensor | None  # (B, n−1): follow this tree instead of searching
    pins: Tensor | None  # (B, P, 2): spans that every tree contains
    need_nodes: bool


class Beams(NamedTuple):
    """The final beams of a search, best first; `vectors`, `relative` and `nodes` carry gradients.

    The gradient of `relative` is that of the full log-score. It is right for every function that does not
    change when all beams are shifted by the same amount, such as a softmax.

    Fields:
        vectors: (B, K, d), the root of each beam's tree; zero for dead beams.
        relative: (B, K), the log-score of each beam minus `offset`; −inf for dead beams.
        nodes: (B, K, n−1, d), the node made at each step, zero if none; (B, K, 0, d) if not requested.
        offset: (B,), float64, the amount subtracted; without noise, the log-score of the best beam.
        merges: (B, K, n−1), the position merged at each step, −1 if none.
        lengths: (B,), the number of tokens.
    """

    vectors: Tensor
    relative: Tensor
    nodes: Tensor
    offset: Tensor
    merges: Tensor
    lengths: Tensor

    def root(self) -> Tensor:
        """The roots averaged by the softmax of the beams' scores, (B, d)."""
        weights = self.relative.softmax(1).unsqueeze(-1)  # at least float32, as is the sum
        return (weights * self.vectors).sum(1).to(self.vectors.dtype)

    def trees(self) -> BeamTrees:
        """The beams as trees."""
        return BeamTrees(self.merges, self.relative, self.offset, self.lengths)


def empty_results(
    leaves: Tensor, lengths: Tensor, K: int, need_nodes: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Empty tensors like the first outputs of `beamtree::search`: vectors, relative, nodes and offset as in
    `Beams`, then lineages (with the shape of merges) and links."""
    B, n, d = leaves.shape
    return (
        leaves.new_empty(B, K, d),
        leaves.new_empty(B, K, dtype=torch.promote_types(leaves.dtype, torch.float32)),
        leaves.new_empty(B, K, n - 1 if need_nodes else 0, d),
        leaves.new_empty(B, dtype=torch.float64),
        lengths.new_empty(B, K, n - 1),
        lengths.new_empty(B * K * (n - 1), 6),
    )


class Timeline:
    """Computes step, slot and sequence of a merge from its number, and those of a node from its id."""

    def __init__(self, lengths: Tensor, n: int, K: int) -> None:
        B = lengths.shape[0]
        self.n, self.K = n, K
        self.first = 1 + B * n  # the id of the first node made
        self.order = lengths.argsort(descending=True, stable=True)
        merges_of_one = torch.arange(1, n, device=lengths.device).unsqueeze(1)  # after each step
        self.running = (lengths > merges_of_one).sum(1).tolist()  # how many sequences merge at each step
        self.per_step = B * K  # numbers, used or not
        self.numbers = self.per_step * sum(map(bool, self.running))

    def step(self, merges: Tensor) -> Tensor:
        return merges // self.per_step

    def slot(self, merges: Tensor) -> Tensor:
        return merges % self.K

    def sequence(self, merges: Tensor) -> Tensor:
        return self.order[merges % self.per_step // self.K]

    def born(self, ids: Tensor) -> Tensor:
        """The first step at which pairs with this node can be chosen and count in the softmax."""
        return torch.where(ids < self.first, 0, self.step(ids - self.first) + 1)

    def number_in_sequence(self, ids: Tensor) -> Tensor:
        """A number for each node that is unique in its sequence, however long the padding: leaves count from
        0, merged nodes from 2³²."""
        merges = ids - self.first
        number = self.step(merges) * self.K + self.slot(merges)
        return torch.where(merges < 0, (ids - 1) % self.n, 2**32 + number)

    def owner(self, ids: Tensor) -> Tensor:
        """The sequence to which a leaf or merged node belongs."""
        merges = ids - self.first
        return torch.where(merges < 0, (ids - 1) // self.n, self.sequence(merges.clamp(min=0)))


def find_lineages(links: Tensor, roots: Tensor, lengths: Tensor, n: int) -> Tensor:
    """The merge made at each step in the history of each beam, (B, K, n−1) rows of `links`; −1 if none.

    Unrolls the chain of merges before each root by doubling: given the newest L merges of a chain, going L
    steps back from each of them yields the next L.
    """
    B, K = roots.shape
    first = 1 + B * n
    no_merge = links.shape[0]
    back = torch.cat((links[:, BEFORE] - first, links.new_full((1,), -1)))  # last entry: "no merge"
    back = torch.where(back < 0, no_merge, back)
    last = torch.where(roots < first, no_merge, roots - first)
    chain = last.unsqueeze(-1)  # (B, K, L), newest first
    while chain.shape[-1] < n - 1:
        chain = torch.cat((chain, back[chain]), -1)
        back = back[back]
    newest_first = (lengths - 2).view(B, 1, 1) - torch.arange(n - 1, device=links.device)  # (B, 1, n−1)
    by_step = chain.gather(-1, newest_first.clamp(min=0).expand(B, K, n - 1))
    return torch.where((newest_first < 0) | (by_step == no_merge), -1, by_step)


def inner_nodes(nodes: Tensor, lineages: Tensor, wanted: bool) -> Tensor:
    """The vectors of the nodes each beam made, (B, K, n−1, d), zero if none; (B, K, 0, d) if not wanted."""
    B, K, steps = lineages.shape
    if not wanted:
        return nodes.new_empty(B, K, 0, nodes.shape[1])
    first = 1 + B * (steps + 1)
    return nodes[torch.where(lineages < 0, NONE, lineages + first)]


def merge_positions(links: Tensor, lineages: Tensor) -> Tensor:
    """The position merged at each step of each beam, (B, K, n−1), −1 if none."""
    return torch.where(lineages < 0, -1, links[lineages, POSITION])
