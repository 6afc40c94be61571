"""Pair scorers: their formulas by hand, what they see, and the written-out derivative against autograd."""

import math

import pytest
import torch

from beamtree import EntangledScorer, SlicedScorer
from beamtree.engine.built_in_parts import SlicedScore
from beamtree.parts.weights import SlicedScorerWeights

D = 6


def scorer(slice_size: int | None = 4, hidden_size: int | None = None) -> SlicedScorer:
    torch.manual_seed(0)
    return SlicedScorer(D, slice_size=slice_size, hidden_size=hidden_size, dtype=torch.float64)


@pytest.mark.parametrize("slice_size", [1, 4, 6, 99, None])
def test_a_score_is_the_formula_number_by_number(slice_size: int | None) -> None:
    model = scorer(slice_size)
    left, right = torch.randn(2, D, dtype=torch.float64)
    s = D if slice_size is None else min(slice_size, D)
    seen = [*left[:s].tolist(), *right[:s].tolist()]
    score = model.out.bias.item()
    weights = zip(model.hidden.weight.tolist(), model.hidden.bias.tolist(), strict=True)
    for (row, bias), w in zip(weights, model.out.weight[0].tolist(), strict=True):
        h = sum(a * b for a, b in zip(row, seen, strict=True)) + bias
        score += w * 0.5 * h * (1 + math.erf(h / math.sqrt(2)))
    assert model(left, right).item() == pytest.approx(score, abs=1e-12)


def test_features_beyond_the_slice_are_not_seen() -> None:
    model = scorer(4)
    left, right = torch.randn(2, 7, D, dtype=torch.float64)
    before = model(left, right)
    left[:, 4:] = 100
    right[:, 4:] = -100
    assert torch.equal(model(left, right), before)
    left[:, 3] += 1
    assert not torch.equal(model(left, right), before)


def test_the_hidden_size_is_64_with_a_slice_and_the_width_without() -> None:
    assert scorer(4).hidden.weight.shape == (64, 8)
    assert scorer(None).hidden.weight.shape == (D, 2 * D)
    assert scorer(None, 9).hidden.weight.shape == (9, 2 * D)
    assert "slice_size=4" in repr(scorer(4))


def test_any_leading_shape_is_scored_row_by_row() -> None:
    model = scorer()
    left, right = torch.randn(2, 3, 2, D, dtype=torch.float64)
    scores = model(left, right)
    assert scores.shape == (3, 2)
    torch.testing.assert_close(scores[2, 1], model(left[2, 1], right[2, 1]), rtol=0, atol=1e-14)


def test_the_entangled_score_is_a_dot_product_with_the_parent() -> None:
    torch.manual_seed(0)
    model = EntangledScorer(D, dtype=torch.float64)
    assert sum(p.numel() for p in model.parameters()) == D + 1
    parents = torch.randn(3, 4, D, dtype=torch.float64)
    expected = (parents * model.weight[0]).sum(-1) + model.bias
    torch.testing.assert_close(model(parents), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    "model", [SlicedScorer(D, dtype=torch.bfloat16), EntangledScorer(D, dtype=torch.bfloat16)]
)
def test_scores_are_float32_whatever_the_parameters(model: SlicedScorer | EntangledScorer) -> None:
    rows = [torch.randn(9, D).bfloat16() for _ in range(1 if isinstance(model, EntangledScorer) else 2)]
    scores = model(*rows)
    assert scores.dtype == torch.float32
    exact = model.double()(*(row.double() for row in rows))
    torch.testing.assert_close(scores.double(), exact, rtol=0, atol=1e-6)


@pytest.mark.parametrize("model", [SlicedScorer(D), EntangledScorer(D)])
def test_autocast_does_not_touch_scores(model: SlicedScorer | EntangledScorer) -> None:
    rows = [torch.randn(9, D) for _ in range(1 if isinstance(model, EntangledScorer) else 2)]
    with torch.autocast("cpu", torch.bfloat16):
        scores = model(*rows)
    assert torch.equal(scores, model(*rows))


def test_the_written_out_derivative_is_autograds_summed_over_calls() -> None:
    model = scorer(4)
    pairs = torch.randn(8, 2, D, dtype=torch.float64, requires_grad=True)
    grad = torch.randn(8, dtype=torch.float64)
    scores = model(pairs[:, 0], pairs[:, 1])
    expected = torch.autograd.grad(scores, [pairs, *model.parameters()], grad)

    function = SlicedScore(SlicedScorerWeights(*(p.detach() for p in model.parameters())))
    torch.testing.assert_close(function(pairs.detach()), scores.detach(), rtol=0, atol=1e-13)
    parts = [function.pull(pairs[rows].detach(), grad[rows]) for rows in (slice(0, 3), slice(3, 8))]
    torch.testing.assert_close(torch.cat(parts), expected[0], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(function.parameter_gradients(), expected[1:], rtol=1e-10, atol=1e-12)


def test_an_entangled_scorer_begins_as_a_linear_layer_does() -> None:
    torch.manual_seed(0)
    mine = EntangledScorer(9)
    torch.manual_seed(0)
    theirs = torch.nn.Linear(9, 1)
    torch.testing.assert_close((mine.weight, mine.bias), (theirs.weight, theirs.bias))
