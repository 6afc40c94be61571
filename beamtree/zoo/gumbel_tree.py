"""GT-GRC and EGT-GRC: greedy trees with straight-through gradients for their choices.

At each step the pair with the best score e is chosen (in training, e plus Gumbel noise) and replaced by its
parent. GT-GRC computes e from the parents of all pairs; EGT-GRC computes it from slices of the children and
makes only one parent per step. On a GPU the most common case has kernels of its own.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from beamtree.engine.choosing import up_to_rounding
from beamtree.engine.export import exported_forest, exported_root
from beamtree.engine.operators import weights_of
from beamtree.engine.randomness import draw_seed
from beamtree.kernels.fused_recursion import FusedSearchCall
from beamtree.kernels.straight import straight_through, supports
from beamtree.parts.scorer import EntangledScorer, SlicedScorer
from beamtree.pytorch.derivatives import refuse_forward_mode
from beamtree.pytorch.precision import product_dtype
from beamtree.pytorch.tracing import is_exporting, runs_eagerly
from beamtree.trees.beam_trees import BeamTrees
from beamtree.trees.forest import Forest, refuse_merges
from beamtree.zoo.straight_through import Noise, Timetable, straight_through_tree
from beamtree.zoo.tree_encoder import TreeEncoder, gumbel_noise, merge_by_choice, with_zero_gradients

DRAWS_AT_ONCE = 1 << 16

Draw = Callable[[int, int], Tensor | None]  # step, pairs -> (B, pairs, …)
Grown = tuple[Tensor, Tensor, Tensor]  # roots (B, d), merges (B, n−1), nodes (B, n−1 or 0, d)


class _StraightThroughEncoder(TreeEncoder):
    """Base class of GT-GRC and EGT-GRC, which differ in their scorer."""

    scorer: SlicedScorer | EntangledScorer
    stochastic: bool

    def forward(
        self, x: Tensor, key_padding_mask: Tensor | None = None, *, need_trees: bool = False
    ) -> Tensor | tuple[Tensor, BeamTrees]:
        """Encode x (B, n, input_size) as (B, d_model); with `need_trees` also return the tree found.

        `key_padding_mask` (B, n) is True at padding, on the right.
        """
        if is_exporting():
            return exported_root(self, x, key_padding_mask, need_trees, beam_size=1)
        leaves, lengths = self.read(x, key_padding_mask)
        root, merges, _ = self._grow(leaves, lengths)
        return (root, BeamTrees.from_merges(merges, lengths)) if need_trees else root

    def forest(
        self, x: Tensor, key_padding_mask: Tensor | None = None, *, merges: Tensor | None = None
    ) -> Forest:
        """Return the trees with their nodes, the chosen parents; `merges` must be None.

        Only gradients of the root pass through the choices, and so reach pairs that were not chosen.
        """
        refuse_merges(merges)
        if is_exporting():
            return exported_forest(self, x, key_padding_mask, beam_size=1)
        leaves, lengths = self.read(x, key_padding_mask)
        root, merges, nodes = self._grow(leaves, lengths, need_nodes=True)
        return Forest(leaves, nodes[:, None], root.unsqueeze(1), BeamTrees.from_merges(merges, lengths))

    @runs_eagerly
    def _grow(self, leaves: Tensor, lengths: Tensor, *, need_nodes: bool = False) -> Grown:
        """Return roots, merges and nodes, by kernels if they cover the case."""
        parameters: list[Tensor] = [*self.cell.parameters(), *self.scorer.parameters()]
        refuse_forward_mode(leaves, *parameters)
        noisy = self.training and self.stochastic
        if supports(leaves, parameters):
            dropout = self.cell.dropout if self.cell.training else 0.0
            seed = draw_seed(leaves.device) if noisy or dropout > 0.0 else lengths  # which nobody reads
            options = 1, noisy, dropout, product_dtype(leaves), need_nodes
            weights = weights_of(self.cell, self.scorer).flat()
            return straight_through(FusedSearchCall(leaves, lengths, seed, *options, weights))
        timetable = Timetable(lengths, leaves.shape[1])
        masks = timetable.pairs if isinstance(self.scorer, EntangledScorer) else timetable.made
        keep, noise = self.cell.draw_keep(masks), _noise_for(leaves) if noisy else None
        return straight_through_tree(leaves, timetable, self.cell, self.scorer, keep, noise, need_nodes)


class EfficientGumbelTreeGRC(_StraightThroughEncoder):
    """EGT-GRC, (B, n, input_size) -> (B, d_model): a greedy tree whose scorer sees slices of the children.

    Args:
        d_model: width of a node.
        input_size: width of the tokens, `d_model` if not given.
        slice_size: how many features the scorer sees; None, or more than there are, for all of them.
        scorer_hidden: the scorer's hidden size; if not given, 64 with a slice, else `d_model`.
        dropout: dropout rate on the cell's hidden layer.
        stochastic: perturb the choices with Gumbel noise in training.
    """

    def __init__(
        self,
        d_model: int,
        *,
        input_size: int | None = None,
        slice_size: int | None = 64,
        scorer_hidden: int | None = None,
        dropout: float = 0.0,
        stochastic: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(d_model, input_size=input_size, dropout=dropout, device=device, dtype=dtype)
        self.stochastic = stochastic
        self.scorer = SlicedScorer(
            d_model, slice_size=slice_size, hidden_size=scorer_hidden, device=device, dtype=dtype
        )


class GumbelTreeGRC(_StraightThroughEncoder):
    """GT-GRC, (B, n, input_size) -> (B, d_model): a greedy tree whose scorer sees the parents of all pairs.

    Args:
        d_model: width of a node.
        input_size: width of the tokens, `d_model` if not given.
        mode: "cached" computes the parent of a pair once and keeps it, dropout mask included, as long as the
            pair exists. "faithful" recomputes all parents at every step, as published, in O(n²·d) memory.
            Without dropout the two are the same.
        dropout: dropout rate on the cell's hidden layer.
        stochastic: perturb the choices with Gumbel noise in training.
    """

    def __init__(
        self,
        d_model: int,
        *,
        input_size: int | None = None,
        mode: str = "cached",
        dropout: float = 0.0,
        stochastic: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(d_model, input_size=input_size, dropout=dropout, device=device, dtype=dtype)
        if mode not in ("cached", "faithful"):
            raise ValueError(f"mode must be 'cached' or 'faithful', got {mode!r}")
        self.mode = mode
        self.stochastic = stochastic
        self.scorer = EntangledScorer(d_model, device=device, dtype=dtype)

    def _grow(self, leaves: Tensor, lengths: Tensor, *, need_nodes: bool = False) -> Grown:
        if self.mode == "cached" or not self.training:
            return super()._grow(leaves, lengths, need_nodes=need_nodes)
        if need_nodes:
            raise ValueError("inner nodes in training need mode='cached'")
        B, n, _ = leaves.shape
        noise = _noise_for(leaves) if self.stochastic else None
        root, merges = gumbel_tree_by_autograd(
            leaves,
            lengths,
            self.cell,
            self.scorer,
            entangled=True,
            noise=lambda t, pairs: None if noise is None else noise(t, B, pairs),
            keep=lambda t, pairs: self.cell.draw_keep(B, pairs),
        )
        if n <= 2:  # nothing to choose from
            root = with_zero_gradients(root, [*self.cell.parameters(), *self.scorer.parameters()])
        return root, merges, leaves[:, :0]


@runs_eagerly
def gumbel_tree_by_autograd(
    leaves: Tensor,  # (B, n, d)
    lengths: Tensor,  # (B,)
    cell: nn.Module,
    scorer: nn.Module,
    *,
    entangled: bool,
    noise: Draw,
    keep: Draw,
) -> tuple[Tensor, Tensor]:
    """Return roots (B, d) and merges (B, n−1), computed by plain autograd, which keeps every state.

    This is "faithful" GT-GRC, and the reference for `straight_through.sweep`. `noise` perturbs the logits;
    `keep` draws dropout masks, for all pairs if `entangled`, else for the chosen pair only, (B, 1, …).
    """
    n = leaves.shape[1]
    states, merges = leaves, []
    for t in range(n - 1):
        pairs = n - 1 - t
        left, right = states[:, :-1], states[:, 1:]  # (B, pairs, d)
        is_pair = torch.arange(pairs, device=leaves.device) < (lengths - 1 - t)[:, None]  # (B, pairs)
        running = is_pair[:, :1]
        if entangled:
            parents = cell(left, right, keep(t, pairs))
            logits = scorer(parents)
        else:
            logits = scorer(left, right)
        perturbation = noise(t, pairs)
        if perturbation is not None:
            logits = logits + perturbation
        # A finished sequence has no pairs; zeros keep NaN out of its softmax, which is not used.
        logits = torch.where(running, logits.masked_fill(~is_pair, -torch.inf), torch.zeros_like(logits))
        chance = logits.softmax(-1)
        chosen = up_to_rounding(logits).argmax(-1, keepdim=True)
        hard = torch.zeros_like(chance).scatter(1, chosen, 1.0)
        choice = hard + chance - chance.detach() if pairs > 1 else hard
        choice = choice.to(states.dtype)
        if not entangled:
            chosen_two = ((choice.unsqueeze(-1) * child).sum(1, keepdim=True) for child in (left, right))
            parents = cell(*chosen_two, keep(t, 1))
        merged = merge_by_choice(choice, parents, left, right)
        states = torch.where(running.unsqueeze(-1), merged, left)
        merges.append(torch.where(running, chosen, -1))
    return states[:, 0], torch.cat(merges, 1) if merges else lengths.new_empty(len(lengths), 0)


def _noise_for(leaves: Tensor) -> Noise:
    """Return a function that gives the Gumbel noise of each step, drawn for many steps at once."""
    store = leaves.new_empty(0)

    def draw(step: int, sequences: int, pairs: int) -> Tensor:
        nonlocal store
        count = sequences * pairs
        if count > len(store):
            store = gumbel_noise(max(count, DRAWS_AT_ONCE), like=leaves)
        noise, store = store[:count], store[count:]
        return noise.view(sequences, pairs)

    return draw
