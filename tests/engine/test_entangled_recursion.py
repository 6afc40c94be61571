"""BT-GRC on the engine: a pair's score is read off its parent, and one dropout mask serves both for life."""

from itertools import pairwise

import pytest
import torch
from small_encoders import ThroughTheCell
from torch import Tensor

from beamtree import recursion
from beamtree.engine.naive import naive_beam_tree_recursion
from beamtree.engine.randomness import draw_keep
from beamtree.engine.record import Beams
from beamtree.parts.cell import GatedRecursiveCell
from beamtree.parts.scorer import EntangledScorer
from beamtree.recursion import beam_tree_recursion

SEED = torch.tensor(77)
LENGTHS = [9, 1, 2, 3, 13, 4, 7]
D = 6


def parts(dropout: float = 0.0) -> tuple[GatedRecursiveCell, EntangledScorer, Tensor]:
    torch.manual_seed(0)
    cell = GatedRecursiveCell(D, dropout=dropout, dtype=torch.float64)
    scorer = EntangledScorer(D, dtype=torch.float64)
    scorer.weight.data *= 4
    return cell, scorer, torch.randn(len(LENGTHS), max(LENGTHS), D, dtype=torch.float64, requires_grad=True)


def assert_same_gradients(mine: Tensor, theirs: Tensor, inputs: list[Tensor]) -> None:
    cotangent = torch.randn_like(mine)
    torch.testing.assert_close(
        torch.autograd.grad(mine, inputs, cotangent),
        torch.autograd.grad(theirs, inputs, cotangent),
        rtol=1e-8,
        atol=1e-9,
    )


@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("beam_size", [1, 3, 5])
def test_without_dropout_it_equals_the_published_algorithm(
    monkeypatch: pytest.MonkeyPatch, beam_size: int, noisy: bool
) -> None:
    monkeypatch.setattr(recursion, "draw_seed", lambda device: SEED)
    cell, scorer, leaves = parts()
    lengths = torch.tensor(LENGTHS)
    beams = beam_tree_recursion(leaves, lengths, cell, scorer, beam_size=beam_size, noisy=noisy)
    roots, scores, merges = naive_beam_tree_recursion(
        leaves, lengths, cell, ThroughTheCell(cell, scorer), beam_size=beam_size, seed=SEED, noisy=noisy
    )
    expected = (scores.softmax(1).unsqueeze(-1) * roots).sum(1)
    assert torch.equal(beams.trees().merges, merges)
    torch.testing.assert_close(beams.root(), expected, rtol=0, atol=1e-10)
    assert_same_gradients(beams.root(), expected, [leaves, *cell.parameters(), *scorer.parameters()])


def rebuild(
    beams: Beams, leaves: Tensor, cell: GatedRecursiveCell, scorer: EntangledScorer, K: int
) -> Tensor:
    """The roots (B, d) by plain autograd along the surviving trees, all pairs scored at every step."""
    found = []
    merges = beams.merges
    weights = [*cell.parameters(), *scorer.parameters()]
    options = (SEED, True, cell.dropout, None, None, False, torch.float64)
    lineages = torch.ops.beamtree.search(leaves, torch.tensor(LENGTHS), weights, K, *options)[4]
    for b, length in enumerate(LENGTHS):
        roots, scores = [], []
        for k in range(K):
            if beams.relative[b, k] == -torch.inf:
                continue
            state = [(leaves[b, i], torch.tensor(i)) for i in range(length)]
            score = torch.zeros((), dtype=torch.float64)
            for t in range(length - 1):
                parents = []
                for (left, left_name), (right, right_name) in pairwise(state):
                    place = (left_name, torch.tensor(b), right_name)
                    keep = draw_keep(SEED, *place, cell.hidden_size, cell.dropout, torch.float64)
                    parents.append(cell(left, right, keep))
                position = int(merges[b, k, t])
                score = score + scorer(torch.stack(parents)).log_softmax(0)[position]
                slot = int(lineages[b, k, t]) % K
                state[position : position + 2] = [(parents[position], torch.tensor(2**32 + t * K + slot))]
            roots.append(state[0][0])
            scores.append(score)
        found.append((torch.stack(scores).softmax(0).unsqueeze(-1) * torch.stack(roots)).sum(0))
    return torch.stack(found)


def test_a_pair_keeps_its_mask_from_its_first_score_to_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recursion, "draw_seed", lambda device: SEED)
    cell, scorer, leaves = parts(dropout=0.4)
    beams = beam_tree_recursion(leaves, torch.tensor(LENGTHS), cell, scorer, beam_size=3, noisy=True)
    expected = rebuild(beams, leaves, cell, scorer, 3)
    torch.testing.assert_close(beams.root(), expected, rtol=0, atol=1e-10)
    assert_same_gradients(beams.root(), expected, [leaves, *cell.parameters(), *scorer.parameters()])


def test_masks_depend_neither_on_padding_nor_on_batch_mates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recursion, "draw_seed", lambda device: SEED)
    cell, scorer, leaves = parts(dropout=0.4)
    together = beam_tree_recursion(leaves, torch.tensor(LENGTHS), cell, scorer, beam_size=3).root()
    alone = beam_tree_recursion(leaves[:1, :9], torch.tensor([9]), cell, scorer, beam_size=3).root()
    torch.testing.assert_close(together[:1], alone, rtol=0, atol=1e-12)
