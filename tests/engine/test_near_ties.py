"""What counts as a near-tie: float32 leaves an exact search by rounding only, a wrong tree by more."""

import copy

import torch
from near_ties import NEAR, gap
from torch import Tensor

from beamtree.engine.record import merge_positions
from beamtree.parts.cell import GatedRecursiveCell
from beamtree.parts.scorer import SlicedScorer

K = 3


def make(d: int = 16) -> tuple[GatedRecursiveCell, SlicedScorer]:
    torch.manual_seed(0)
    return GatedRecursiveCell(d), SlicedScorer(d, slice_size=8)


def search(leaves: Tensor, lengths: Tensor, cell: GatedRecursiveCell, scorer: SlicedScorer) -> Tensor:
    weights = [*cell.parameters(), *scorer.parameters()]
    options = (K, None, False, 0.0, None, None, False, leaves.dtype)
    found = torch.ops.beamtree.search(leaves, lengths, weights, *options)
    return merge_positions(found[5], found[4])


@torch.no_grad()
def test_the_trees_of_float32_leave_an_exact_search_by_rounding_only() -> None:
    cell, scorer = make()
    exact = copy.deepcopy(cell).double(), copy.deepcopy(scorer).double()
    generator, gaps = torch.Generator().manual_seed(1), []
    for batch in range(10):
        lengths = torch.randint(1, 10, (6,), generator=generator)
        n = int(lengths.max())
        leaves = torch.randn(6, n, 16, generator=generator)
        if batch % 2:
            leaves = leaves[0, :2][torch.randint(min(2, n), (6, n), generator=generator)]
        merges = search(leaves, lengths, cell, scorer)
        for x, tree, m in zip(leaves.double(), merges, lengths.tolist(), strict=True):
            gaps.append(gap(x[:m], tree[:, : m - 1], *exact, K))
    assert len(gaps) == 60
    assert max(gaps) <= NEAR


@torch.no_grad()
def test_a_wrong_tree_and_a_wrong_order_are_no_near_ties() -> None:
    cell, scorer = make()
    cell.double(), scorer.double()
    leaves = torch.randn(1, 6, 16, dtype=torch.float64)
    merges = search(leaves, torch.tensor([6]), cell, scorer)[0]
    assert gap(leaves[0], merges, cell, scorer, K) == 0.0
    assert gap(leaves[0], merges.flip(0), cell, scorer, K) > NEAR
    assert gap(leaves[0], merges[:-1], cell, scorer, K) > NEAR
    wrong = merges.clone()
    wrong[-1] = torch.tensor([4, 3, 2, 1, 0])
    wrong[-2] = torch.tensor([0, 0, 0, 0, 0])
    assert gap(leaves[0], wrong, cell, scorer, K) > NEAR
