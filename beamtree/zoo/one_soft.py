"""BT-GRC OS (OneSoft): BT-GRC whose last beam, in training, blends all candidates that the others leave."""

import torch
from torch import Tensor

from beamtree.pytorch.tracing import runs_eagerly
from beamtree.zoo.beam_tree_grc import BeamTreeGRC, Candidates, LiveBeams, Step, splice, take
from beamtree.zoo.tree_encoder import gumbel_noise, merge_by_choice


class OneSoftBeamTreeGRC(BeamTreeGRC):
    """BT-GRC OS (OneSoft), which in training blends what the beam would drop into its last slot.

    The K−1 best candidates survive unchanged. The rest are blended, with w the softmax of their scores,

        h = Σ w·h    p = Σ w·p    y = Σ w·onehot(position)    S = Σ w·S        c = cumsum(y)
        h'_j = y_j·p_j + (1 − c_j)·h_j + (c_j − y_j)·h_{j+1}

    where h are the nodes of a candidate's beam and p the parents of all pairs of that beam, so that every
    candidate gets gradient. In evaluation it is the same as BT-GRC.

    Every node of the soft beam changes at every step, so all its candidates must be recomputed. With
    `mode="cached"` this is done for the soft beam only: a hard beam computes its two new candidates and keeps
    the others, dropout masks included. With "faithful" all candidates of all beams are recomputed at every
    step, as published. Without dropout the two are the same.
    """

    _no_nodes = "BT-GRC OS has no inner nodes in training: its soft beam is not a tree"

    @property
    def plain(self) -> bool:
        return self.training

    @runs_eagerly
    def search(self, leaves: Tensor, lengths: Tensor) -> LiveBeams:
        n, K = leaves.shape[1], self.beam_size
        beams = LiveBeams(leaves, lengths)
        parents, logits = self.propose(beams.states[:, :, :-1], beams.states[:, :, 1:])
        for t in range(n - 1):
            step = Step(t, lengths, n)
            noise = gumbel_noise(*logits.shape, like=logits) if self.stochastic else None
            candidates = beams.candidates(logits, step, K, noise)
            total = candidates.score.shape[1]
            ranked = candidates.best(total)
            hard = ranked.some(slice(K if total <= K else K - 1))
            states = splice(beams.states, hard, take(parents, hard.beam, hard.position), step)
            chosen, soft = hard, states[:, :0]
            if total > K:
                score, soft = blend(ranked.some(slice(K - 1, None)), beams.states, parents, step)
                # In `trees`, the soft beam appears as its heaviest part.
                chosen = ranked.some(slice(K))._replace(score=torch.cat((hard.score, score), 1))
            if self.mode == "cached" and t < n - 2:
                parents, logits = self._update(parents, logits, hard, states, soft, step)
            states = torch.cat((states, soft), 1)
            if self.mode == "faithful" and t < n - 2:
                parents, logits = self.propose(states[:, :, :-1], states[:, :, 1:])
            beams.follow(chosen, states, step)
        return beams

    def _update(
        self, parents: Tensor, logits: Tensor, hard: Candidates, states: Tensor, soft: Tensor, step: Step
    ) -> tuple[Tensor, Tensor]:
        """Return parents and scores of all pairs after a step; only those next to merges or soft are new."""
        B, k, width, d = states.shape
        ends = hard.position.unsqueeze(-1) + torch.arange(-1, 2, device=states.device)  # (B, k, 3)
        slot = torch.arange(k, device=states.device).view(1, k, 1)
        around = take(states, slot, ends.clamp(0, width - 1)).expand(B, k, 3, d)
        left = torch.cat((around[:, :, :-1].flatten(1, 2), soft[:, :, :-1].flatten(1, 2)), 1)
        right = torch.cat((around[:, :, 1:].flatten(1, 2), soft[:, :, 1:].flatten(1, 2)), 1)
        made, scores = self.propose(left, right)  # (B, 2·k + the soft beam's pairs, d)

        beams, pairs = logits.shape[1:]
        place = torch.arange(width - 1, device=states.device)
        row = torch.arange(B, device=states.device).view(B, 1, 1)
        at = torch.where(step.running[:, None], hard.position, width + 1).unsqueeze(-1)  # no place at the end
        old = (row * beams + hard.beam.unsqueeze(-1)) * pairs + place + (place > at)  # (B, k, width−1)
        new = row * made.shape[1] + logits.numel()  # the first of a sequence's new pairs
        is_right = place == at
        index = torch.where(is_right | (place == at - 1), new + 2 * slot + is_right, old)
        if soft.shape[1]:
            index = torch.cat((index, new + 2 * k + place), 1)

        def pick(before: Tensor, fresh: Tensor) -> Tensor:
            both = torch.cat((before.flatten(0, 2), fresh.flatten(0, 1)))
            return both.index_select(0, index.view(-1)).view(*index.shape, *both.shape[1:])

        return pick(parents, made), pick(logits, scores)


def blend(rest: Candidates, states: Tensor, parents: Tensor, step: Step) -> tuple[Tensor, Tensor]:
    """Blend candidates into one soft beam; returns its score (B, 1) and live nodes (B, 1, width−1, d)."""
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
