"""A given tree by kernels, in place of a search: roots, nodes, log-probability and all gradients are those of
the plain engine in float64. Without a GPU the kernels run in Triton's interpreter."""

import pytest
import torch
from given_trees import MIXED, TREES, furthest, random_merges, sharpen
from kernel_cases import DEVICE
from on_gpu import needs_gpu
from torch import Tensor

from beamtree import BeamTreeEncoder
from beamtree.engine.operators import built_in_recursion, weights_of
from beamtree.engine.record import Options
from beamtree.kernels import given
from beamtree.parts.cell import GatedRecursiveCell
from beamtree.parts.scorer import SlicedScorer

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # the interpreter's log(0)
    pytest.mark.usefixtures("few_programs"),
]
SEED = 2**61 + 7


def compare(lengths: list[int], merges: Tensor, *, d: int = 16, dropout: float = 0.0) -> None:
    torch.manual_seed(0)
    n = merges.shape[1] + 1
    cell, scorer = GatedRecursiveCell(d, hidden_size=24), SlicedScorer(d, slice_size=8, hidden_size=12)
    sharpen(cell)
    exact_cell = GatedRecursiveCell(d, hidden_size=24, dtype=torch.float64)
    exact_scorer = SlicedScorer(d, slice_size=8, hidden_size=12, dtype=torch.float64)
    exact_cell.load_state_dict(cell.state_dict())
    exact_scorer.load_state_dict(scorer.state_dict())
    weights = weights_of(cell.to(DEVICE), scorer.to(DEVICE))
    leaves = torch.randn(len(lengths), n, d, device=DEVICE, requires_grad=True)
    exact_leaves = leaves.detach().double().cpu().requires_grad_()
    L, seed = torch.tensor(lengths), torch.tensor(SEED)

    where = leaves, L.to(DEVICE), seed.to(DEVICE), merges.to(DEVICE)
    found = given.follow_merges(given.FollowCall(*where, dropout, torch.float32, True, weights.flat()))
    options = Options(5, seed, False, dropout, merges, None, need_nodes=True)
    expected = built_in_recursion(exact_leaves, L, exact_cell, exact_scorer, options)
    assert [y.shape for y in found] == [y.shape for y in expected]
    assert [y.dtype for y in found[3:]] == [y.dtype for y in expected[3:]]
    assert torch.equal(found[4].cpu(), expected[4])
    assert furthest([y.cpu() for y in found[:4] if y.numel()], [y for y in expected[:4] if y.numel()]) < 3e-6

    directions = [torch.randn_like(y) for y in expected[:3]]
    here = [y.float().to(DEVICE) for y in directions]
    got = torch.autograd.grad(found[:3], [leaves, *weights.flat()], here)
    exact_weights = weights_of(exact_cell, exact_scorer)
    wanted = torch.autograd.grad(expected[:3], [exact_leaves, *exact_weights.flat()], directions)
    assert furthest([g.cpu() for g in got], list(wanted)) < 5e-6


@pytest.mark.parametrize("shape", TREES)
def test_a_followed_tree_is_that_of_the_plain_engine(shape: str) -> None:
    compare(MIXED, TREES[shape](torch.tensor(MIXED), 7))


def test_its_dropout_masks_are_those_of_the_plain_engine() -> None:
    compare(MIXED, random_merges(torch.tensor(MIXED), 7), d=17, dropout=0.4)


@pytest.mark.parametrize(("lengths", "n"), [([1], 1), ([2], 2), ([3], 3), ([1, 1], 3), ([2, 1], 2)], ids=str)
def test_the_shortest_sequences_are_followed(lengths: list[int], n: int) -> None:
    compare(lengths, random_merges(torch.tensor(lengths), n))


def test_lists_longer_than_a_block_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given, "WIDEST", 4)
    compare([11, 6], random_merges(torch.tensor([11, 6]), 12, seed=5))


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize(("d", "n"), [(128, 100), (300, 20)])
def test_an_encoder_on_a_gpu_follows_trees_as_on_the_host(d: int, n: int) -> None:
    torch.set_float32_matmul_precision("highest")
    torch.manual_seed(0)
    encoder = BeamTreeEncoder(d, device="cuda").train()
    exact = BeamTreeEncoder(d, dtype=torch.float64)
    exact.load_state_dict(encoder.state_dict())
    lengths = torch.randint(1, n + 1, (12,))
    lengths[0] = n
    x, is_padding = torch.randn(12, n, d), torch.arange(n) >= lengths[:, None]
    merges, results = random_merges(lengths, n), []
    for model, there, dtype in ((encoder, "cuda", torch.float32), (exact, "cpu", torch.float64)):
        root, trees = model(
            x.to(there, dtype), is_padding.to(there), merges=merges.to(there), need_trees=True
        )
        loss = root.square().sum() + trees.log_scores.sum()
        results.append([root, trees.log_scores, *torch.autograd.grad(loss, list(model.parameters()))])
    assert furthest([y.cpu() for y in results[0]], results[1]) < 1e-4


@pytest.mark.parametrize("need_nodes", [False, True])
def test_a_compiler_is_told_the_right_shapes(need_nodes: bool) -> None:
    merges = random_merges(torch.tensor(MIXED), 7)
    weights = weights_of(GatedRecursiveCell(16, hidden_size=24), SlicedScorer(16, slice_size=8))
    tensors = [torch.randn(6, 7, 16), torch.tensor(MIXED), torch.tensor(SEED), merges]
    options = (0.1, torch.float32, need_nodes, [w.detach().to(DEVICE) for w in weights.flat()])
    torch.library.opcheck(
        torch.ops.beamtree.fused_follow,
        (*(x.to(DEVICE) for x in tensors), *options),
        test_utils=("test_schema", "test_faketensor"),
    )
