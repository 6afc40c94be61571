"""One step of a beam of trees, plainly: which pairs are candidates, and what a survivor becomes.

For encoders whose candidates all stay in the graph: BT-GRC and its OneSoft variant.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from beamtree.engine.choosing import stable_topk
from beamtree.trees.beam_trees import BeamTrees


class Candidates(NamedTuple):
    """Merges that may survive, beam by beam: (B, candidates) each, or (B, K) once chosen."""

    score: Tensor  # −inf for those that do not exist
    beam: Tensor
    position: Tensor

    def best(self, k: int, noise: Tensor | None = None) -> "Candidates":
        """The k best, best first; equal ones in their order."""
        perturbed = self.score.detach() if noise is None else self.score.detach() + noise
        index = stable_topk(perturbed, min(k, perturbed.shape[1]))[1]
        return Candidates(*(part.gather(1, index) for part in self))

    def head(self, k: int) -> "Candidates":
        return Candidates(*(part[:, :k] for part in self))

    def tail(self, k: int) -> "Candidates":
        return Candidates(*(part[:, -k:] for part in self))


class MadeParents(NamedTuple):
    """What one step makes: the parent in every surviving beam, and the beam it comes from."""

    parent: Tensor  # (B, K, d)
    beam: Tensor  # (B, K)


class Step:
    """What is the same for all beams at step t: which pairs there are, and which sequences still merge."""

    def __init__(self, t: int, lengths: Tensor, n: int) -> None:
        pair = torch.arange(n - 1 - t, device=lengths.device)
        self.is_pair = pair < (lengths - 1 - t)[:, None]  # (B, pairs)
        self.running = self.is_pair[:, 0]  # (B,)


class LiveBeams:
    """The trees being built: all their live nodes, their scores and their merges so far."""

    def __init__(self, leaves: Tensor, lengths: Tensor) -> None:
        B = leaves.shape[0]
        wide = torch.promote_types(leaves.dtype, torch.float32)
        self.states = leaves.unsqueeze(1)  # (B, beams, width, d)
        # Scores fall with every step, so they are kept less the best one's, whose gradient cancels.
        self.scores = leaves.new_zeros(B, 1, dtype=wide)  # (B, beams), −inf for dead beams
        self.offset = leaves.new_zeros(B, dtype=torch.float64)
        self.merges = lengths.new_empty(B, 1, 0)  # (B, beams, t)
        self.lengths = lengths

    def candidates(self, logits: Tensor, step: Step, k: int, noise: Tensor | None = None) -> Candidates:
        """The best k pairs of every beam by logits (B, beams, pairs), with what its score would become."""
        B, beams, pairs = logits.shape
        k = min(k, pairs)
        logits = logits.masked_fill(~step.is_pair[:, None], -torch.inf)
        # A finished sequence has no pair; zeros keep its softmax, which nothing reads, free of NaN.
        logits = torch.where(step.running[:, None, None], logits, torch.zeros_like(logits))
        perturbed = logits.detach() if noise is None else logits.detach() + noise
        position = stable_topk(perturbed, k)[1]  # (B, beams, k)
        score = self.scores.unsqueeze(-1) + F.log_softmax(logits, -1).gather(-1, position)
        # A finished sequence keeps its beams: the first candidate of each stands for it.
        frozen = F.pad(self.scores.unsqueeze(-1), (0, k - 1), value=-torch.inf)
        score = torch.where(step.running[:, None, None], score, frozen)
        beam = torch.arange(beams, device=logits.device).repeat_interleave(k).expand(B, -1)
        return Candidates(score.flatten(1), beam, position.flatten(1))

    def follow(self, chosen: Candidates, states: Tensor, step: Step) -> None:
        """Go on with the chosen, whose live nodes are now `states` (B, K, width−1, d)."""
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

    def roots(self) -> Tensor:
        """(B, K, d), best first, as `trees` and `nodes` have them."""
        return _pick(self.states[:, :, 0], self._order()[1])

    def nodes(self, made: list[MadeParents]) -> Tensor:
        """(B, K, n−1, d) the inner nodes of each beam by step, zero where there is none."""
        beam, found = self._order()[1], list[Tensor]()
        exists = _pick(self.merges, beam) >= 0
        for step in reversed(made):
            found.append(_pick(step.parent, beam))
            beam = step.beam.gather(1, beam)
        if not found:
            return self.states.new_empty(*beam.shape, 0, self.states.shape[-1])
        return torch.stack(found[::-1], 2).masked_fill(~exists.unsqueeze(-1), 0.0)

    def _order(self) -> tuple[Tensor, Tensor]:
        return self.scores.sort(dim=1, descending=True, stable=True)

    def trees(self) -> BeamTrees:
        scores, order = self._order()
        merges = self.merges.gather(1, order.unsqueeze(-1).expand_as(self.merges))
        return BeamTrees(
            merges.masked_fill((scores == -torch.inf).unsqueeze(-1), -1), scores, self.offset, self.lengths
        )


def _pick(rows: Tensor, beam: Tensor) -> Tensor:
    """rows[b, beam[b, k]] for (B, beams, w) and (B, K) -> (B, K, w)."""
    return rows.gather(1, beam.unsqueeze(-1).expand(-1, -1, rows.shape[-1]))


def splice(rows: Tensor, chosen: Candidates, parents: Tensor, step: Step) -> Tensor:
    """The rows of every survivor's beam, the two at its position replaced by one: width → width − 1."""
    width = rows.shape[2]  # (B, beams, width, d)
    place = torch.arange(width - 1, device=rows.device)
    at = torch.where(step.running[:, None], chosen.position, width).unsqueeze(-1)  # nowhere, once finished
    moved = take(rows, chosen.beam.unsqueeze(-1), place + (place > at))
    return torch.where((place == at).unsqueeze(-1), parents.unsqueeze(2), moved)


def take(rows: Tensor, beam: Tensor, place: Tensor) -> Tensor:
    """rows[b, beam, place] for (B, beams, width, d) and indices (B, …) -> (B, …, d)."""
    B, beams, width, d = rows.shape
    first = torch.arange(0, B * beams, beams, device=rows.device).view(B, *[1] * (place.dim() - 1))
    index = torch.add(place, first + beam, alpha=width)
    # Of gather and index_select, only the latter keeps nothing but the indices for the backward pass.
    return rows.reshape(-1, d).index_select(0, index.view(-1)).view(*index.shape, d)
