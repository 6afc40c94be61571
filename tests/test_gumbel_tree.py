"""GT-GRC and EGT-GRC: the sweep against plain autograd, and what straight-through trees promise."""

import pytest
import torch
from torch import Tensor

from beamtree import create_encoder
from beamtree.cell import GatedRecursiveCell
from beamtree.rivals.gumbel_sweep import Schedule, sum_by_blocks
from beamtree.rivals.gumbel_tree import straight_through_tree
from beamtree.rivals.gumbel_tree_plain import gumbel_tree
from beamtree.scorer import EntangledScorer, SlicedScorer

LENGTHS = [[1], [2], [3], [5, 1, 2, 3, 9, 9, 4], [1, 1], [2, 1, 2]]
D = 6


def make_case(lengths: list[int], entangled: bool, dropout: float) -> tuple:
    torch.manual_seed(len(lengths))
    n = max(lengths)
    cell = GatedRecursiveCell(D, dropout=dropout, dtype=torch.float64)
    scorer = (
        EntangledScorer(D, dtype=torch.float64)
        if entangled
        else SlicedScorer(D, slice_size=4, hidden_size=5, dtype=torch.float64)
    )
    for parameter in scorer.parameters():  # sharp choices, so that the gradient of q is not tiny everywhere
        parameter.data *= 3
    leaves = torch.randn(len(lengths), n, D, dtype=torch.float64, requires_grad=True)
    return leaves, torch.tensor(lengths), cell, scorer


def gradients(root: Tensor, leaves: Tensor, *modules: torch.nn.Module) -> list[Tensor]:
    inputs = [leaves, *(p for module in modules for p in module.parameters())]
    torch.manual_seed(7)
    found = torch.autograd.grad(root, inputs, torch.randn_like(root), allow_unused=True)
    return [torch.zeros_like(i) if g is None else g for i, g in zip(inputs, found, strict=True)]


def pair_numbers(merges: Tensor, lengths: Tensor, schedule: Schedule) -> list[list[list[int]]]:
    """By sequence and own step: which pair of the fast path's store stands at each position."""
    n, table = schedule.n, []
    rank = schedule.order.argsort().tolist()
    for b, length in enumerate(lengths.tolist()):
        pairs, steps = [rank[b] * (n - 1) + i for i in range(length - 1)], []
        for k in range(length - 1):
            steps.append(list(pairs))
            j = int(merges[b, k])
            made = schedule.first_pair + 2 * (schedule.starts[n - length + k] + rank[b])
            pairs = (
                pairs[: max(j - 1, 0)] + [made] * (j > 0) + [made + 1] * (j + 2 < length - k) + pairs[j + 2 :]
            )
        table.append(steps)
    return table


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("entangled", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_the_sweep_equals_autograd_through_every_state(lengths, entangled, noisy, dropout):
    leaves, lengths, cell, scorer = make_case(lengths, entangled, dropout)
    B, n, _ = leaves.shape
    schedule = Schedule(lengths, n)
    noise_table = torch.randn(B, n, n, dtype=torch.float64)  # sequence, own step, position

    def noise(t: int, sequences: int, pairs: int) -> Tensor:
        rows = schedule.order[:sequences]
        return noise_table[rows, t - n + lengths[rows], :pairs]

    rows = schedule.first_pair + 2 * schedule.made if entangled else schedule.made
    keep = cell.draw_keep(rows)
    root, merges = straight_through_tree(leaves, schedule, cell, scorer, keep, noise if noisy else None)

    pairs_at = pair_numbers(merges, lengths, schedule)
    merge_rows = [
        (schedule.starts[t] + r, b, t - n + int(lengths[b]))
        for t in range(n - 1)
        for r, b in enumerate(schedule.order[: schedule.counts[t]].tolist())
    ]

    def masks(t: int, pairs: int) -> Tensor | None:
        if keep is None:
            return None
        table = torch.zeros(B, pairs, cell.hidden_size, dtype=torch.float64)
        if entangled:
            for b in range(B):
                if t < lengths[b] - 1:
                    table[b, : len(pairs_at[b][t])] = keep[pairs_at[b][t]]
        else:
            for place, b, own in merge_rows:
                if own == t:
                    table[b, 0] = keep[place]
        return table

    plain_root, plain_merges = gumbel_tree(
        leaves,
        lengths,
        cell,
        scorer,
        entangled=entangled,
        noise=lambda t, pairs: noise_table[:, t, :pairs] if noisy else None,
        keep=masks,
    )
    torch.testing.assert_close(merges, plain_merges)
    torch.testing.assert_close(root, plain_root, rtol=0, atol=1e-10)
    ours, theirs = gradients(root, leaves, cell, scorer), gradients(plain_root, leaves, cell, scorer)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-8)
    if max(lengths) > 2:
        assert theirs[-2].abs().max() > 1e-6, "the scorer must take part in this test"
