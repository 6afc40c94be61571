"""What is asked of a recursion, what a search leaves behind, and what can be read off that.

Ids: 0 is no node; leaf i of sequence b is 1 + b·n + i; the nodes made follow, `first + m` for merge m. Merges
are numbered by step t, in it by sequence (longest first), in it by slot, the index of the beam:
m = begins[t] + rank·K + slot (`Timeline`). `links` hold ids. A beam's lineage is the chain of merges that led
to it.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from beamtree.trees.beam_trees import BeamTrees

NONE = 0  # the id of no node
BEFORE, LEFT_NEIGHBOUR, LEFT, RIGHT, RIGHT_NEIGHBOUR, POSITION = range(6)  # columns of Tape.links
LOG_Z = 3  # the column of Tape.ended behind those of the three pairs

ROWS_AT_ONCE = 8192  # bounds what a batched computation holds beside the tape

# `keep` are masks of dropout: 0, or 1 / (1 − rate).
Compose = Callable[[Tensor, Tensor | None], Tensor]  # child pairs (rows, 2, d), keep -> parents (rows, d)
Score = Callable[..., Tensor]  # pairs (rows, 2, d), keep where a mask belongs to a pair -> scores (rows,)


class Tape(NamedTuple):
    """The search's record; row m of `links` and `ended` is merge m, which made node `first + m`.

    Scores are kept less the first beam's, so that float32 does not run out in long sequences. The softmax
    over beams does not see such a shift, so `offset` needs no gradient.
    """

    nodes: Tensor  # (1 + B·n + B·K·(n−1), d) row NONE is zero; what no step made is not set
    # (B·K·(n−1), 6) the node that its beam made before; left neighbour, left and right child, right
    # neighbour; the position merged
    links: Tensor
    ended: Tensor  # (B·K·(n−1), 4) scores of the pairs it ended: left, chosen, right; log Z
    roots: Tensor  # (B, K) ids, best beam first, NONE for dead beams
    relative: Tensor  # (B, K) accumulated scores less `offset`, −inf for dead beams
    offset: Tensor  # (B,) float64


class Options(NamedTuple):
    """What is asked of a recursion, in the order of the arguments of `beamtree::search`."""

    beam_size: int
    seed: Tensor | None  # of the noise and the masks, drawn for each call; None where nothing is random
    noisy: bool  # Gumbel noise on both selections of a step
    dropout: float
    merges: Tensor | None  # (B, n−1): follow this tree instead of searching
    pins: Tensor | None  # (B, P, 2): spans that every tree contains
    need_nodes: bool


class Beams(NamedTuple):
    """The beams alive at the end of a search, best first; `vectors`, `relative` and `nodes` carry gradient.

    That of `relative` is the gradient of the whole log-score: right wherever a shift of all beams alike
    changes nothing, as in a softmax.

    Fields:
        vectors: (B, K, d), the root of each beam's tree; zero for dead beams.
        relative: (B, K), the log-score of each beam less `offset`; −inf for dead beams.
        nodes: (B, K, n−1, d), the node made at each step, zero where none; (B, K, 0, d) if not asked for.
        offset: (B,), float64: what was taken off; without noise the log-score of the best beam.
        merges: (B, K, n−1), the position merged at each step, −1 where none.
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
        weights = self.relative.softmax(1).unsqueeze(-1)  # at least float32, and so the sum
        return (weights * self.vectors).sum(1).to(self.vectors.dtype)

    def trees(self) -> BeamTrees:
        """The beams as trees."""
        return BeamTrees(self.merges, self.relative, self.offset, self.lengths)


def empty_results(
    leaves: Tensor, lengths: Tensor, K: int, need_nodes: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Shapes and types of the first outputs of `beamtree::search`: vectors, relative, nodes and offset of
    `Beams`, the lineages (shaped as its merges), and the links."""
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
    """When, where and in which sequence a node was made, read off its id or its row of the tape."""

    def __init__(self, lengths: Tensor, n: int, K: int) -> None:
        self.n, self.K = n, K
        self.first = 1 + lengths.shape[0] * n  # the id of the first node made
        self.order = lengths.argsort(descending=True, stable=True)
        self.running = _running_counts(lengths.tolist(), n)  # how many sequences merge at each step
        counts = torch.tensor([0, *self.running], dtype=torch.int64, device=lengths.device)
        self.begins = (counts * K).cumsum(0)  # the first merge of each step, and the end
        self.made = K * sum(self.running)

    def step(self, rows: Tensor) -> Tensor:
        return torch.searchsorted(self.begins, rows, right=True) - 1

    def slot(self, rows: Tensor) -> Tensor:
        return rows % self.K

    def sequence(self, rows: Tensor) -> Tensor:
        return self.order[(rows - self.begins[self.step(rows)]) // self.K]

    def born(self, ids: Tensor) -> Tensor:
        """The first step at which a node's pairs may be chosen, and are in the softmax."""
        return torch.where(ids < self.first, 0, self.step(ids - self.first) + 1)

    def names(self, ids: Tensor) -> Tensor:
        """A number for each node of a sequence, whatever the padding and the rest of the batch: leaves count
        from 0, nodes made from 2³², so that no two share one."""
        rows = ids - self.first
        return torch.where(rows < 0, (ids - 1) % self.n, 2**32 + self.step(rows) * self.K + self.slot(rows))

    def owner(self, ids: Tensor) -> Tensor:
        """The sequence that a node, leaf or made, belongs to."""
        rows = ids - self.first
        return torch.where(rows < 0, (ids - 1) // self.n, self.sequence(rows.clamp(min=0)))


def nodes_before(source: Tensor, begins: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """The first row of each row's step, and the node that its beam made before, NONE for none.

    `source` (m, 1) says which row of its step a beam went on from. Sequences run longest first, so that is
    also its row in the step before. Rows behind the last step, where CUDA graphs have room, get NONE.
    """
    row = torch.arange(source.shape[0], device=source.device).unsqueeze(1)
    step = torch.searchsorted(begins, row, right=True) - 1
    before = first + begins[(step - 1).clamp(min=0)] + source
    is_merge_before = (step > 0) & (step < begins.shape[0] - 1)
    return begins[step], torch.where(is_merge_before, before, NONE)


def _running_counts(lengths: list[int], n: int) -> list[int]:
    ends = [0] * n
    for length in lengths:
        ends[length - 1] += 1
    counts, running = [], len(lengths)
    for t in range(n - 1):
        running -= ends[t]
        counts.append(running)
    return counts


def find_lineages(links: Tensor, roots: Tensor, lengths: Tensor, n: int) -> Tensor:
    """The merge made at each step in the history of each beam, (B, K, n−1) rows of `links`; −1 where none.

    The chain of merges before a root is unrolled by doubling: once the first L links of a chain are known,
    stepping L back from each of them gives the next L.
    """
    B, K = roots.shape
    first = 1 + B * n
    no_merge = links.shape[0]
    back = torch.cat((links[:, BEFORE] - first, links.new_full((1,), -1)))  # the last entry: no merge
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
    """Vectors of the nodes each beam made, (B, K, n−1, d), zero where none; (B, K, 0, d) if not wanted."""
    B, K, steps = lineages.shape
    if not wanted:
        return nodes.new_empty(B, K, 0, nodes.shape[1])
    first = 1 + B * (steps + 1)
    return nodes[torch.where(lineages < 0, NONE, lineages + first)]


def merge_positions(links: Tensor, lineages: Tensor) -> Tensor:
    """The position merged at each step of each beam, (B, K, n−1), −1 where none."""
    return torch.where(lineages < 0, -1, links[lineages, POSITION])
