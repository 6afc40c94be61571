"""The published algorithm, written plainly: every state is copied for every candidate, every pair is scored
at every step, and autograd records everything. Tests use it as reference, benchmarks as the original cost.

Efficient Beam Tree Recursion, section 4, with exact log-softmax and −inf in place of masked probabilities.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from beamtree.engine.choosing import stable_topk
from beamtree.engine.randomness import FIRST_SELECTION, SECOND_SELECTION, draw_keep, gumbel
from beamtree.parts.contract import mask_width


def naive_beam_tree_recursion(
    leaves: Tensor,  # (B, n, d)
    lengths: Tensor,  # (B,)
    cell: nn.Module,
    scorer: nn.Module,
    *,
    beam_size: int,
    seed: Tensor | None = None,
    noisy: bool = False,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Roots (B, K, d), accumulated log-scores (B, K) and merges (B, K, n−1) of the final beams.

    `seed` determines the noise of both selections (`noisy`) and the dropout masks (`dropout`); see
    randomness.py.
    """
    B, n, d = leaves.shape
    states = leaves.unsqueeze(1)  # (B, beams, width, d)
    scores = leaves.new_zeros(B, 1)  # (B, beams)
    merges = lengths.new_empty(B, 1, 0)  # (B, beams, t)
    sequence = torch.arange(B, device=leaves.device)[:, None]  # (B, 1)

    for t in range(n - 1):
        pairs = n - 1 - t
        beams = states.shape[1]
        is_pair = torch.arange(pairs, device=leaves.device) < (lengths - 1 - t)[:, None]  # (B, pairs)
        running = is_pair[:, 0]  # (B,)
        slot = torch.arange(beams, device=leaves.device)  # (beams,)
        step = torch.tensor(t, device=leaves.device)

        logits = scorer(states[:, :, :-1], states[:, :, 1:])  # (B, beams, pairs)
        logits = logits.masked_fill(~is_pair[:, None], -torch.inf)
        logits = torch.where(running[:, None, None], logits, torch.zeros_like(logits))
        log_probs = F.log_softmax(logits, -1)

        k = min(pairs, beam_size)
        perturbed = logits.detach()
        if noisy and seed is not None:
            perturbed = perturbed + gumbel(seed, FIRST_SELECTION, step, sequence, slot, pairs, logits.dtype)
        position = stable_topk(perturbed, k)[1]  # (B, beams, k)

        copies = states.unsqueeze(2).expand(B, beams, k, n - t, d).reshape(B, beams * k, n - t, d)
        history = merges.unsqueeze(2).expand(B, beams, k, t).reshape(B, beams * k, t)
        candidates = (scores.unsqueeze(-1) + log_probs.gather(-1, position)).reshape(B, beams * k)
        position = position.reshape(B, beams * k)
        # A finished sequence keeps its beams: of each beam only the first copy counts.
        first_copy = torch.arange(beams * k, device=leaves.device) % k == 0
        kept = torch.where(first_copy, scores.repeat_interleave(k, 1), -torch.inf)
        candidates = torch.where(running[:, None], candidates, kept)

        perturbed = candidates.detach()
        if noisy and seed is not None:
            noise = gumbel(seed, SECOND_SELECTION, step, sequence, slot, beam_size, logits.dtype)
            noise = noise[..., :k].reshape(B, beams * k)
            perturbed = torch.where(running[:, None], perturbed + noise, perturbed)
        chosen = stable_topk(perturbed, min(beam_size, beams * k))[1]  # (B, K), fewer at the start

        one_hot = F.one_hot(chosen, beams * k).to(leaves.dtype)  # (B, K, candidates)
        states = torch.einsum("bkc,bcwd->bkwd", one_hot, copies)
        scores = candidates.gather(1, chosen)
        alive = scores > -torch.inf
        position = position.gather(1, chosen)
        history = history.gather(1, chosen.unsqueeze(-1).expand(-1, -1, t))

        merged = F.one_hot(position, pairs).to(leaves.dtype)  # (B, K, pairs)
        left = torch.einsum("bkp,bkpd->bkd", merged, states[:, :, :-1])
        right = torch.einsum("bkp,bkpd->bkd", merged, states[:, :, 1:])
        keep = None
        if dropout > 0.0 and seed is not None:
            slots = torch.arange(chosen.shape[1], device=leaves.device)
            width = mask_width(cell)
            keep = draw_keep(seed, step, sequence, slots, width, dropout, leaves.dtype)
        parent = cell(left, right, keep)  # (B, K, d)

        merged = merged.unsqueeze(-1)  # (B, K, pairs, 1)
        passed = merged.cumsum(2)
        new = (
            merged * parent.unsqueeze(2)
            + (1 - passed) * states[:, :, :-1]
            + (passed - merged) * states[:, :, 1:]
        )
        states = torch.where(running[:, None, None, None], new, states[:, :, :-1])
        scores = torch.where(alive, scores, -torch.inf)
        merge = torch.where(running[:, None] & alive, position, -1)
        merges = torch.cat((history.masked_fill(~alive.unsqueeze(-1), -1), merge.unsqueeze(-1)), -1)

    roots = states[:, :, 0]
    order = stable_topk(scores.detach(), scores.shape[1])[1]
    roots = roots.gather(1, order.unsqueeze(-1).expand(-1, -1, d))
    return roots, scores.gather(1, order), merges.gather(1, order.unsqueeze(-1).expand(-1, -1, n - 1))
