"""Encoders whose tree is known in advance: a gold tree, a balanced one, a left-to-right chain.

They show what the gated recursive cell does without any search. A node waits only for its children, so trees
are composed level by level, all nodes of one height in the batch at once, in O(n·d) memory.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from beamtree.engine.built_in_parts import GatedCell
from beamtree.kernels.fused_recursion import supports
from beamtree.kernels.given import compose_levels
from beamtree.kernels.weights import CellWeights
from beamtree.parts.cell import GatedRecursiveCell
from beamtree.pytorch.derivatives import refuse_double_backward, refuse_forward_mode
from beamtree.pytorch.precision import product_dtype, without_autocast
from beamtree.pytorch.tracing import check_exported, follow_merges, is_exporting, runs_eagerly
from beamtree.trees.beam_trees import BeamTrees
from beamtree.trees.constraints import check_merges
from beamtree.trees.forest import Forest, refuse_merges
from beamtree.trees.structure import Levels
from beamtree.zoo.tree_encoder import TreeEncoder, row, with_zero_gradients

LEVELS = 40  # of a balanced tree: more than any sequence needs


class GoldTreeGRC(TreeEncoder):
    """Follows given trees, `merges` (B, n−1) as in `BeamTrees.merges`, in training and in evaluation."""

    needs_merges = True

    def forward(
        self,
        x: Tensor,
        key_padding_mask: Tensor | None = None,
        *,
        merges: Tensor | None = None,
        need_trees: bool = False,
    ) -> Tensor | tuple[Tensor, BeamTrees]:
        check_exported(self, need_trees)
        leaves, lengths = self.read(x, key_padding_mask)
        merges = _check_given(merges, lengths, x.shape[1])
        root = follow(leaves, merges, self.cell).root_vectors()
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
        check_exported(self, need_trees)
        leaves, lengths = self.read(x, key_padding_mask)
        if is_exporting():
            leaves = nn.functional.pad(leaves, (0, 0, 0, 1))  # n − 1 merges would be specialised to n > 2
        if is_exporting() or has_levels(leaves, self.cell):
            root = follow(leaves, _balanced_merges(lengths, leaves.shape[1]), self.cell).root_vectors()
        else:
            root = self._meet(leaves, lengths)
        if not need_trees:
            return root
        return root, BeamTrees.from_merges(_balanced_merges(lengths, x.shape[1]), lengths)

    @runs_eagerly
    def _meet(self, nodes: Tensor, width: Tensor) -> Tensor:
        n = nodes.shape[1]
        while nodes.shape[1] > 1:
            if nodes.shape[1] % 2:
                nodes = nn.functional.pad(nodes, (0, 0, 0, 1))
            left, right = nodes[:, 0::2], nodes[:, 1::2]  # (B, pairs, d)
            parents = self.cell(left, right, self.cell.draw_keep(*left.shape[:2]))
            first = torch.arange(0, nodes.shape[1], 2, device=nodes.device)
            is_pair = first + 1 < width[:, None]  # (B, pairs)
            nodes = torch.where(is_pair.unsqueeze(-1), parents, left)
            width = (width + 1) // 2
        root = nodes[:, 0]
        return with_zero_gradients(root, self.cell.parameters()) if n == 1 else root

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
        check_exported(self, need_trees)
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
        raise ValueError("merges must hold the trees to follow, (B, n-1): this encoder does not search")
    check_merges(merges, lengths, n=n)
    return merges


def _follow(leaves: Tensor, lengths: Tensor, merges: Tensor, cell: GatedRecursiveCell) -> Forest:
    followed = follow(leaves, merges, cell)
    nodes = followed.nodes[followed.made].masked_fill((followed.made < 0).unsqueeze(-1), 0.0)  # (B, n−1, d)
    roots, trees = followed.root_vectors(), BeamTrees.from_merges(merges, lengths)
    return Forest(leaves, nodes.unsqueeze(1), roots.unsqueeze(1), trees)


def _read_chain(cell: GatedRecursiveCell, initial: Tensor, leaves: Tensor, lengths: Tensor) -> Tensor:
    B, n, d = leaves.shape
    if is_exporting() or has_levels(leaves, cell):
        merges = torch.where(torch.arange(n, device=leaves.device) < lengths[:, None], 0, -1)
        leaves = torch.cat((initial.expand(B, 1, d), leaves), 1)
        return follow(leaves, merges, cell).root_vectors()
    return _read_in_turn(cell, initial.expand(B, d), leaves, lengths)


@runs_eagerly
def _read_in_turn(cell: GatedRecursiveCell, state: Tensor, leaves: Tensor, lengths: Tensor) -> Tensor:
    B, n, _ = leaves.shape
    states, keep = [], cell.draw_keep(n, B)
    for t, leaf in enumerate(leaves.unbind(1)):
        state = cell(state, leaf, None if keep is None else keep[t])
        states.append(state)
    return row(torch.stack(states, 1), lengths - 1)


def _balanced_merges(lengths: Tensor, n: int) -> Tensor:
    """Level by level, left to right: a level of w nodes merges at 0, 1, …, w//2 − 1."""
    step = torch.arange(n - 1, device=lengths.device)
    halved = 2 ** torch.arange(LEVELS, device=lengths.device)
    L = lengths[:, None]
    before = L - (L + halved - 1) // halved  # (B, levels) merges below each level
    level = (step.unsqueeze(-1) >= before.unsqueeze(1)).sum(-1) - 1  # (B, n−1)
    return torch.where(step < L - 1, step - before.gather(1, level), -1)


class Followed(NamedTuple):
    """Given trees with all their nodes."""

    nodes: Tensor  # (rows, d) leaves first, then merges, lowest first
    made: Tensor  # (B, n−1) the row of the node made at each step, −1 where there is none
    roots: Tensor  # (B,) rows

    def root_vectors(self) -> Tensor:  # (B, d)
        return self.nodes.index_select(0, self.roots)


def follow(leaves: Tensor, merges: Tensor, cell: GatedRecursiveCell) -> Followed:
    """Compose leaves (B, n, d) as merges (B, n−1) say, −1 where there is none; every merge has a dropout mask
    of its own."""
    if is_exporting():
        return _follow_in_a_loop(leaves, merges, cell)
    refuse_forward_mode(leaves, *cell.weights())
    if has_levels(leaves, cell):
        levels = Levels.of(merges)
        keep = cell.draw_keep(len(levels.children))
        nodes = compose_levels(leaves, *levels[:3], keep, product_dtype(leaves), CellWeights(*cell.weights()))
        return Followed(nodes, levels.made, levels.roots)
    return _follow_on_host(leaves, merges, cell)


def _follow_in_a_loop(leaves: Tensor, merges: Tensor, cell: GatedRecursiveCell) -> Followed:
    B, n, _ = leaves.shape
    _, nodes = follow_merges(leaves, merges, lambda t, left, right: cell(left, right))
    sequence, merged = torch.arange(B, device=merges.device), (merges >= 0).sum(1)
    first = B * n + sequence * (n - 1)  # (B,) the rows that the first steps make
    step = torch.arange(n - 1, device=merges.device)
    made = torch.where(merges >= 0, first.unsqueeze(1) + step, -1)
    roots = torch.where(merged > 0, first + merged - 1, sequence * n)
    return Followed(torch.cat((leaves.flatten(0, 1), nodes.flatten(0, 1))), made, roots)


@runs_eagerly
def _follow_on_host(leaves: Tensor, merges: Tensor, cell: GatedRecursiveCell) -> Followed:
    levels = LevelsOnHost.of(merges)
    nodes = compose_nodes(leaves, levels, cell, cell.draw_keep(len(levels.children)))
    return Followed(nodes, levels.made, levels.roots)


def has_levels(leaves: Tensor, cell: GatedRecursiveCell) -> bool:
    """Whether kernels take all levels in one launch, which is then the best way for any tree."""
    return type(cell) is GatedRecursiveCell and supports(leaves, cell.weights(), beam_size=1)


class LevelsOnHost(NamedTuple):
    """`Levels` of which the host knows where they end, as it composes one after another."""

    children: Tensor  # (merges, 2) rows
    roots: Tensor
    made: Tensor
    ends: list[int]  # how many merges up to each height

    @classmethod
    def of(cls, merges: Tensor) -> "LevelsOnHost":
        """From merges (B, n−1), −1 where there is none; worked out on the host."""
        if merges.is_meta:  # no heights to look at: as if all merges were of one
            levels = Levels.of(merges)
            return cls(levels.children, levels.roots, levels.made, [len(levels.children)])
        device, levels = merges.device, Levels.of(merges.cpu())
        ends = levels.starts[1 : int(levels.height) + 1].tolist()
        children = levels.children[: ends[-1] if ends else 0]
        return cls(children.to(device), levels.roots.to(device), levels.made.to(device), ends)

    def slices(self) -> list[slice]:
        return [slice(start, end) for start, end in zip([0, *self.ends], self.ends, strict=False)]


def compose_nodes(
    leaves: Tensor, levels: LevelsOnHost, cell: GatedRecursiveCell, keep: Tensor | None
) -> Tensor:
    """All nodes of the trees, by the rows of these levels; `keep`: a dropout mask for every merge."""
    product = product_dtype(leaves)
    with without_autocast(leaves):
        nodes: Tensor = _GivenTree.apply(leaves, levels, keep, product, *cell.weights())
    return nodes


class _GivenTree(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        leaves: Tensor,
        levels: LevelsOnHost,
        keep: Tensor | None,
        product: torch.dtype,
        *parameters: Tensor,
    ) -> Tensor:
        B, n, d = leaves.shape
        cell = GatedCell(CellWeights(*parameters), product)
        nodes = leaves.new_empty(B * n + len(levels.children), d)
        nodes[: B * n] = leaves.reshape(-1, d)
        for level in levels.slices():
            mask = None if keep is None else keep[level]
            nodes[B * n + level.start : B * n + level.stop] = cell(nodes[levels.children[level]], mask)
        ctx.levels, ctx.product, ctx.shape = levels, product, leaves.shape
        ctx.save_for_backward(nodes, keep, *parameters)
        return nodes

    @staticmethod
    def backward(ctx: Any, grad_nodes: Tensor) -> tuple[Any, ...]:
        refuse_double_backward()
        nodes, keep, *parameters = ctx.saved_tensors
        levels, (B, n, d) = ctx.levels, ctx.shape
        cell = GatedCell(CellWeights(*parameters), ctx.product)
        cell.recall(nodes[levels.children], keep)
        grad = grad_nodes.to(torch.promote_types(nodes.dtype, torch.float32), copy=True)
        merged = grad[B * n :]
        for level in reversed(levels.slices()):
            # Every node has one parent, so no two of these rows are the same.
            grad[levels.children[level]] += cell.pull(level, merged[level])
        grad_leaves = grad[: B * n].view(B, n, d).to(nodes.dtype)
        return grad_leaves, None, None, None, *cell.parameter_gradients(merged)
