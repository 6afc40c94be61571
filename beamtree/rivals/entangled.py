"""BT-GRC: beam search over trees where a pair's score is read off the parent it would make.

    e = w·cell(l, r) + b        S_b = Σ_t log softmax(e)_chosen        root = Σ_b softmax(S)_b·root_b

Every candidate parent of a surviving lineage is in some softmax, so all get gradient.
"""

import warnings

import torch
from torch import Tensor

from beamtree.forest import Forest, refuse_merges
from beamtree.rivals.beam_step import Beams, Candidates, Made, Step, splice, take
from beamtree.rivals.tree_encoder import TreeEncoder, gumbel_noise, with_zero_gradients
from beamtree.scorer import EntangledScorer
from beamtree.tree import BeamTrees


class BeamTreeGRC(TreeEncoder):
    """Keeps the `beam_size` best trees.

    `mode="cached"` makes the parent of a pair once and keeps it, dropout mask included, for as long as the
    pair lives; `"faithful"` makes all of them afresh at every step, as published. Without dropout the two are
    the same.
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

    def forward(
        self, x: Tensor, key_padding_mask: Tensor | None = None, *, need_trees: bool = False
    ) -> Tensor | tuple[Tensor, BeamTrees]:
        leaves, lengths = self.read(x, key_padding_mask)
        self._warn_if_greedy()
        beams = self.search(leaves, lengths)
        root = beams.root()
        if x.shape[1] == 1:
            root = with_zero_gradients(root, [*self.cell.parameters(), *self.scorer.parameters()])
        return (root, beams.trees()) if need_trees else root

    def forest(
        self, x: Tensor, key_padding_mask: Tensor | None = None, *, merges: Tensor | None = None
    ) -> Forest:
        refuse_merges(merges)
        leaves, lengths = self.read(x, key_padding_mask)
        self._warn_if_greedy()
        made: list[Made] = []
        beams = self.search(leaves, lengths, made)
        nodes, roots = beams.nodes(made), beams.roots()
        if x.shape[1] == 1:
            roots = with_zero_gradients(roots, [*self.cell.parameters(), *self.scorer.parameters()])
        return Forest(leaves, nodes, roots, beams.trees())

    def search(self, leaves: Tensor, lengths: Tensor, made: list[Made] | None = None) -> Beams:
        """From the leaves (B, n, d) to the beams that are left when every sequence is one node.

        `made`, where given, takes what each step makes.
        """
        n, K = leaves.shape[1], self.beam_size
        noisy = self.training and self.stochastic
        cached = self.mode == "cached" or not self.training
        beams = Beams(leaves, lengths)
        for t in range(n - 1):
            step = Step(t, lengths, n)
            if t == 0 or not cached:
                parents, logits = self.propose(beams.states[:, :, :-1], beams.states[:, :, 1:])
            noise = gumbel_noise(*logits.shape, like=logits) if noisy else None
            candidates = beams.candidates(logits, step, K, noise)
            noise = gumbel_noise(*candidates.score.shape, like=logits) if noisy else None
            chosen = candidates.best(K, noise)
            parent = take(parents, chosen.beam, chosen.position)
            if made is not None:
                made.append(Made(parent, chosen.beam))
            beams.follow(chosen, splice(beams.states, chosen, parent, step), step)
            if cached:
                parents, logits = self._renew(parents, logits, chosen, beams.states, step)
        return beams

    def propose(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """The parents of pairs (B, beams, pairs, d), under fresh dropout masks, and their scores."""
        parents = self.cell(left, right, self.cell.draw_keep(*left.shape[:-1]))
        return parents, self.scorer(parents)

    def _renew(
        self, parents: Tensor, logits: Tensor, chosen: Candidates, states: Tensor, step: Step
    ) -> tuple[Tensor, Tensor]:
        """The survivors' pairs: those their beam had, but for the two that each merge has made."""
        last = states.shape[2] - 1
        if last == 0:
            return parents, logits
        beam = torch.arange(states.shape[1], device=states.device).expand_as(chosen.beam)
        left, middle, right = (
            take(states, beam, (chosen.position + shift).clamp(0, last)) for shift in (-1, 0, 1)
        )
        made, scores = self.propose(torch.stack((left, middle), 2), torch.stack((middle, right), 2))
        place = torch.arange(last, device=states.device)
        before = (place + 1 == chosen.position.unsqueeze(-1)).unsqueeze(-1)  # (B, K, pairs, 1)
        found = []
        for old, new in ((parents, made), (logits.unsqueeze(-1), scores.unsqueeze(-1))):
            spliced = splice(old, chosen, new[:, :, 1], step)
            found.append(torch.where(before, new[:, :, :1], spliced))
        return found[0], found[1].squeeze(-1)

    def _warn_if_greedy(self) -> None:
        if self.beam_size == 1 and self.training and not self._warned:
            self._warned = True
            warnings.warn(
                "with beam_size=1 the scorer gets no gradient: its choices stay random", stacklevel=5
            )
