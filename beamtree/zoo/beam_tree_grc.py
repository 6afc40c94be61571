"""BT-GRC: beam search over trees in which a pair is scored by the parent that the cell would make of it.

    e = w·cell(l, r) + b        S_b = Σ_t log softmax(e)_chosen        root = Σ_b softmax(S)_b·root_b

Every candidate parent of a surviving lineage is part of a softmax, so all of them get gradient. With OneSoft
(one_soft.py) the candidates that the beam drops get gradient too.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from beamtree import recursion
from beamtree.engine.choosing import stable_topk
from beamtree.engine.export import exported_forest, exported_root
from beamtree.graphs.whole_graphs import WholeGraphs, lengthen
from beamtree.parts.scorer import EntangledScorer
from beamtree.pytorch.checks import warn_if_greedy
from beamtree.pytorch.tracing import is_exporting, runs_eagerly
from beamtree.trees.beam_trees import BeamTrees
from beamtree.trees.forest import Forest, refuse_merges
from beamtree.zoo.tree_encoder import TreeEncoder, gumbel_noise, with_zero_gradients


class BeamTreeGRC(TreeEncoder):
    """BT-GRC, (B, n, input_size) -> (B, d_model): the roots of the `beam_size` best trees, averaged by score.

    Args:
        d_model: width of a node.
        input_size: width of the tokens, `d_model` if not given.
        beam_size: how many trees are kept.
        mode: "cached" scores a pair once and keeps its dropout mask as long as the pair exists, in memory
            linear in n. "faithful" recomputes the parents of all pairs at every step, as published. The two
            differ only in training with dropout.
        dropout: dropout rate on the cell's hidden layer.
        stochastic: perturb both selections with Gumbel noise in training.
    """

    _no_nodes = "inner nodes in training need mode='cached'"

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
        """Encode x (B, n, input_size) as (B, d_model); with `need_trees` also return the trees found.

        `key_padding_mask` (B, n) is True at padding, on the right.
        """
        if is_exporting():
            return exported_root(self, x, key_padding_mask, need_trees, beam_size=self.beam_size)
        leaves, lengths = self.read(x, key_padding_mask)
        warn_if_greedy(self, stacklevel=5)
        if not self.plain:
            found = self._recurse(leaves, lengths)
            return (found.root(), found.trees()) if need_trees else found.root()
        if not need_trees and x.shape[1] > 1:
            options = (self.beam_size, self.mode, self.stochastic, self.cell.training, self.cell.dropout)
            leaves = lengthen(leaves, self.graphs.padding(leaves))
            return self.graphs.run(
                lambda *of: self.search(*of).root(), (leaves, lengths), (self.cell, self.scorer), options
            )
        beams = self.search(leaves, lengths)
        root = beams.root()
        if x.shape[1] == 1:
            root = with_zero_gradients(root, [*self.cell.parameters(), *self.scorer.parameters()])
        return (root, beams.trees()) if need_trees else root

    def forest(
        self, x: Tensor, key_padding_mask: Tensor | None = None, *, merges: Tensor | None = None
    ) -> Forest:
        """Return the surviving trees with the vectors of all their nodes; `merges` must be None.

        In training this needs `mode="cached"`.
        """
        refuse_merges(merges)
        if is_exporting():
            return exported_forest(self, x, key_padding_mask, beam_size=self.beam_size)
        leaves, lengths = self.read(x, key_padding_mask)
        warn_if_greedy(self, stacklevel=5)
        if self.plain:
            raise ValueError(self._no_nodes)
        grown = self._recurse(leaves, lengths, need_nodes=True)
        return Forest(leaves, grown.nodes, grown.vectors, grown.trees())

    @property
    def plain(self) -> bool:
        """True if `search` recomputes all pairs at every step; else the engine computes each pair once."""
        return self.mode == "faithful" and self.training

    def _recurse(self, leaves: Tensor, lengths: Tensor, need_nodes: bool = False) -> recursion.Beams:
        return recursion.beam_tree_recursion(
            leaves,
            lengths,
            self.cell,
            self.scorer,
            beam_size=self.beam_size,
            noisy=self.training and self.stochastic,
            need_nodes=need_nodes,
        )

    @runs_eagerly
    def search(self, leaves: Tensor, lengths: Tensor) -> "LiveBeams":
        """Search from the leaves (B, n, d), recomputing the parents of all pairs at every step."""
        n, K = leaves.shape[1], self.beam_size
        beams = LiveBeams(leaves, lengths)
        for t in range(n - 1):
            step = Step(t, lengths, n)
            parents, logits = self.propose(beams.states[:, :, :-1], beams.states[:, :, 1:])
            noise = gumbel_noise(*logits.shape, like=logits) if self.stochastic else None
            candidates = beams.candidates(logits, step, K, noise)
            noise = gumbel_noise(*candidates.score.shape, like=logits) if self.stochastic else None
            chosen = candidates.best(K, noise)
            parent = take(parents, chosen.beam, chosen.position)
            beams.follow(chosen, splice(beams.states, chosen, parent, step), step)
        return beams

    def propose(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """Return the parents of pairs (B, beams, pairs, d), with new dropout masks, and their scores."""
        parents = self.cell(left, right, self.cell.draw_keep(*left.shape[:-1]))
        return parents, self.scorer(parents)


class Candidates(NamedTuple):
    """Merges that may survive, sorted by beam: (B, candidates) each, or (B, K) once chosen."""

    score: Tensor  # −inf for candidates that do not exist
    beam: Tensor
    position: Tensor

    def best(self, k: int, noise: Tensor | None = None) -> "Candidates":
        """Return the k best candidates, best first; ties keep their order."""
        perturbed = self.score.detach() if noise is None else self.score.detach() + noise
        index = stable_topk(perturbed, min(k, perturbed.shape[1]))[1]
        return Candidates(*(part.gather(1, index) for part in self))

    def some(self, which: slice) -> "Candidates":
        return Candidates(*(part[:, which] for part in self))


class Step:
    """Masks of step t, the same for all beams: which pairs exist, and which sequences still merge."""

    def __init__(self, t: int, lengths: Tensor, n: int) -> None:
        pair = torch.arange(n - 1 - t, device=lengths.device)
        self.is_pair = pair < (lengths - 1 - t)[:, None]  # (B, pairs)
        self.running = self.is_pair[:, 0]  # (B,)


class LiveBeams:
    """The trees during the search: their live nodes, scores and merges so far."""

    def __init__(self, leaves: Tensor, lengths: Tensor) -> None:
        B = leaves.shape[0]
        wide = torch.promote_types(leaves.dtype, torch.float32)
        self.states = leaves.unsqueeze(1)  # (B, beams, width, d)
        # Scores fall with every step, so the best score is subtracted; its gradient would cancel.
        self.scores = leaves.new_zeros(B, 1, dtype=wide)  # (B, beams), −inf for dead beams
        self.offset = leaves.new_zeros(B, dtype=torch.float64)
        self.merges = lengths.new_empty(B, 1, 0)  # (B, beams, t)
        self.lengths = lengths

    def candidates(self, logits: Tensor, step: Step, k: int, noise: Tensor | None = None) -> Candidates:
        """Return the best k pairs of every beam by logits (B, beams, pairs), with the beam's new score."""
        B, beams, pairs = logits.shape
        k = min(k, pairs)
        logits = logits.masked_fill(~step.is_pair[:, None], -torch.inf)
        # A finished sequence has no pairs; zeros keep NaN out of its softmax, which is not used.
        logits = torch.where(step.running[:, None, None], logits, torch.zeros_like(logits))
        perturbed = logits.detach() if noise is None else logits.detach() + noise
        position = stable_topk(perturbed, k)[1]  # (B, beams, k)
        score = self.scores.unsqueeze(-1) + F.log_softmax(logits, -1).gather(-1, position)
        # A finished sequence keeps its beams: each is represented by its first candidate.
        frozen = F.pad(self.scores.unsqueeze(-1), (0, k - 1), value=-torch.inf)
        score = torch.where(step.running[:, None, None], score, frozen)
        beam = torch.arange(beams, device=logits.device).repeat_interleave(k).expand(B, -1)
        return Candidates(score.flatten(1), beam, position.flatten(1))

    def follow(self, chosen: Candidates, states: Tensor, step: Step) -> None:
        """Continue with the chosen candidates, whose live nodes are `states` (B, K, width−1, d)."""
        best = chosen.score.detach().amax(1, keepdim=True)
        self.scores = chosen.score - best
        self.offset = self.offset + best.squeeze(1)
        merge = torch.where(step.running[:, None], chosen.position, -1)
        history = self.merges.gather(1, chosen.beam.unsqueeze(-1).expand(-1, -1, self.merges.shape[2]))
        self.merges = torch.cat((history, merge.unsqueeze(-1)), -1)
        self.states = states

    def root(self) -> Tensor:  # (B, d)
        weights = self.scores.softmax(1).to(self.states.dtype)
        return (weights.unsqueeze(-1) * self.states[:, :, 0]).sum(1)

    def trees(self) -> BeamTrees:
        scores, order = self.scores.sort(dim=1, descending=True, stable=True)
        merges = self.merges.gather(1, order.unsqueeze(-1).expand_as(self.merges))
        return BeamTrees(
            merges.masked_fill((scores == -torch.inf).unsqueeze(-1), -1), scores, self.offset, self.lengths
        )


def splice(rows: Tensor, chosen: Candidates, parents: Tensor, step: Step) -> Tensor:
    """Return the rows of each survivor's beam, the chosen pair replaced by its parent: (B, K, width−1, d)."""
    width = rows.shape[2]  # (B, beams, width, d)
    place = torch.arange(width - 1, device=rows.device)
    at = torch.where(step.running[:, None], chosen.position, width).unsqueeze(-1)  # no place once finished
    moved = take(rows, chosen.beam.unsqueeze(-1), place + (place > at))
    return torch.where((place == at).unsqueeze(-1), parents.unsqueeze(2), moved)


def take(rows: Tensor, beam: Tensor, place: Tensor) -> Tensor:
    """Return rows[b, beam, place] for (B, beams, width, d) and indices (B, …): (B, …, d)."""
    B, beams, width, d = rows.shape
    first = torch.arange(0, B * beams, beams, device=rows.device).view(B, *[1] * (place.dim() - 1))
    index = torch.add(place, first + beam, alpha=width)
    # index_select, unlike gather, saves only the indices for the backward pass.
    return rows.reshape(-1, d).index_select(0, index.view(-1)).view(*index.shape, d)
