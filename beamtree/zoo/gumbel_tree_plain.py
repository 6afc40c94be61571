"""GT-GRC and EGT-GRC written plainly: every state kept, autograd through everything.

The oracle of gumbel_tree.py's tests, and its `faithful` mode: here GT-GRC draws the dropout mask of every
candidate afresh at every step, as it was published.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from beamtree.engine.ties import up_to_rounding
from beamtree.pytorch.tracing import untraced
from beamtree.zoo.running_sum import running_sum

Draw = Callable[[int, int], Tensor | None]  # step, pairs -> (B, pairs, …)


@untraced
def gumbel_tree(
    leaves: Tensor,  # (B, n, d)
    lengths: Tensor,  # (B,)
    cell: nn.Module,
    scorer: nn.Module,
    *,
    entangled: bool,
    noise: Draw,
    keep: Draw,
) -> tuple[Tensor, Tensor]:
    """The roots (B, d) and merges (B, n−1). `noise` perturbs the logits, `keep` gives the dropout masks:
    of all pairs if `entangled`, else of the one chosen, (B, 1, …)."""
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
        # A finished sequence has no pair: zeros keep its softmax, which nothing reads, free of NaN.
        logits = torch.where(running, logits.masked_fill(~is_pair, -torch.inf), torch.zeros_like(logits))
        chance = logits.softmax(-1)
        chosen = up_to_rounding(logits).argmax(-1, keepdim=True)
        hard = torch.zeros_like(chance).scatter(1, chosen, 1.0)
        choice = hard + chance - chance.detach() if pairs > 1 else hard
        choice = choice.to(states.dtype)
        passed = running_sum(choice).unsqueeze(-1)  # (B, pairs, 1)
        choice = choice.unsqueeze(-1)
        if not entangled:
            parents = cell((choice * left).sum(1, True), (choice * right).sum(1, True), keep(t, 1))
        merged = choice * parents + (1 - passed) * left + (passed - choice) * right
        states = torch.where(running.unsqueeze(-1), merged, left)
        merges.append(torch.where(running, chosen, -1))
    return states[:, 0], torch.cat(merges, 1) if merges else lengths.new_empty(len(lengths), 0)
