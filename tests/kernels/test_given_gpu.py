"""Given trees on a GPU at full size: agreement with float64, no synchronisation, repeatability, autocast,
compilers, speed."""

import copy
from collections.abc import Iterator

import pytest
import torch
from given_trees import TREES, furthest, sharpen
from on_gpu import needs_gpu
from torch import Tensor

from beamtree import create_encoder
from beamtree.parts.cell import GatedRecursiveCell
from beamtree.zoo.fixed_trees import LevelsOnHost, compose_level_by_level, follow, kernels_compose

pytestmark = [pytest.mark.gpu, needs_gpu]


def make_cell(d: int, dropout: float = 0.0) -> GatedRecursiveCell:
    torch.manual_seed(0)
    cell = GatedRecursiveCell(d, dropout=dropout)
    sharpen(cell)
    return cell.cuda()


@pytest.fixture(autouse=True)
def highest_precision() -> Iterator[None]:
    yield
    torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("precision", ["highest", "high"])
@pytest.mark.parametrize(
    ("shape", "d", "B", "n"),
    [
        ("random", 128, 37, 60),
        ("chain", 128, 5, 130),
        ("balanced", 128, 33, 65),
        ("random", 16, 9, 20),
        ("random", 300, 5, 12),
        ("chain", 1024, 2, 6),
    ],
)
def test_nodes_and_gradients_are_as_near_to_float64_as_the_plain_path_and_always_the_same(
    monkeypatch: pytest.MonkeyPatch, shape: str, d: int, B: int, n: int, precision: str
) -> None:
    monkeypatch.setattr(GatedRecursiveCell, "draw_keep", lambda cell, rows: masks[:rows])
    torch.set_float32_matmul_precision(precision)
    cell = make_cell(d)
    masks = (torch.rand(B * (n - 1), 4 * d, device="cuda") > 0.1) / 0.9
    lengths = torch.randint(1, n + 1, (B,))
    lengths[0] = n
    merges = TREES[shape](lengths, n).cuda()
    leaves = torch.randn(B, n, d, device="cuda")
    direction = torch.randn(B, d, device="cuda")
    plan = LevelsOnHost.of(merges)
    assert kernels_compose(leaves, cell)

    def by_kernels() -> list[Tensor]:
        x = leaves.clone().requires_grad_()
        roots = follow(x, merges, cell).root_vectors()
        return [roots, *torch.autograd.grad(roots, [x, *cell.parameters()], direction)]

    def plainly(dtype: torch.dtype) -> list[Tensor]:
        x, model = leaves.to(dtype).requires_grad_(), copy.deepcopy(cell).to(dtype)
        roots = compose_level_by_level(x, plan, model, masks[: len(plan.children)].to(dtype))[plan.roots]
        return [roots, *torch.autograd.grad(roots, [x, *model.parameters()], direction.to(dtype))]

    found, exact = by_kernels(), plainly(torch.float64)
    assert all(torch.equal(a, b) for a, b in zip(found, by_kernels(), strict=True))
    ours = [furthest([a], [b]) for a, b in zip(found, exact, strict=True)]
    theirs = [furthest([a], [b]) for a, b in zip(plainly(torch.float32), exact, strict=True)]
    print(shape, d, precision, [f"{a:.0e}/{b:.0e}" for a, b in zip(ours, theirs, strict=True)])
    assert max(ours) < 5e-5
    assert all(a < 4 * b + 1e-5 for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("name", ["gold-grc", "balanced-grc", "recurrent-grc"])
def test_a_training_step_never_waits_for_the_device(name: str) -> None:
    encoder = create_encoder(name, 128, dropout=0.1).cuda().train()
    x, lengths = torch.randn(8, 21, 128, device="cuda"), torch.tensor([21, 1, 2, 3, 20, 8, 21, 5])
    is_padding = (torch.arange(21) >= lengths[:, None]).cuda()
    given = {"merges": TREES["random"](lengths, 21).cuda()} if name == "gold-grc" else {}
    encoder(x, is_padding, **given).sum().backward()  # compiles the kernels
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        encoder(x, is_padding, **given).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(p.grad is not None and p.grad.isfinite().all() for p in encoder.parameters())


def test_autocast_rounds_products_as_the_plain_path_does() -> None:
    cell = make_cell(128)
    lengths = torch.tensor([30, 1, 17, 25])
    merges = TREES["random"](lengths, 30).cuda()
    leaves = torch.randn(4, 30, 128, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        found = follow(leaves, merges, cell).root_vectors()
        plan = LevelsOnHost.of(merges)
        plain = compose_level_by_level(leaves, plan, cell, None)[plan.roots]
    exact = follow(leaves, merges, cell).root_vectors()
    assert found.dtype == torch.float32
    ours, theirs = (float((y - exact).norm() / exact.norm()) for y in (found, plain))
    assert 1e-5 < ours < 1.5 * theirs


def test_a_compiled_encoder_is_the_encoder() -> None:
    encoder = create_encoder("gold-grc", 64).cuda()
    lengths = torch.tensor([9, 4, 1])
    merges = TREES["random"](lengths, 9).cuda()
    x, is_padding = torch.randn(3, 9, 64, device="cuda"), (torch.arange(9) >= lengths[:, None]).cuda()
    compiled = torch.compile(encoder, fullgraph=True)
    results = []
    for model in (encoder, compiled):
        root = model(x, is_padding, merges=merges)
        results.append([root, *torch.autograd.grad(root.square().sum(), list(encoder.parameters()))])
    assert furthest(results[1], [y.double() for y in results[0]]) < 1e-4
