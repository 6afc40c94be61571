"""The contract of a user's parts: what a cell or scorer has to have, and what it may leave out."""

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import beamtree
from beamtree.parts.contract import CellWithDropout, dropout_rate, mask_width, refuse_changing_results


class Mean(nn.Module):
    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return (left + right) / 2


class Dropping(Mean):
    dropout, hidden_size = 0.25, 6


def test_a_cell_drops_out_in_training_only_and_at_its_own_rate() -> None:
    assert dropout_rate(Mean()) == 0.0
    assert dropout_rate(Dropping()) == 0.25
    assert dropout_rate(Dropping().eval()) == 0.0
    layer = Mean()
    layer.dropout = nn.Dropout(0.1)
    assert dropout_rate(layer) == 0.0


def test_masks_need_a_width() -> None:
    assert mask_width(Dropping()) == 6
    assert isinstance(beamtree.GatedRecursiveCell(8), CellWithDropout)
    with pytest.raises(ValueError, match="cell has a rate `dropout` but no `hidden_size`"):
        mask_width(Mean())


def test_a_cell_without_dropout_needs_no_third_argument() -> None:
    encoder = beamtree.BeamTreeEncoder(4, cell=Mean())
    x = torch.randn(2, 5, 4, requires_grad=True)
    encoder(x).sum().backward()
    assert x.grad is not None


def test_what_is_not_a_number_is_no_dropout_rate_and_a_rate_must_be_one() -> None:
    cell = Mean()
    for other in (None, cell.eval, torch.ones(2)):
        cell.train().dropout = other
        assert dropout_rate(cell) == 0.0
    for wrong in (1.0, -0.1, 2, float("nan")):
        cell.dropout = wrong
        with pytest.raises(
            ValueError, match=r"cell\.dropout must be a rate, at least 0 and less than 1, got"
        ):
            dropout_rate(cell)
        assert dropout_rate(cell.eval()) == 0.0
        cell.train()


def encode(cell: nn.Module, training: bool) -> Tensor:
    encoder = beamtree.BeamTreeEncoder(4, cell=cell, stochastic=False).train(training)
    return encoder(torch.randn(2, 5, 4))


def test_a_parameter_may_be_called_p() -> None:
    cell = Mean()
    cell.p = nn.Parameter(torch.ones(4))
    assert encode(cell, training=True).isfinite().all()


generator = torch.Generator()


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize(
    "draw",
    [
        lambda x: F.dropout(x, 0.5),
        lambda x: x * random.random(),
        lambda x: x * np.random.rand(),
        lambda x: x * torch.rand((), generator=generator),
    ],
    ids=["dropout", "Python", "numpy", "generator"],
)
def test_randomness_of_any_kind_is_refused(draw: Callable[[Tensor], Tensor], training: bool) -> None:
    class Random(Mean):
        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return draw(super().forward(left, right))

    with pytest.raises(
        ValueError, match=f"same rows in {'training' if training else 'evaluation'}, but must"
    ):
        encode(Random(), training)


def test_results_that_differ_by_rounding_are_no_randomness() -> None:
    class Rounding(Mean):
        calls = 0

        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            self.calls += 1
            return super().forward(left, right) * (1 + 1e-6 * (self.calls % 2))

    refuse_changing_results(Rounding(), "cell", torch.ones(1, 4), torch.ones(1, 4))


def test_a_buffer_that_a_part_changes_itself_is_refused_by_name_but_one_made_once_is_not() -> None:
    class Running(Mean):
        def __init__(self, replaces: bool) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(4))
            self.register_buffer("once", None)
            self.replaces = replaces

        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            if self.once is None:
                self.once = torch.ones(4)
            if self.training:
                self.mean = self.mean + 1 if self.replaces else self.mean.add_(1)
            return super().forward(left, right) * self.once

    for replaces in (True, False):
        with pytest.raises(ValueError, match="cell changes its buffer mean when it is called in training"):
            encode(Running(replaces), training=True)
        encode(Running(replaces), training=False)


def test_batch_norm_without_running_statistics_is_refused_in_evaluation_too() -> None:
    cell = Mean()
    cell.norm = nn.BatchNorm1d(4, track_running_stats=False)
    with pytest.raises(ValueError, match=r"cell contains BatchNorm1d \(norm\) without running statistics"):
        encode(cell, training=False)
    cell.norm = nn.BatchNorm1d(4).eval()
    encode(cell, training=False)


class Changed(Mean):
    """A cell, or as a scorer the sum of one, to which something is done."""

    def __init__(self, change: Callable[[Tensor, Tensor], Tensor], *, scores: bool) -> None:
        super().__init__()
        self.change, self.scores = change, scores

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        parent = super().forward(left, right)
        if not self.scores:
            return self.change(parent, left)
        return self.change(parent.square().sum(-1, keepdim=True), left[..., :1]).squeeze(-1)


MIXING = {
    "mean": lambda h, left: h - h.mean(0),
    "softmax": lambda h, left: h * h.softmax(0),
    "first": lambda h, left: h + left[:1],
    "place": lambda h, left: h + torch.arange(len(h)).view(-1, 1),
    "number": lambda h, left: h / len(h),
}


@pytest.mark.parametrize("shape", [(2, 5, 4), (1, 2, 4), (1, 1, 4)], ids=str)
@pytest.mark.parametrize("change", MIXING.values(), ids=MIXING)
@pytest.mark.parametrize("role", ["cell", "scorer"])
def test_a_part_that_mixes_rows_is_refused_whatever_the_batch(
    role: str, change: Callable[[Tensor, Tensor], Tensor], shape: tuple[int, ...]
) -> None:
    parts = {"cell": Mean(), role: Changed(change, scores=role == "scorer")}
    encoder = beamtree.BeamTreeEncoder(4, **parts)
    for x in (torch.randn(shape), torch.zeros(shape)):
        with pytest.raises(ValueError, match=f"{role} mixes rows in training: what it returns for a pair"):
            encoder(x)


@pytest.mark.parametrize("role", ["cell", "scorer"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_numbers_that_are_not_finite_are_refused_but_a_score_may_be_minus_infinity(
    role: str, value: float
) -> None:
    part = Changed(
        lambda h, left: torch.where(h == h.amax(-1, keepdim=True), value, h), scores=role == "scorer"
    )
    if role == "scorer" and value < 0:
        refuse_changing_results(part, role, torch.ones(1, 4), torch.ones(1, 4))
        return
    encoder = beamtree.BeamTreeEncoder(4, **{"cell": Mean(), role: part})
    with pytest.raises(
        ValueError, match=rf"{role} returns NaN or .*inf.* for a pair of finite nodes in training"
    ):
        encoder(torch.randn(2, 5, 4))


def test_padding_is_not_among_the_rows_that_a_part_is_tried_on() -> None:
    class Cosine(nn.Module):
        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return (left * right).sum(-1) / (left.norm(dim=-1) * right.norm(dim=-1))

    encoder = beamtree.BeamTreeEncoder(4, scorer=Cosine())
    nn.init.zeros_(encoder.leaf.linear.bias)  # so leaves of padding are zero
    is_padding = torch.arange(5) >= torch.tensor([[3], [5]])
    assert encoder(torch.randn(2, 5, 4), is_padding).isfinite().all()


def test_an_error_in_the_first_call_says_what_the_part_was_given_and_must_return() -> None:
    class Narrow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Linear(4, 2)

        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return self.mix(torch.cat((left, right), -1))

    for role, wanted in (("cell", r"parent, shape \(1, 4\)"), ("scorer", r"score, shape \(1,\)")):
        encoder = beamtree.BeamTreeEncoder(4, **{role: Narrow()})
        message = (
            rf"(?s){role} failed with RuntimeError: mat1 .* left \(1, 4\), right \(1, 4\) .* the {wanted}"
        )
        with pytest.raises(ValueError, match=message) as caught:
            encoder(torch.randn(2, 5, 4))
        assert isinstance(caught.value.__cause__, RuntimeError)


class Deep(nn.Module):
    """Rounds much: four products, one of them always in half precision; works in place."""

    dropout, hidden_size = 0.25, 256

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(4))

    def forward(self, left: Tensor, right: Tensor, keep: Tensor | None = None) -> Tensor:
        left += right
        for layer in self.layers:
            left = torch.tanh(layer(left)) * (1.0 if keep is None else keep)
        with torch.autocast("cpu", torch.bfloat16):
            return self.layers[0](left).to(right.dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("cast", [True, False], ids=["autocast", "plain"])
def test_rounding_is_no_mixing(dtype: torch.dtype, cast: bool) -> None:
    rows = torch.randn(2, 1, 256, dtype=dtype), torch.ones(1, 256, dtype=dtype)
    for seed in range(20):
        torch.manual_seed(seed)
        with torch.autocast("cpu", torch.bfloat16, enabled=cast):
            refuse_changing_results(Deep().to(dtype), "cell", *rows[0], rows[1])
