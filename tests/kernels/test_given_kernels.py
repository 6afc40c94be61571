"""The kernels of given trees do what the plain path does in float64: nodes and all gradients.

Without a GPU they run in Triton's interpreter, with one launch for each phase of a level where a GPU has one
for all.
"""

import pytest
import torch
from given_trees import MIXED, TREES, balanced_merges, furthest, random_merges, sharpen
from kernel_cases import DEVICE
from torch import Tensor
from torch.autograd import forward_ad

from beamtree import create_encoder
from beamtree.kernels import given
from beamtree.kernels.given import ComposeCall, compose_levels
from beamtree.parts.cell import GatedRecursiveCell
from beamtree.trees.structure import Levels
from beamtree.zoo import fixed_trees
from beamtree.zoo.fixed_trees import LevelsOnHost, compose_level_by_level

pytestmark = pytest.mark.usefixtures("few_programs", "unwritten_memory_is_nan")


def make_cell(d: int, units: int = 24, dropout: float = 0.0) -> GatedRecursiveCell:
    torch.manual_seed(0)
    cell = GatedRecursiveCell(d, hidden_size=units, dropout=dropout)
    sharpen(cell)
    return cell.to(DEVICE)


def compare(
    lengths: list[int],
    merges: Tensor,
    cell: GatedRecursiveCell,
    atol: float = 3e-6,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Nodes by both ways, from the same masks, and the gradients of a random function of them."""
    B, n, d = len(lengths), merges.shape[1] + 1, cell.d_model
    leaves = torch.randn(B, n, d, device=DEVICE, requires_grad=True)
    levels, plan = Levels.of(merges.to(DEVICE)), LevelsOnHost.of(merges)
    keep, rows = cell.draw_keep(len(levels.children)), B * n + len(plan.children)
    weights = list(cell.weights())
    found = compose_levels(ComposeCall(leaves, *levels[:3], keep, dtype, weights))[:rows]

    exact = GatedRecursiveCell(d, hidden_size=cell.hidden_size, dtype=torch.float64)
    exact.load_state_dict(cell.state_dict())
    exact_leaves = leaves.detach().double().cpu().requires_grad_()
    exact_keep = None if keep is None else keep[: len(plan.children)].double().cpu()
    expected = compose_level_by_level(exact_leaves, plan, exact, exact_keep)
    assert furthest([found.cpu()], [expected]) < atol

    direction = torch.randn_like(expected)
    got = torch.autograd.grad(found, [leaves, *weights], direction.float().to(DEVICE))
    wanted = torch.autograd.grad(expected, [exact_leaves, *exact.parameters()], direction)
    assert furthest([g.cpu() for g in got], list(wanted)) < atol


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("shape", TREES)
def test_nodes_and_gradients_are_those_of_the_plain_path(shape: str, dropout: float) -> None:
    compare(MIXED, TREES[shape](torch.tensor(MIXED), 7), make_cell(17, dropout=dropout).train())


@pytest.mark.parametrize("lengths", [[1], [2], [3], [1, 1, 1], [2, 1]], ids=str)
@pytest.mark.parametrize("padding", [0, 2])
def test_the_shortest_sequences_are_followed(lengths: list[int], padding: int) -> None:
    merges = random_merges(torch.tensor(lengths), max(lengths) + padding)
    compare(lengths, merges, make_cell(16, dropout=0.3))


def test_wide_nodes_take_larger_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given, "WIDE", 8)
    compare(MIXED, random_merges(torch.tensor(MIXED), 7), make_cell(33, units=40))


def test_half_precision_rounds_the_products_only() -> None:
    compare(MIXED, random_merges(torch.tensor(MIXED), 7), make_cell(16), atol=0.02, dtype=torch.float16)


def test_the_gradient_is_the_same_every_time() -> None:
    merges = random_merges(torch.tensor(MIXED), 7)
    levels, cell = Levels.of(merges.to(DEVICE)), make_cell(16)
    leaves = torch.randn(6, 7, 16, device=DEVICE, requires_grad=True)
    weights = list(cell.weights())
    runs = []
    for _ in range(2):
        nodes = compose_levels(ComposeCall(leaves, *levels[:3], None, torch.float32, weights))
        runs.append(torch.autograd.grad(nodes[levels.roots].square().sum(), [leaves, *weights]))
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def follow_by_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixed_trees, "kernels_compose", lambda leaves, cell: leaves.dtype == torch.float32)


@pytest.mark.parametrize("n", [1, 2, 7])
@pytest.mark.parametrize("name", ["gold-grc", "balanced-grc", "recurrent-grc"])
def test_encoders_by_kernels_are_the_encoders(monkeypatch: pytest.MonkeyPatch, name: str, n: int) -> None:
    follow_by_kernels(monkeypatch)
    torch.manual_seed(0)
    encoder = create_encoder(name, 16).to(DEVICE)
    if name == "recurrent-grc":
        torch.nn.init.normal_(encoder.initial)
    lengths = torch.tensor(MIXED).clamp(max=n)
    x, is_padding = torch.randn(6, n, 16), torch.arange(n) >= lengths[:, None]
    given = {"merges": random_merges(lengths, n)} if name == "gold-grc" else {}
    plain = create_encoder(name, 16, dtype=torch.float64)
    plain.load_state_dict(encoder.state_dict())
    expected = plain(x.double(), is_padding, **given)
    on_device = {key: value.to(DEVICE) for key, value in given.items()}
    found, trees = encoder(x.to(DEVICE), is_padding.to(DEVICE), need_trees=True, **on_device)
    assert torch.equal(trees.merges.cpu(), plain(x.double(), is_padding, need_trees=True, **given)[1].merges)
    assert furthest([found.cpu()], [expected]) < 3e-6
    direction = torch.randn_like(expected)
    got = torch.autograd.grad(found, list(encoder.parameters()), direction.float().to(DEVICE))
    wanted = torch.autograd.grad(expected, list(plain.parameters()), direction)
    assert furthest([g.cpu() for g in got], list(wanted)) < 3e-6


@pytest.mark.parametrize("name", ["gold-grc", "balanced-grc", "recurrent-grc"])
def test_tangents_are_refused_and_not_dropped(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    follow_by_kernels(monkeypatch)
    encoder, x = create_encoder(name, 16).to(DEVICE), torch.randn(2, 4, 16, device=DEVICE)
    given = {"merges": torch.zeros(2, 3, dtype=torch.int64, device=DEVICE)} if name == "gold-grc" else {}
    with pytest.raises(NotImplementedError, match="no forward-mode derivative"):
        torch.func.jvp(lambda x: encoder(x, **given), (x,), (x,))
    with torch.no_grad(), forward_ad.dual_level():
        dual = forward_ad.make_dual(x, x)
        with pytest.raises(NotImplementedError, match="no forward-mode derivative"):
            encoder(dual, **given)


def test_a_forest_by_kernels_holds_the_nodes_of_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = create_encoder("balanced-grc", 16).to(DEVICE)
    lengths = torch.tensor(MIXED)
    x, is_padding = torch.randn(6, 7, 16, device=DEVICE), (torch.arange(7) >= lengths[:, None]).to(DEVICE)
    plain = encoder.double().forest(x.double(), is_padding)
    follow_by_kernels(monkeypatch)
    found = encoder.float().forest(x, is_padding)
    torch.testing.assert_close(found.nodes.double(), plain.nodes, rtol=0, atol=3e-6)
    torch.testing.assert_close(found.roots.double(), plain.roots, rtol=0, atol=3e-6)


def test_a_balanced_tree_merges_level_by_level() -> None:
    lengths = torch.arange(1, 40)
    assert torch.equal(fixed_trees._balanced_merges(lengths, 41), balanced_merges(lengths, 41))
    assert fixed_trees._balanced_merges(torch.tensor([1]), 1).shape == (1, 0)


def test_a_second_derivative_is_refused() -> None:
    levels, cell = Levels.of(torch.zeros(1, 2, dtype=torch.int64, device=DEVICE)), make_cell(16)
    leaves = torch.randn(1, 3, 16, device=DEVICE, requires_grad=True)
    weights = list(cell.parameters())
    nodes = compose_levels(ComposeCall(leaves, *levels[:3], None, torch.float32, weights))
    (grad,) = torch.autograd.grad(nodes[-1].square().sum(), leaves, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        grad.sum().backward()


def test_an_encoder_compiles_without_a_break(monkeypatch: pytest.MonkeyPatch) -> None:
    follow_by_kernels(monkeypatch)
    encoder = create_encoder("gold-grc", 16).to(DEVICE)
    lengths = torch.tensor(MIXED)
    merges, is_padding = (
        random_merges(lengths, 7).to(DEVICE),
        (torch.arange(7) >= lengths[:, None]).to(DEVICE),
    )
    x = torch.randn(6, 7, 16, device=DEVICE)
    results = []
    for model in (encoder, torch.compile(encoder, backend="aot_eager", fullgraph=True)):
        root = model(x, is_padding, merges=merges)
        results.append([root, *torch.autograd.grad(root.square().sum(), list(encoder.parameters()))])
    for plain, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, plain)
