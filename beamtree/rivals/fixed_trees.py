"""Encoders whose tree is known beforehand: the gold one, a balanced one, a left-to-right chain.

They show what the gated recursive cell does without any search.
"""

import torch
from torch import Tensor, nn

from beamtree.cell import GatedRecursiveCell
from beamtree.constraints import check_merges
from beamtree.forest import Forest, refuse_merges
from beamtree.rivals.given_tree import Plan, compose_nodes, compose_tree
from beamtree.rivals.tree_encoder import TreeEncoder, row, with_zero_gradients
from beamtree.tree import BeamTrees


class GoldTreeGRC(TreeEncoder):
    """Follows the trees it is given, `merges` (B, n−1) as in `BeamTrees.merges`, when tested too."""

    needs_merges = True

    def forward(
        self,
        x: Tensor,
        key_padding_mask: Tensor | None = None,
        *,
        merges: Tensor | None = None,
        need_trees: bool = False,
    ) -> Tensor | tuple[Tensor, BeamTrees]:
        leaves, lengths = self.read(x, key_padding_mask)
        merges = _check_given(merges, lengths, x.shape[1])
        plan = Plan.of(merges)
        root = compose_tree(leaves, plan, self.cell, self.cell.draw_keep(len(plan.children)))
        return (root, BeamTrees.from_merges(merges, lengths)) if need_trees else root

    def forest(
        self, x: Tensor, key_padding_mask: Tensor | None = None, *, merges: Tensor | None = None
    ) -> Forest:
        leaves, lengths = self.read(x, key_padding_mask)
        return _follow(leaves, lengths, _check_given(merges, lengths, x.shape[1]), self.cell)


class BalancedTreeGRC(TreeEncoder):
    """Neighbours meet two by two until one node is left; an odd one out moves up as it is."""

    def forward(
        self, x: Tensor, key_padding_mask: Tensor | None = None, *, need_trees: bool = False
    ) -> Tensor | tuple[Tensor, BeamTrees]:
        nodes, lengths = self.read(x, key_padding_mask)
        n, width = x.shape[1], lengths
        while nodes.shape[1] > 1:
            if nodes.shape[1] % 2:
                nodes = nn.functional.pad(nodes, (0, 0, 0, 1))
            left, right = nodes[:, 0::2], nodes[:, 1::2]  # (B, pairs, d)
            parents = self.cell(left, right, self.cell.draw_keep(*left.shape[:2]))
            first = torch.arange(0, nodes.shape[1], 2, device=x.device)
            is_pair = first + 1 < width[:, None]  # (B, pairs)
            nodes = torch.where(is_pair.unsqueeze(-1), parents, left)
            width = (width + 1) // 2
        root = nodes[:, 0]
        if n == 1:
            root = with_zero_gradients(root, self.cell.parameters())
        return (root, BeamTrees.from_merges(_balanced_merges(lengths, n), lengths)) if need_trees else root

    def forest(
        self, x: Tensor, key_padding_mask: Tensor | None = None, *, merges: Tensor | None = None
    ) -> Forest:
        refuse_merges(merges)
        leaves, lengths = self.read(x, key_padding_mask)
        return _follow(leaves, lengths, _balanced_merges(lengths, x.shape[1]), self.cell)


class RecurrentGRC(TreeEncoder):
    """h_t = cell(h_{t−1}, leaf_t) from a trained h_0; the last h is the sentence.

    `bidirectional` adds a second cell that reads from right to left, and a linear map of both ends.
    """

    def __init__(
        self,
        d_model: int,
        *,
        input_size: int | None = None,
        bidirectional: bool = False,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(d_model, input_size=input_size, dropout=dropout, device=device, dtype=dtype)
        self.initial = nn.Parameter(torch.zeros(d_model, device=device, dtype=dtype))
        self.bidirectional = bidirectional
        if bidirectional:
            self.backward_cell = GatedRecursiveCell(d_model, dropout=dropout, device=device, dtype=dtype)
            self.backward_initial = nn.Parameter(torch.zeros(d_model, device=device, dtype=dtype))
            self.out = nn.Linear(2 * d_model, d_model, device=device, dtype=dtype)

    def forward(
        self, x: Tensor, key_padding_mask: Tensor | None = None, *, need_trees: bool = False
    ) -> Tensor | tuple[Tensor, BeamTrees]:
        leaves, lengths = self.read(x, key_padding_mask)
        last = _read_chain(self.cell, self.initial, leaves, lengths)
        if self.bidirectional:
            positions = lengths[:, None] - 1 - torch.arange(leaves.shape[1], device=x.device)
            turned = leaves.gather(1, positions.clamp(min=0).unsqueeze(-1).expand_as(leaves))
            first = _read_chain(self.backward_cell, self.backward_initial, turned, lengths)
            last = self.out(torch.cat((last, first), -1)).to(last.dtype)
        if not need_trees:
            return last
        step = torch.arange(x.shape[1] - 1, device=x.device)
        merges = torch.where(step < lengths[:, None] - 1, 0, -1)
        return last, BeamTrees.from_merges(merges, lengths)


def _check_given(merges: Tensor | None, lengths: Tensor, n: int) -> Tensor:
    if merges is None:
        raise ValueError("merges must hold the trees to follow, (B, n-1): this encoder finds none itself")
    check_merges(merges, lengths, n=n)
    return merges


def _follow(leaves: Tensor, lengths: Tensor, merges: Tensor, cell: GatedRecursiveCell) -> Forest:
    plan = Plan.of(merges)
    composed = compose_nodes(leaves, plan, cell, cell.draw_keep(len(plan.children)))
    nodes = composed[plan.made].masked_fill((plan.made < 0).unsqueeze(-1), 0.0)  # (B, n−1, d)
    roots, trees = composed[plan.roots], BeamTrees.from_merges(merges, lengths)
    return Forest(leaves, nodes.unsqueeze(1), roots.unsqueeze(1), trees)


def _read_chain(cell: GatedRecursiveCell, initial: Tensor, leaves: Tensor, lengths: Tensor) -> Tensor:
    B, n, d = leaves.shape
    state, states = initial.expand(B, d), []
    keep = cell.draw_keep(n, B)
    for t, leaf in enumerate(leaves.unbind(1)):
        state = cell(state, leaf, None if keep is None else keep[t])
        states.append(state)
    return row(torch.stack(states, 1), lengths - 1)


def _balanced_merges(lengths: Tensor, n: int) -> Tensor:
    """Level by level, left to right: a level of w nodes merges at 0, 1, …, w//2 − 1."""
    merges = torch.full((len(lengths), n - 1), -1, dtype=torch.int64)
    for b, width in enumerate(lengths.tolist()):
        positions: list[int] = []
        while width > 1:
            positions += range(width // 2)
            width = (width + 1) // 2
        merges[b, : len(positions)] = torch.tensor(positions, dtype=torch.int64)
    return merges.to(lengths.device)
