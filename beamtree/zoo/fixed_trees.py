"""Encoders whose tree is known in advance: a gold tree, a balanced tree or a left-to-right chain.

They show what the gated recursive cell achieves without any search. A node depends only on its children, so
trees are composed level by level: all nodes of one height in the batch at once, in O(n·d) memory.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from beamtree.engine.built_in_parts import GatedCell
from beamtree.kernels.fused_recursion import supports
from beamtree.kernels.given import ComposeCall, compose_levels
from beamtree.parts.cell import GatedRecursiveCell
from beamtree.parts.weights import CellWeights
from beamtree.pytorch.derivatives import refuse_double_backward, refuse_forward_mode
from beamtree.pytorch.precision import product_dtype, without_autocast
from beamtree.pytorch.tracing import check_exported, follow_merges, is_exporting, runs_eagerly
from beamtree.trees.beam_trees import BeamTrees
from beamtree.trees.constraints import check_merges
from beamtree.trees.forest import Forest, refuse_merges
from beamtree.trees.structure import Levels
from beamtree.zoo.tree_encoder import TreeEncoder, row, with_zero_gradients

LEVELS = 40  # levels of a balanced tree, more than any sequence needs


class GoldTreeGRC(TreeEncoder):
    """Follows given trees, (B, n, input_size) -> (B, d_model), in training and in evaluation.

    ```python
    encoder = create_encoder("gold-grc", 128)
    y = encoder(x, key_padding_mask=is_pad, merges=merges)  # merges (B, n−1) as in `BeamTrees.merges`
    ```
    """

    needs_merges = True

    def forward(
        self,
        x: Tensor,
        key_padding_mask: Tensor | None = None,
        *,
        merges: Tensor | None = None,
        need_trees: bool = False,
    ) -> Tensor | tuple[Tensor, BeamTrees]:
        """Encode x (B, n, input_size) as (B, d_model) by given trees.

        `key_padding_mask` (B, n) is True at padding, on the right. `merges` (B, n−1) must be given; a
        ValueError says where they are not whole trees.
        """
        check_exported(self, need_trees)
        leaves, lengths = self.read(x, key_padding_mask)
        merges = _check_given(merges, lengths, x.shape[1])
        root = follow(leaves, merges, self.cell).root_vectors()
        return (root, BeamTrees.from_merges(merges, lengths)) if need_trees else root

    def forest(
        self, x: Tensor, key_padding_mask: Tensor | None = None, *, merges: Tensor | None = None
    ) -> Forest:
        """Return the given trees with the vectors of all their nodes; arguments as for `forward`."""
        leaves, lengths = self.read(x, key_padding_mask)
        return _forest_along(leaves, lengths, _check_given(merges, lengths, x.shape[1]), self.cell)


class BalancedTreeGRC(TreeEncoder):
    """Merges neighbours two by two until one node is left, (B, n, input_size) -> (B, d_model).

    If the number of nodes is odd, the last one moves up to the next level unchanged.
    """

    def forward(
        self, x: Tensor, key_padding_mask: Tensor | None = None, *, need_trees: bool = False
    ) -> Tensor | tuple[Tensor, BeamTrees]:
        """Encode x (B, n, input_size) as (B, d_model); with `need_trees` also return the balanced trees.

        `key_padding_mask` (B, n) is True at padding, on the right.
        """
        check_exported(self, need_trees)
        leaves, lengths = self.read(x, key_padding_mask)
        if is_exporting():
            # One more leaf: `torch.export` would specialise n − 1 merges to n > 2.
            leaves = nn.functional.pad(leaves, (0, 0, 0, 1))
        if is_exporting() or kernels_compose(leaves, self.cell):
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
        """Return the balanced trees with the vectors of all their nodes; `merges` must be None."""
        refuse_merges(merges)
        leaves, lengths = self.read(x, key_padding_mask)
        return _forest_along(leaves, lengths, _balanced_merges(lengths, x.shape[1]), self.cell)


class RecurrentGRC(TreeEncoder):
    """Reads a sequence as a chain, (B, n, input_size) -> (B, d_model): h_t = cell(h_{t−1}, leaf_t).

    h_0 is learnt, and the last h is the sentence vector. `bidirectional` adds a second cell that reads from
    right to left, and a linear map of both results.
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
        """Encode x (B, n, input_size) as (B, d_model); with `need_trees` also return the left-to-right trees.

        `key_padding_mask` (B, n) is True at padding, on the right.
        """
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


def _forest_along(leaves: Tensor, lengths: Tensor, merges: Tensor, cell: GatedRecursiveCell) -> Forest:
    followed = follow(leaves, merges, cell)
    nodes = followed.nodes[followed.made].masked_fill((followed.made < 0).unsqueeze(-1), 0.0)  # (B, n−1, d)
    roots, trees = followed.root_vectors(), BeamTrees.from_merges(merges, lengths)
    return Forest(leaves, nodes.unsqueeze(1), roots.unsqueeze(1), trees)


def _read_chain(cell: GatedRecursiveCell, initial: Tensor, leaves: Tensor, lengths: Tensor) -> Tensor:
    B, n, d = leaves.shape
    if is_exporting() or kernels_compose(leaves, cell):
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
    """Return the merges of balanced trees, level by level: a level of w nodes merges at 0, 1, …, w//2 − 1."""
    step = torch.arange(n - 1, device=lengths.device)
    halved = 2 ** torch.arange(LEVELS, device=lengths.device)
    L = lengths[:, None]
    before = L - (L + halved - 1) // halved  # (B, levels) merges below each level
    level = (step.unsqueeze(-1) >= before.unsqueeze(1)).sum(-1) - 1  # (B, n−1)
    return torch.where(step < L - 1, step - before.gather(1, level), -1)


class Followed(NamedTuple):
    """The nodes of trees that were followed."""

    nodes: Tensor  # (rows, d) leaves first, then merges, lowest first
    made: Tensor  # (B, n−1) the row of the node made at each step, or −1
    roots: Tensor  # (B,) rows

    def root_vectors(self) -> Tensor:  # (B, d)
        return self.nodes.index_select(0, self.roots)


def follow(leaves: Tensor, merges: Tensor, cell: GatedRecursiveCell) -> Followed:
    """Compose leaves (B, n, d) by merges (B, n−1), padded with −1; every merge gets its own dropout mask."""
    if is_exporting():
        return _follow_in_an_export(leaves, merges, cell)
    refuse_forward_mode(leaves, *cell.weights())
    if kernels_compose(leaves, cell):
        levels = Levels.of(merges)
        keep = cell.draw_keep(len(levels.children))
        product, weights = product_dtype(leaves), list(cell.weights())
        nodes = compose_levels(ComposeCall(leaves, *levels[:3], keep, product, weights))
        return Followed(nodes, levels.made, levels.roots)
    return _follow_level_by_level(leaves, merges, cell)


def _follow_in_an_export(leaves: Tensor, merges: Tensor, cell: GatedRecursiveCell) -> Followed:
    B, n, _ = leaves.shape
    nodes = follow_merges(leaves, merges, lambda t, left, right: cell(left, right))
    sequence, merged = torch.arange(B, device=merges.device), (merges >= 0).sum(1)
    first = B * n + sequence * (n - 1)  # (B,) the row of the node made at step 0
    step = torch.arange(n - 1, device=merges.device)
    made = torch.where(merges >= 0, first.unsqueeze(1) + step, -1)
    roots = torch.where(merged > 0, first + merged - 1, sequence * n)
    return Followed(torch.cat((leaves.flatten(0, 1), nodes.flatten(0, 1))), made, roots)


@runs_eagerly
def _follow_level_by_level(leaves: Tensor, merges: Tensor, cell: GatedRecursiveCell) -> Followed:
    levels = LevelsOnHost.of(merges)
    nodes = compose_level_by_level(leaves, levels, cell, cell.draw_keep(len(levels.children)))
    return Followed(nodes, levels.made, levels.roots)


def kernels_compose(leaves: Tensor, cell: GatedRecursiveCell) -> bool:
    """Return True if kernels can compose all levels in one launch, which is then fastest for any tree."""
    return type(cell) is GatedRecursiveCell and supports(leaves, cell.weights(), beam_size=1)


class LevelsOnHost(NamedTuple):
    """`Levels` whose ends are known on the host, for composing them one after another."""

    children: Tensor  # (merges, 2) rows
    roots: Tensor
    made: Tensor
    ends: list[int]  # how many merges up to each height

    @classmethod
    def of(cls, merges: Tensor) -> "LevelsOnHost":
        """Sort merges (B, n−1), padded with −1, into levels on the host."""
        if merges.is_meta:  # heights are unknown: treat all merges as one level
            levels = Levels.of(merges)
            return cls(levels.children, levels.roots, levels.made, [len(levels.children)])
        device, levels = merges.device, Levels.of(merges.cpu())
        ends = levels.starts[1 : int(levels.height) + 1].tolist()
        children = levels.children[: ends[-1] if ends else 0]
        return cls(children.to(device), levels.roots.to(device), levels.made.to(device), ends)

    def slices(self) -> list[slice]:
        return [slice(start, end) for start, end in zip([0, *self.ends], self.ends, strict=False)]


def compose_level_by_level(
    leaves: Tensor, levels: LevelsOnHost, cell: GatedRecursiveCell, keep: Tensor | None
) -> Tensor:
    """Compute all nodes of the trees, level by level; `keep` has one dropout mask per merge, or is None."""
    product = product_dtype(leaves)
    with without_autocast(leaves):
        nodes: Tensor = _GivenTree.apply(leaves, levels, keep, product, *cell.weights())
    return nodes


class _GivenTree(torch.autograd.Function):
    """Composes nodes level by level; the backward pass walks the levels from the roots to the leaves."""

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
        cell.recompute(nodes[levels.children], keep)
        grad = grad_nodes.to(torch.promote_types(nodes.dtype, torch.float32), copy=True)
        merged = grad[B * n :]
        for level in reversed(levels.slices()):
            # Every node has only one parent, so these rows are distinct and += adds each gradient.
            grad[levels.children[level]] += cell.pull(level, merged[level])
        grad_leaves = grad[: B * n].view(B, n, d).to(nodes.dtype)
        return grad_leaves, None, None, None, *cell.parameter_gradients(merged)
