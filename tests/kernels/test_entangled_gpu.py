"""BT-GRC's kernels on a GPU at full size: agreement, repeatability, time and memory."""

import copy

import pytest
import torch
from on_gpu import needs_gpu, peak_of_training
from torch import Tensor, nn

from beamtree import create_encoder
from beamtree.engine.record import merge_positions
from beamtree.kernels import fused_recursion as fused
from beamtree.parts.cell import GatedRecursiveCell
from beamtree.parts.scorer import EntangledScorer

pytestmark = [pytest.mark.gpu, needs_gpu]


@pytest.fixture(autouse=True)
def highest_precision() -> None:
    torch.set_float32_matmul_precision("highest")


class Recursion(nn.Module):
    def __init__(self, d: int = 128, K: int = 5, sharpness: float = 8.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cell, self.scorer, self.K = GatedRecursiveCell(d), EntangledScorer(d), K
        with torch.no_grad():
            self.scorer.weight *= sharpness
        self.cuda()

    def options(self, leaves: Tensor) -> tuple[object, ...]:
        key = torch.full((), 5, device=leaves.device)
        return self.K, key, self.training, 0.1 if self.training else 0.0

    def forward(self, leaves: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        """Roots, scores, merges and relative scores."""
        K, key, noisy, dropout = self.options(leaves)
        options = K, noisy, dropout, torch.float32, False
        call = fused.FusedSearchCall(leaves, lengths, key, *options, list(self.parameters()))
        roots, relative, _, offset, merges = fused.fused_recursion(call)
        return roots, relative + offset.unsqueeze(1), merges, relative

    def plain(self, leaves: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        """The same by the plain engine on the same device."""
        roots, relative, _, offset, history, links, *_ = torch.ops.beamtree.search(
            leaves,
            lengths,
            list(self.parameters()),
            *self.options(leaves),
            None,
            None,
            False,
            torch.float32,
        )
        return roots, relative + offset.unsqueeze(1), merge_positions(links, history), relative


def draw(lengths: list[int], d: int = 128) -> tuple[Tensor, Tensor]:
    generator = torch.Generator("cuda").manual_seed(0)
    leaves = torch.randn(len(lengths), max(lengths), d, device="cuda", generator=generator)
    return leaves.requires_grad_(), torch.tensor(lengths, device="cuda")


@pytest.mark.parametrize(
    ("lengths", "d", "K"),
    [
        ([40, 33, 1, 2], 128, 5),
        ([30] * 50 + list(range(1, 26)) * 2, 128, 5),
        ([1100], 128, 5),
        ([7, 12], 16, 1),
        ([9, 12], 300, 3),
        ([8, 6], 1024, 5),
        ([14, 9], 32, 32),
    ],
)
def test_training_agrees_with_the_plain_engine(lengths: list[int], d: int, K: int) -> None:
    model = Recursion(d, K)
    leaves, sizes = draw(lengths, d)
    roots, scores, merges, relative = model(leaves, sizes)
    expected_roots, expected_scores, expected_merges, expected_relative = model.plain(leaves, sizes)
    alive = expected_scores > -torch.inf
    same = ((merges == expected_merges).all(-1) | ~alive).all(1)  # a near-tie may fall either way
    assert same.float().mean() >= 0.97
    alive &= same.unsqueeze(1)
    torch.testing.assert_close(scores[alive], expected_scores[alive], atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(roots[alive], expected_roots[alive], atol=1e-4, rtol=1e-4)
    to_roots, to_scores = torch.randn_like(roots), torch.randn_like(relative)
    inputs = [leaves, *model.parameters()]
    got, expected = (
        torch.autograd.grad((r * to_roots)[alive].sum() + s[alive] @ to_scores[alive], inputs)
        for r, s in ((roots, relative), (expected_roots, expected_relative))
    )
    for mine, theirs in zip(got[:-1], expected[:-1], strict=True):
        assert (mine - theirs).norm() <= 1e-4 * theirs.norm() + 1e-6


def test_random_padded_batches_give_the_cpus_trees() -> None:
    """Every other batch is of few different tokens, so that ties are everywhere."""
    model = Recursion(64, sharpness=1.0).eval()
    on_cpu = copy.deepcopy(model).cpu()
    generator = torch.Generator().manual_seed(1)
    different = compared = 0
    for batch in range(200):
        lengths = torch.randint(1, 17, (12,), generator=generator)
        n = int(lengths.max())
        leaves = torch.randn(12, n, 64, generator=generator)
        if batch % 2:
            leaves = leaves[0, :4][torch.randint(min(4, n), (12, n), generator=generator)]
        with torch.no_grad():
            merges, expected = model(leaves.cuda(), lengths.cuda())[2], on_cpu.plain(leaves, lengths)[2]
        different += int((merges.cpu() != expected).flatten(1).any(1).sum())
        compared += len(lengths)
    print(f"\nsequences whose trees differ by a near-tie: {different} of {compared}")
    assert different <= compared // 100


def test_gradients_repeat_bit_for_bit_in_deterministic_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    model, (leaves, lengths) = Recursion(), draw([60, 50, 33] * 20)

    def gradients() -> tuple[Tensor, ...]:
        roots, _, _, relative = model(leaves, lengths)
        loss = (relative.softmax(1).unsqueeze(-1) * roots).sum(1).square().sum()
        return torch.autograd.grad(loss, [leaves, *model.parameters()])

    ordinary = gradients()
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        first, second = gradients(), gradients()
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    for mine, theirs in zip(first[:-1], ordinary[:-1], strict=True):
        assert (mine - theirs).norm() <= 1e-4 * theirs.norm() + 1e-6


def test_forwards_may_wait_for_their_backwards() -> None:
    model = Recursion()
    one, other = draw([30, 20]), draw([25, 25, 3])
    alone = [torch.autograd.grad(model(*x)[0].square().sum(), x[0])[0] for x in (one, other)]
    roots = [model(*x)[0] for x in (one, other)]
    for x, found, expected in zip((one, other), roots, alone, strict=True):
        torch.testing.assert_close(
            torch.autograd.grad(found.square().sum(), x[0])[0], expected, atol=1e-5, rtol=1e-4
        )


def test_a_training_step_at_950_tokens_takes_100_times_less_memory_than_the_authors() -> None:
    x = torch.randn(1, 950, 128, device="cuda")
    assert (
        peak_of_training(lambda: create_encoder("bt-grc", 128, dropout=0.1, device="cuda"), x) <= 23.3 / 100
    )
