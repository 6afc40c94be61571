"""BT-GRC: beam search over trees where a pair's score is read off the parent it would make.

    e = w·cell(l, r) + b        S_b = Σ_t log softmax(e)_chosen        root = Σ_b softmax(S)_b·root_b

Every candidate parent of a surviving lineage is in some softmax, so all get gradient.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from beamtree import recursion
from beamtree.engine.export import exported_forest, exported_root
from beamtree.engine.operators import weights_of
from beamtree.graphs.whole_graphs import WholeGraphs, lengthen
from beamtree.parts.cell import GatedRecursiveCell
from beamtree.parts.scorer import EntangledScorer
from beamtree.pytorch.checks import warn_if_greedy
from beamtree.pytorch.precision import autocasts
from beamtree.pytorch.registry import has_kernels
from beamtree.pytorch.tracing import is_exporting, untraced
from beamtree.trees.beam_trees import BeamTrees
from beamtree.trees.forest import Forest, refuse_merges
from beamtree.zoo.beam_step import Beams, Made, Step, splice, take
from beamtree.zoo.tree_encoder import TreeEncoder, gumbel_noise, with_zero_gradients


class BeamTreeGRC(TreeEncoder):
    """Keeps the `beam_size` best trees.

    `mode="cached"` scores a pair once, and keeps its dropout mask for as long as the pair lives: the engine's
    linear memory. `"faithful"` makes the parents of all pairs afresh at every step, as published. Without
    dropout the two are the same; they differ in training only.
    """

    def __init__(
        self,
        d_model: int,
        *,
        input_size: int | None = None,
        beam_size: int = 5,
        mode: str = "cached",
        dropout: float = 0.0,
        stochastic: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(d_model, input_size=input_size, dropout=dropout, device=device, dtype=dtype)
        if beam_size < 1:
            raise ValueError(f"beam_size must be at least 1, got {beam_size}")
        if mode not in ("cached", "faithful"):
            raise ValueError(f"mode must be 'cached' or 'faithful', got {mode!r}")
        self.beam_size = beam_size
        self.mode = mode
        self.stochastic = stochastic
        self.scorer = EntangledScorer(d_model, device=device, dtype=dtype)
        self._warned = False
        self.graphs = WholeGraphs()

    def forward(
        self, x: Tensor, key_padding_mask: Tensor | None = None, *, need_trees: bool = False
    ) -> Tensor | tuple[Tensor, BeamTrees]:
        if is_exporting():
            return exported_root(self, x, key_padding_mask, need_trees, beam_size=self.beam_size)
        leaves, lengths = self.read(x, key_padding_mask)
        warn_if_greedy(self, stacklevel=5)
        if self.plain and not need_trees and x.shape[1] > 1:
            options = (self.beam_size, self.mode, self.stochastic, self.cell.training, self.cell.dropout)
            leaves = lengthen(leaves, self.graphs.padding(leaves))
            (root,) = self.graphs.run(
                lambda *of: (self.search(*of).root(),), (leaves, lengths), (self.cell, self.scorer), options
            )
            return root
        beams = self.search(leaves, lengths) if self.plain else self._recurse(leaves, lengths)
        root = beams.root()
        if self.plain and x.shape[1] == 1:
            root = with_zero_gradients(root, [*self.cell.parameters(), *self.scorer.parameters()])
        return (root, beams.trees()) if need_trees else root

    def forest(
        self, x: Tensor, key_padding_mask: Tensor | None = None, *, merges: Tensor | None = None
    ) -> Forest:
        refuse_merges(merges)
        if is_exporting():
            return exported_forest(self, x, key_padding_mask, beam_size=self.beam_size)
        leaves, lengths = self.read(x, key_padding_mask)
        warn_if_greedy(self, stacklevel=5)
        if not self.plain:
            grown = self._recurse(leaves, lengths, need_nodes=True)
            return Forest(leaves, grown.nodes, grown.vectors, grown.trees())
        made: list[Made] = []
        beams = self.search(leaves, lengths, made)
        nodes, roots = beams.nodes(made), beams.roots()
        if x.shape[1] == 1:
            roots = with_zero_gradients(roots, [*self.cell.parameters(), *self.scorer.parameters()])
        return Forest(leaves, nodes, roots, beams.trees())

    @property
    def plain(self) -> bool:
        """Whether all pairs are made at every step, by `search`; otherwise the engine keeps what it made."""
        return self.mode == "faithful" and self.training

    def _recurse(self, leaves: Tensor, lengths: Tensor, need_nodes: bool = False) -> recursion.Beams:
        noisy = self.training and self.stochastic
        return recursion.beam_tree_recursion(
            leaves,
            lengths,
            self.cell,
            self.scorer,
            beam_size=self.beam_size,
            noisy=noisy,
            need_nodes=need_nodes,
        )

    @untraced
    def search(self, leaves: Tensor, lengths: Tensor, made: list[Made] | None = None) -> Beams:
        """From the leaves (B, n, d) to the beams that are left, every pair's parent made at every step.

        `made`, where given, takes what each step makes.
        """
        n, K = leaves.shape[1], self.beam_size
        beams, propose = Beams(leaves, lengths), self.proposer(leaves)
        for t in range(n - 1):
            step = Step(t, lengths, n)
            parents, logits = propose(beams.states[:, :, :-1], beams.states[:, :, 1:])
            noise = gumbel_noise(*logits.shape, like=logits) if self.stochastic else None
            candidates = beams.candidates(logits, step, K, noise)
            noise = gumbel_noise(*candidates.score.shape, like=logits) if self.stochastic else None
            chosen = candidates.best(K, noise)
            parent = take(parents, chosen.beam, chosen.position)
            if made is not None:
                made.append(Made(parent, chosen.beam))
            beams.follow(chosen, splice(beams.states, chosen, parent, step), step)
        return beams

    def propose(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """The parents of pairs (B, beams, pairs, d), under fresh dropout masks, and their scores."""
        parents = self.cell(left, right, self.cell.draw_keep(*left.shape[:-1]))
        return parents, self.scorer(parents)

    def proposer(self, leaves: Tensor) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """`propose` for one search from these leaves, by kernels where there are any."""
        cell, scorer = self.cell, self.scorer
        if (
            type(cell) is not GatedRecursiveCell
            or type(scorer) is not EntangledScorer
            or any(x.dtype != torch.float32 for x in (leaves, *cell.parameters(), *scorer.parameters()))
            or autocasts(leaves)
            or not has_kernels(leaves.device)
        ):
            return self.propose
        from beamtree.kernels.zoo.parents import flatten, propose

        weights = flatten(weights_of(cell, scorer).flat())

        def by_kernels(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
            keep = cell.draw_keep(*left.shape[:-1])
            return propose(left, right, keep, weights, cell.hidden_size, cell.norm.eps)

        return by_kernels
