"""Ranger follows its formulas step by step, resumes bit for bit, and skips tensors without gradient."""

import io
import math

import pytest
import torch
from torch import nn

from beamtree.training.ranger import Ranger


def follow_by_hand(theta: float, gradients: list[float], lr: float = 1e-3) -> list[float]:
    """The formulas of the optimiser on one number, in Python floats."""
    m = v = 0.0
    phi = theta
    path = []
    for t, g in enumerate(gradients, start=1):
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g * g
        rho = 1999 - 2 * t * 0.999**t / (1 - 0.999**t)
        theta = theta * (1 - lr * 1e-2)
        if t <= 5:
            assert rho < 5
            theta = theta - lr * m / (1 - 0.9**t)
        else:
            assert rho >= 5
            r = math.sqrt((1 - 0.999**t) * (rho - 4) / 1995 * (rho - 2) / rho * 1999 / 1997) / (1 - 0.9**t)
            theta = theta - lr * r * m / (math.sqrt(v) + 1e-8)
        if t in (5, 10, 15):
            theta = 0.8 * theta + 0.2 * phi
            phi = theta
        path.append(theta)
    return path


def small_model(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 2)).double()


def train(model: nn.Module, optimiser: torch.optim.Optimizer, first: int, last: int) -> None:
    for step in range(first, last):
        x = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        optimiser.zero_grad()
        model(x).square().sum().backward()
        optimiser.step()


def same_bits(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


@pytest.mark.parametrize("lr", [1e-3, 0.3])
def test_every_number_of_a_tensor_goes_the_way_computed_by_hand(lr: float) -> None:
    gradients = [0.7, -1.3, 0.2, 2.5, -0.4, 0.9, 1.1, -3.0, 0.05, 0.6, -0.8]
    starts, scales = [1.5, -0.3, 4.0], [1.0, -2.0, 0.01]
    theta = nn.Parameter(torch.tensor(starts, dtype=torch.float64))
    optimiser = Ranger([theta], lr=lr)
    path = []
    for gradient in gradients:
        theta.grad = gradient * torch.tensor(scales, dtype=torch.float64)
        optimiser.step()
        path.append(theta.tolist())
    for i, (start, scale) in enumerate(zip(starts, scales, strict=True)):
        wanted = follow_by_hand(start, [scale * gradient for gradient in gradients], lr)
        assert [step[i] for step in path] == pytest.approx(wanted, rel=1e-13)


def test_a_closure_is_evaluated_with_gradients_and_its_loss_returned() -> None:
    theta = nn.Parameter(torch.tensor(2.0))
    optimiser = Ranger([theta])

    def loss() -> float:
        value = theta.square()
        value.backward()
        return value.item()

    assert optimiser.step(loss) == 4.0
    assert theta.item() < 2.0


def test_many_tensors_at_once_equal_one_optimiser_for_each() -> None:
    together, apart = small_model(), small_model()
    train(together, Ranger(together.parameters()), 0, 13)
    singles = [Ranger([p]) for p in apart.parameters()]
    for step in range(13):
        x = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        apart.zero_grad()
        apart(x).square().sum().backward()
        for single in singles:
            single.step()
    assert same_bits(together, apart)


@pytest.mark.parametrize("interrupted_after", [1, 4, 5, 6, 12])
def test_a_run_resumed_from_the_state_dict_is_bit_for_bit_the_uninterrupted_one(
    interrupted_after: int,
) -> None:
    whole = small_model()
    train(whole, Ranger(whole.parameters()), 0, 17)

    first = small_model()
    optimiser = Ranger(first.parameters())
    train(first, optimiser, 0, interrupted_after)
    file = io.BytesIO()
    torch.save({"model": first.state_dict(), "optimiser": optimiser.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)

    second = small_model(seed=1)
    resumed = Ranger(second.parameters(), lr=99.0)
    second.load_state_dict(saved["model"])
    resumed.load_state_dict(saved["optimiser"])
    train(second, resumed, interrupted_after, 17)
    assert same_bits(whole, second)


def test_tensors_without_gradient_are_skipped_entirely() -> None:
    used, unused = (nn.Parameter(torch.ones(2, dtype=torch.float64)) for _ in range(2))
    optimiser = Ranger([used, unused], weight_decay=0.5)
    for _ in range(5):
        used.grad = torch.ones_like(used)
        optimiser.step()
    assert torch.equal(unused, torch.ones_like(unused))
    assert unused not in optimiser.state


def test_a_tensor_that_joins_late_counts_its_own_updates_but_shares_the_lookahead_steps() -> None:
    late = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))
    early = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))
    optimiser = Ranger([early, late], weight_decay=0.0)
    for step in range(1, 6):
        early.grad = torch.ones_like(early)
        if step > 3:
            late.grad = torch.ones_like(late)
        optimiser.step()
    # Two plain momentum updates of lr each, then the 5th step of the optimiser pulls back by a fifth.
    assert late.item() == pytest.approx(1.5 - 0.8 * 2e-3, rel=1e-14)
    assert optimiser.state[late]["updates"] == 2


def test_weights_loaded_after_construction_are_where_the_slow_weights_start() -> None:
    theta = nn.Parameter(torch.tensor(100.0, dtype=torch.float64))
    optimiser = Ranger([theta])
    with torch.no_grad():
        theta.fill_(1.5)
    gradients = [1.0] * 5
    for gradient in gradients:
        theta.grad = torch.tensor(gradient, dtype=torch.float64)
        optimiser.step()
    assert theta.item() == pytest.approx(follow_by_hand(1.5, gradients)[-1], rel=1e-14)


def test_groups_keep_their_own_rates_and_float_types_mix() -> None:
    single = nn.Parameter(torch.ones(3))
    double = nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimiser = Ranger(
        [{"params": [single, double]}, {"params": [frozen := nn.Parameter(torch.ones(1))], "lr": 0.0}]
    )
    for p in (single, double, frozen):
        p.grad = torch.ones_like(p)
    optimiser.step()
    assert double[0].item() == pytest.approx(1 - 1e-5 - 1e-3, rel=1e-14)
    assert single[0].item() == pytest.approx(1 - 1e-5 - 1e-3, rel=1e-6)
    assert frozen.item() == 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, "lr must be at least 0, got -1.0"),
        ({"betas": (0.9, 1.0)}, r"betas must be two numbers in \[0, 1\), got \(0.9, 1.0\)"),
        ({"eps": -1e-8}, "eps must be at least 0, got -1e-08"),
        ({"weight_decay": -0.1}, "weight_decay must be at least 0, got -0.1"),
        ({"rectify_from": 4.0}, "rectify_from must be above 4, where r exists, got 4.0"),
        ({"lookahead_steps": 0}, "lookahead_steps must be at least 1, got 0"),
        ({"lookahead_alpha": 0.0}, r"lookahead_alpha must be in \(0, 1\], got 0.0"),
    ],
)
def test_impossible_constants_are_refused_by_name(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Ranger([nn.Parameter(torch.ones(1))], **options)


def test_sparse_gradients_are_refused() -> None:
    table = nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match="sparse=False"):
        Ranger(table.parameters()).step()
