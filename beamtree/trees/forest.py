"""Trees with the vectors of their nodes, and the ancestors of each leaf.

Parent attention goes from every leaf to its ancestors, in one of two layouts with the same result:
`DenseAncestry` uses all pairs of leaf and node, O(n²) scalars per tree; `ListedAncestry` uses a list of
ancestors per leaf, O(n·height), which is less if the tree is shallow.
"""

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from beamtree.pytorch.derivatives import refuse_double_backward
from beamtree.pytorch.precision import without_autocast
from beamtree.pytorch.tracing import is_exporting
from beamtree.trees.beam_trees import BeamTrees

DENSE_UP_TO = 256  # tokens: up to here matrix products are faster, and n² scalars are few
SHALLOW = 4  # a tree is shallow if its height is at most a quarter of its length


class Forest(NamedTuple):
    """The trees of a batch with the vectors of their nodes, as returned by `encoder.forest(x, is_pad)`.

    `leaves`, `nodes`, `roots` and `trees.weights` have gradients.

    Fields:
        leaves: (B, n, d), shared by all trees of a sequence.
        nodes: (B, K, n−1, d), the node made at each step; zero if the step makes none.
        roots: (B, K, d), the root of each tree.
        trees: the trees themselves.
    """

    leaves: Tensor
    nodes: Tensor
    roots: Tensor
    trees: BeamTrees

    def average(self, of_beams: Tensor) -> Tensor:
        """Average values of trees (B, K, …) by the weights of the trees: (B, …)."""
        wide = torch.promote_types(of_beams.dtype, torch.float32)
        with without_autocast(of_beams):
            average = torch.einsum("bk,bk...->b...", self.trees.weights.to(wide), of_beams.to(wide))
        return average.to(of_beams.dtype)


class TreeSource(Protocol):
    """An encoder that can return its trees with their nodes, such as `BeamTreeEncoder`."""

    d_model: int
    input_size: int

    def forest(
        self, x: Tensor, key_padding_mask: Tensor | None = None, *, merges: Tensor | None = None
    ) -> Forest: ...


def refuse_merges(merges: Tensor | None) -> None:
    """Raise ValueError if an encoder that cannot follow given trees gets some."""
    if merges is not None:
        raise ValueError("merges must be left out: this encoder cannot follow given trees")


class Ancestry(Protocol):
    """The pairs of a leaf and its ancestor in B·K trees; M is n−1 (dense) or the greatest height (listed)."""

    allowed: Tensor  # (B, K, n, M) bool

    def scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return scalar products of queries (B, K or 1, n, w) and keys (B, K, n−1, w): (B, K, n, M)."""
        ...

    def mix(self, weights: Tensor, values: Tensor) -> Tensor:
        """Return sums of values (B, K, n−1, w) weighted by (B, K, n, M): (B, K, n, w)."""
        ...


def find_ancestry(trees: BeamTrees) -> Ancestry:
    """Choose the layout that needs less memory; short sequences and exports always use the dense one."""
    n = trees.merges.shape[-1] + 1
    if is_exporting() or n <= DENSE_UP_TO or not len(trees) or trees.merges.is_meta:
        return DenseAncestry(trees)
    height = int(trees.heights.max())
    return ListedAncestry(trees, height) if SHALLOW * height <= n else DenseAncestry(trees)


class DenseAncestry:
    """Ancestors as a mask over all pairs of leaf and node, (B, K, n, n−1)."""

    def __init__(self, trees: BeamTrees) -> None:
        n = trees.merges.shape[-1] + 1
        leaf = torch.arange(n, device=trees.merges.device)[:, None]  # (n, 1)
        start, end = trees.spans.unsqueeze(2).unbind(-1)  # (B, K, 1, n−1) each, −1 where there is no node
        self.allowed = (start <= leaf) & (leaf < end)

    def scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        return queries @ keys.transpose(-1, -2)

    def mix(self, weights: Tensor, values: Tensor) -> Tensor:
        return weights @ values


class ListedAncestry:
    """Ancestors as a list for each leaf, lowest first: (B, K, n, height)."""

    def __init__(self, trees: BeamTrees, height: int | None = None) -> None:
        B, K, steps = trees.merges.shape
        n = steps + 1
        if height is None:
            height = int(trees.heights.max()) if steps else 0
        ancestors = _list_ancestors(trees.children, height)  # (B, K, n, height)
        self.allowed = ancestors >= 0
        tree = torch.arange(B * K, device=ancestors.device).view(B, K, 1, 1)
        rows = ancestors.clamp(min=0) + tree * steps
        self._rows = rows.flatten(0, 2).T.contiguous()  # (height, B·K·n), rows of the nodes of all trees
        self._shape = (B, K, n)

    def scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        B, K, n = self._shape
        queries = queries.expand(B, K, n, -1).flatten(0, 2)
        found: Tensor = _ListedScores.apply(queries, keys.flatten(0, 2), self._rows)
        return found.T.unflatten(0, self._shape)

    def mix(self, weights: Tensor, values: Tensor) -> Tensor:
        found: Tensor = _ListedMix.apply(weights.flatten(0, 2).T, values.flatten(0, 2), self._rows)
        return found.unflatten(0, self._shape)


def _list_ancestors(children: Tensor, height: int) -> Tensor:
    """Return the steps that made each leaf's ancestors, lowest first, padded with −1."""
    B, K, steps, _ = children.shape
    n = steps + 1
    nowhere = 2 * n - 1  # a dummy slot for steps without a merge
    parent = children.new_full((B, K, 2 * n), -1)
    step = torch.arange(steps, device=children.device).repeat_interleave(2).expand(B, K, -1)
    parent.scatter_(2, torch.where(children < 0, nowhere, children).flatten(2), step)
    parent[..., nowhere] = -1
    current = parent[..., :n]
    found = []
    for _ in range(height):
        found.append(current)
        current = parent.gather(2, torch.where(current < 0, nowhere, current + n))
    return torch.stack(found, -1) if found else children.new_empty(B, K, n, 0)


class _ListedScores(torch.autograd.Function):
    """Scalar products, one ancestor of every leaf at a time, so that no (n, height, w) tensor ever exists."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(queries, keys, rows)
        scores = queries.new_empty(rows.shape)
        for row, score in zip(rows, scores, strict=True):
            torch.sum(queries * keys[row], -1, out=score)
        return scores

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        refuse_double_backward()
        queries, keys, rows = ctx.saved_tensors
        to_queries, to_keys = torch.zeros_like(queries), torch.zeros_like(keys)
        for row, of_score in zip(rows, grad.unsqueeze(-1), strict=True):
            to_queries.addcmul_(of_score, keys[row])
            to_keys.index_add_(0, row, of_score * queries)
        return to_queries, to_keys, None


class _ListedMix(torch.autograd.Function):
    """Weighted sums over ancestors, one ancestor of every leaf at a time."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, values: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(weights, values, rows)
        mixed = values.new_zeros(rows.shape[1], values.shape[1])
        for row, weight in zip(rows, weights.unsqueeze(-1), strict=True):
            mixed.addcmul_(weight, values[row])
        return mixed

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        refuse_double_backward()
        weights, values, rows = ctx.saved_tensors
        to_weights, to_values = torch.empty_like(weights), torch.zeros_like(values)
        for h, row in enumerate(rows):
            to_weights[h] = (grad * values[row]).sum(-1)
            to_values.index_add_(0, row, weights[h].unsqueeze(-1) * grad)
        return to_weights, to_values, None
