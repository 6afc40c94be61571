"""BT-GRC: beam search over trees where a pair's score is read off the parent it would make.

    e = w·cell(l, r) + b        S_b = Σ_t log softmax(e)_chosen        root = Σ_b softmax(S)_b·root_b

Every candidate parent of a surviving lineage is in some softmax, so all get gradient. The OneSoft variant
gives gradient to those that the beam drops too.
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
from beamtree.pytorch.derivatives import is_transformed
from beamtree.pytorch.precision import autocasts
from beamtree.pytorch.registry import has_kernels
from beamtree.pytorch.tracing import is_exporting, untraced
from beamtree.trees.beam_trees import BeamTrees
from beamtree.trees.forest import Forest, refuse_merges
from beamtree.zoo.beam_step import Candidates, LiveBeams, MadeParents, Step, splice, take
from beamtree.zoo.tree_encoder import TreeEncoder, gumbel_noise, merge_by_choice, with_zero_gradients


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
        made: list[MadeParents] = []
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
    def search(self, leaves: Tensor, lengths: Tensor, made: list[MadeParents] | None = None) -> LiveBeams:
        """From the leaves (B, n, d) to the beams that are left, every pair's parent made at every step.

        `made`, where given, takes what each step makes.
        """
        n, K = leaves.shape[1], self.beam_size
        beams, propose = LiveBeams(leaves, lengths), self.proposer(leaves)
        for t in range(n - 1):
            step = Step(t, lengths, n)
            parents, logits = propose(beams.states[:, :, :-1], beams.states[:, :, 1:])
            noise = gumbel_noise(*logits.shape, like=logits) if self.stochastic else None
            candidates = beams.candidates(logits, step, K, noise)
            noise = gumbel_noise(*candidates.score.shape, like=logits) if self.stochastic else None
            chosen = candidates.best(K, noise)
            parent = take(parents, chosen.beam, chosen.position)
            if made is not None:
                made.append(MadeParents(parent, chosen.beam))
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
            or is_transformed()
            or not has_kernels(leaves.device)
        ):
            return self.propose
        from beamtree.kernels.zoo.parent_kernels import flatten, propose

        weights = flatten(weights_of(cell, scorer).flat())

        def by_kernels(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
            keep = cell.draw_keep(*left.shape[:-1])
            return propose(left, right, keep, weights, cell.hidden_size, cell.norm.eps)

        return by_kernels


class OneSoftBeamTreeGRC(BeamTreeGRC):
    """BT-GRC OS (OneSoft): in training, what the beam would drop is blended into its last slot.

    The K−1 best candidates survive as they are. Of the rest, with w = softmax of their scores,

        h = Σ w·h    p = Σ w·p    y = Σ w·onehot(position)    S = Σ w·S        c = cumsum(y)
        h'_j = y_j·p_j + (1 − c_j)·h_j + (c_j − y_j)·h_{j+1}

    where h are the beam's nodes and p the parents of all its pairs, so that every candidate gets gradient.
    In evaluation it is BT-GRC.

    The soft beam changes everywhere at every step in training, so all its candidates are made afresh.

    `mode="cached"` does so for the soft beam alone: a hard beam makes its two new candidates and keeps the
    others, dropout mask included. `"faithful"` makes all of them at every step, as published. Without dropout
    the two are the same.
    """

    @property
    def plain(self) -> bool:
        return self.training

    @untraced
    def search(self, leaves: Tensor, lengths: Tensor, made: list[MadeParents] | None = None) -> LiveBeams:
        if made is not None:
            raise ValueError("in training the soft beam of BT-GRC OS is no tree and has no inner nodes")
        n, K = leaves.shape[1], self.beam_size
        beams, propose = LiveBeams(leaves, lengths), self.proposer(leaves)
        parents, logits = propose(beams.states[:, :, :-1], beams.states[:, :, 1:])
        for t in range(n - 1):
            step = Step(t, lengths, n)
            noise = gumbel_noise(*logits.shape, like=logits) if self.stochastic else None
            candidates = beams.candidates(logits, step, K, noise)
            total = candidates.score.shape[1]
            ranked = candidates.best(total)
            hard = ranked.head(K if total <= K else K - 1)
            states = splice(beams.states, hard, take(parents, hard.beam, hard.position), step)
            chosen, soft = hard, states[:, :0]
            if total > K:
                rest = ranked.tail(total - K + 1)
                score, soft = blend(rest, beams.states, parents, step)
                # In a drawing the soft beam is its heaviest part.
                chosen = ranked.head(K)._replace(score=torch.cat((hard.score, score), 1))
            if self.mode == "cached" and t < n - 2:
                parents, logits = _update(propose, parents, logits, hard, states, soft, step)
            states = torch.cat((states, soft), 1)
            if self.mode == "faithful" and t < n - 2:
                parents, logits = propose(states[:, :, :-1], states[:, :, 1:])
            beams.follow(chosen, states, step)
        return beams


def _update(
    propose: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    parents: Tensor,
    logits: Tensor,
    hard: Candidates,
    states: Tensor,
    soft: Tensor,
    step: Step,
) -> tuple[Tensor, Tensor]:
    """Parents and scores of all pairs after a step: new ones beside the merges, and in the soft beam."""
    B, k, width, d = states.shape
    ends = hard.position.unsqueeze(-1) + torch.arange(-1, 2, device=states.device)  # (B, k, 3)
    slot = torch.arange(k, device=states.device).view(1, k, 1)
    around = take(states, slot, ends.clamp(0, width - 1)).expand(B, k, 3, d)
    left = torch.cat((around[:, :, :-1].flatten(1, 2), soft[:, :, :-1].flatten(1, 2)), 1)
    right = torch.cat((around[:, :, 1:].flatten(1, 2), soft[:, :, 1:].flatten(1, 2)), 1)
    made, scores = propose(left, right)  # (B, 2·k + the soft beam's pairs, d)

    beams, pairs = logits.shape[1:]
    place = torch.arange(width - 1, device=states.device)
    row = torch.arange(B, device=states.device).view(B, 1, 1)
    at = torch.where(step.running[:, None], hard.position, width + 1).unsqueeze(-1)  # nowhere at the end
    old = (row * beams + hard.beam.unsqueeze(-1)) * pairs + place + (place > at)  # (B, k, width−1)
    new = row * made.shape[1] + logits.numel()  # where a sequence's new pairs begin
    is_right = place == at
    index = torch.where(is_right | (place == at - 1), new + 2 * slot + is_right, old)
    if soft.shape[1]:
        index = torch.cat((index, new + 2 * k + place), 1)

    def pick(before: Tensor, fresh: Tensor) -> Tensor:
        both = torch.cat((before.flatten(0, 2), fresh.flatten(0, 1)))
        return both.index_select(0, index.view(-1)).view(*index.shape, *both.shape[1:])

    return pick(parents, made), pick(logits, scores)


def blend(rest: Candidates, states: Tensor, parents: Tensor, step: Step) -> tuple[Tensor, Tensor]:
    """One soft beam of all these candidates: its score (B, 1) and its live nodes (B, 1, width−1, d)."""
    B, beams, pairs, d = parents.shape
    exists = rest.score > -torch.inf
    some = exists.any(1, keepdim=True)  # (B, 1)
    weight = torch.where(some, rest.score, 0.0).softmax(1)  # (B, candidates)
    score = (weight * rest.score.masked_fill(~exists, 0.0)).sum(1, keepdim=True)
    weight = weight.to(states.dtype)
    by_beam = weight.new_zeros(B, beams).scatter_add(1, rest.beam, weight).unsqueeze(1)  # (B, 1, beams)
    choice = weight.new_zeros(B, pairs).scatter_add(1, rest.position, weight)  # (B, pairs)
    old = (by_beam @ states.flatten(2)).view(B, pairs + 1, d)
    new = (by_beam @ parents.flatten(2)).view(B, pairs, d)
    here, next_one = old[:, :-1], old[:, 1:]
    merged = merge_by_choice(choice, new, here, next_one)
    soft = torch.where(step.running[:, None, None], merged, here)
    return score.masked_fill(~some, -torch.inf), soft.unsqueeze(1)
