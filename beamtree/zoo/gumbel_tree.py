"""GT-GRC and EGT-GRC: greedy trees whose choices pass gradient straight through.

At each step one pair is chosen, the best by e + Gumbel noise in training and by e otherwise, and its parent
takes its place. GT-GRC reads e off the parents of all pairs; EGT-GRC reads it off slices of the children and
makes one parent only. On a GPU the commonest case has kernels of its own, the others are CUDA graphs.
"""

import torch
from torch import Tensor

from beamtree.engine.export import exported_forest, exported_root
from beamtree.engine.operators import weights_of
from beamtree.graphs.whole_graphs import Outputs, WholeGraphs, lengthen
from beamtree.kernels.runtime.random_bits import draw_seed
from beamtree.kernels.straight.straight_recursion import straight_through, supports
from beamtree.parts.scorer import EntangledScorer, SlicedScorer
from beamtree.pytorch.derivatives import refuse_forward_mode
from beamtree.pytorch.precision import product_dtype
from beamtree.pytorch.tracing import is_exporting, untraced
from beamtree.trees.beam_trees import BeamTrees
from beamtree.trees.forest import Forest, refuse_merges
from beamtree.zoo.gumbel_static import StaticSchedule
from beamtree.zoo.gumbel_sweep import Noise, Schedule
from beamtree.zoo.gumbel_tree_plain import gumbel_tree
from beamtree.zoo.straight_through import straight_through_tree
from beamtree.zoo.tree_encoder import TreeEncoder, gumbel_noise, with_zero_gradients

DRAWS_AT_ONCE = 1 << 16


class EfficientGumbelTreeGRC(TreeEncoder):
    """EGT-GRC: the scorer sees slices of the two children, the cell only the chosen pair."""

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
        self.graphs = WholeGraphs()

    def forward(
        self, x: Tensor, key_padding_mask: Tensor | None = None, *, need_trees: bool = False
    ) -> Tensor | tuple[Tensor, BeamTrees]:
        if is_exporting():
            return exported_root(self, x, key_padding_mask, need_trees, beam_size=1)
        leaves, lengths = self.read(x, key_padding_mask)
        root, merges, _ = _grown(self, leaves, lengths)
        return (root, BeamTrees.from_merges(merges, lengths)) if need_trees else root

    def tree(self, leaves: Tensor, schedule: Schedule, *, need_nodes: bool = False) -> Outputs:
        keep = self.cell.draw_keep(schedule.made)
        noise = _noise_for(leaves) if self.training and self.stochastic else None
        return straight_through_tree(leaves, schedule, self.cell, self.scorer, keep, noise, need_nodes)

    def forest(
        self, x: Tensor, key_padding_mask: Tensor | None = None, *, merges: Tensor | None = None
    ) -> Forest:
        refuse_merges(merges)
        return _forest(self, x, key_padding_mask)


class GumbelTreeGRC(TreeEncoder):
    """GT-GRC: the score of a pair is read off its parent.

    `mode="cached"` makes the parent of a pair once and keeps it, dropout mask included, for as long as the
    pair lives; `"faithful"` makes all of them afresh at every step, as published, at O(n²·d) memory. Without
    dropout the two are the same.
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
        self.graphs = WholeGraphs()

    def forward(
        self, x: Tensor, key_padding_mask: Tensor | None = None, *, need_trees: bool = False
    ) -> Tensor | tuple[Tensor, BeamTrees]:
        if is_exporting():
            return exported_root(self, x, key_padding_mask, need_trees, beam_size=1)
        leaves, lengths = self.read(x, key_padding_mask)
        if self.mode == "cached" or not self.training:
            root, merges, _ = _grown(self, leaves, lengths)
        else:
            B = x.shape[0]
            noise = _noise_for(leaves) if self.stochastic else None
            root, merges = gumbel_tree(
                leaves,
                lengths,
                self.cell,
                self.scorer,
                entangled=True,
                noise=lambda t, pairs: None if noise is None else noise(t, B, pairs),
                keep=lambda t, pairs: self.cell.draw_keep(B, pairs),
            )
            if x.shape[1] <= 2:  # nothing to choose from
                root = with_zero_gradients(root, [*self.cell.parameters(), *self.scorer.parameters()])
        return (root, BeamTrees.from_merges(merges, lengths)) if need_trees else root

    def tree(self, leaves: Tensor, schedule: Schedule, *, need_nodes: bool = False) -> Outputs:
        keep = self.cell.draw_keep(schedule.first_pair + 2 * schedule.made)
        noise = _noise_for(leaves) if self.training and self.stochastic else None
        return straight_through_tree(leaves, schedule, self.cell, self.scorer, keep, noise, need_nodes)

    def forest(
        self, x: Tensor, key_padding_mask: Tensor | None = None, *, merges: Tensor | None = None
    ) -> Forest:
        """The nodes are the chosen parents; only the root also passes gradient to the others."""
        refuse_merges(merges)
        if self.mode == "faithful" and self.training:
            raise ValueError("mode must be 'cached' where the inner nodes are wanted in training")
        return _forest(self, x, key_padding_mask)


def _forest(
    encoder: "EfficientGumbelTreeGRC | GumbelTreeGRC", x: Tensor, key_padding_mask: Tensor | None
) -> Forest:
    if is_exporting():
        return exported_forest(encoder, x, key_padding_mask, beam_size=1)
    leaves, lengths = encoder.read(x, key_padding_mask)
    root, merges, nodes = _grown(encoder, leaves, lengths, need_nodes=True)
    return Forest(leaves, nodes[:, None], root.unsqueeze(1), BeamTrees.from_merges(merges, lengths))


@untraced
def _grown(
    encoder: "EfficientGumbelTreeGRC | GumbelTreeGRC",
    leaves: Tensor,
    lengths: Tensor,
    *,
    need_nodes: bool = False,
) -> Outputs:
    """Roots, merges and nodes: by kernels where they cover the case; in training else by CUDA graphs where
    they can hold it, the leaves padded for them."""
    parameters: list[Tensor] = [*encoder.cell.parameters(), *encoder.scorer.parameters()]
    refuse_forward_mode(leaves, *parameters)
    if supports(leaves, parameters):
        weights = weights_of(encoder.cell, encoder.scorer)
        noisy = encoder.training and encoder.stochastic
        dropout = encoder.cell.dropout if encoder.cell.training else 0.0
        seed = draw_seed(leaves.device) if noisy or dropout > 0.0 else None
        product = product_dtype(leaves)
        return straight_through(leaves, lengths, weights, seed, noisy, dropout, product, need_nodes)
    steps = leaves.shape[1] - 1
    root, merges, nodes = _grow(encoder, leaves, lengths, need_nodes)
    return root, merges[:, :steps], nodes[:, :steps]


def _grow(
    encoder: "EfficientGumbelTreeGRC | GumbelTreeGRC", leaves: Tensor, lengths: Tensor, need_nodes: bool
) -> Outputs:
    def grow(leaves: Tensor, lengths: Tensor) -> Outputs:
        return encoder.tree(leaves, _schedule(leaves, lengths), need_nodes=need_nodes)

    if not encoder.training:
        return grow(leaves, lengths)
    return encoder.graphs.run(
        grow,
        (lengthen(leaves, encoder.graphs.padding(leaves)), lengths),
        (encoder.cell, encoder.scorer),
        (encoder.stochastic, encoder.cell.training, encoder.cell.dropout, need_nodes),
        static=lambda leaves, lengths: encoder.tree(
            leaves, StaticSchedule(lengths, leaves.shape[1]), need_nodes=need_nodes
        ),
    )


def _schedule(leaves: Tensor, lengths: Tensor) -> Schedule:
    # The meta device has no lengths to look at.
    return StaticSchedule(lengths, leaves.shape[1]) if leaves.is_meta else Schedule(lengths)


def _noise_for(leaves: Tensor) -> Noise:
    """Gumbel noise for one step after another, drawn for many of them at once."""
    store = leaves.new_empty(0)

    def draw(step: int, sequences: int, pairs: int) -> Tensor:
        nonlocal store
        count = sequences * pairs
        if count > len(store):
            store = gumbel_noise(max(count, DRAWS_AT_ONCE), like=leaves)
        noise, store = store[:count], store[count:]
        return noise.view(sequences, pairs)

    return draw
