"""A classifier's initial weights, and where randomness enters its training."""

import math

import pytest
import torch
from torch import nn

from beamtree.classifier.model import ModelSettings, TreeClassifier, create_model
from beamtree.data.listops.splits import TASK
from beamtree.data.vocabulary import PAD


def small_model(**settings: object) -> TreeClassifier:
    rates = {"input_dropout": 0.0, "dropout": 0.0, "output_dropout": 0.0}
    return create_model(ModelSettings(d_model=16, embedding_size=16, **{**rates, **settings}), TASK)  # type: ignore[arg-type]


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Lengths 1, 2, 3, 9 and 14."""
    lengths = torch.tensor([1, 2, 3, 9, 14])
    padding = torch.arange(14) >= lengths[:, None]
    ids = torch.randint(3, 18, padding.shape, generator=torch.Generator().manual_seed(1))
    return ids.masked_fill(padding, PAD), padding


def test_linear_layers_begin_uniform_within_the_root_of_their_fan_in() -> None:
    torch.manual_seed(0)
    layers = [
        layer for layer in create_model(ModelSettings(), TASK).modules() if isinstance(layer, nn.Linear)
    ]
    assert len(layers) == 7  # leaf, W₁, W₂, two of the scorer, two of the classifier
    for layer in layers:
        bound = 1 / math.sqrt(layer.in_features)
        for values in (layer.weight, layer.bias):
            assert values.abs().max() <= bound
        if layer.weight.numel() > 1000:
            assert layer.weight.abs().max() > 0.98 * bound
            assert layer.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)
            assert layer.weight.mean().item() == pytest.approx(0, abs=0.1 * bound)


def test_norms_begin_as_the_identity_and_token_vectors_as_standard_normal_ones() -> None:
    torch.manual_seed(0)
    model = create_model(ModelSettings(), TASK)
    norms = [layer for layer in model.modules() if isinstance(layer, nn.LayerNorm)]
    assert len(norms) == 2  # the leaf's and the cell's
    for norm in norms:
        assert norm.eps == 1e-5
        assert norm.weight.eq(1).all()
        assert norm.bias.eq(0).all()
    table = model.embedding.get_parameter("table.weight")
    assert table.shape == (18, 128)
    assert table[PAD].eq(0).all()
    rest = table[[row for row in range(18) if row != PAD]]
    assert rest.mean().item() == pytest.approx(0, abs=0.1)
    assert rest.std().item() == pytest.approx(1, rel=0.05)


def test_without_dropout_and_noise_training_computes_what_evaluation_does() -> None:
    model = small_model(options={"stochastic": False})
    ids, padding = batch()
    trained, evaluated = model.train()(ids, padding), model.eval()(ids, padding)
    torch.testing.assert_close(trained, evaluated, rtol=0, atol=0)


@pytest.mark.parametrize(
    "source",
    [{"input_dropout": 0.5}, {"dropout": 0.5}, {"output_dropout": 0.5}, {"options": {"stochastic": True}}],
    ids=lambda source: next(iter(source)),
)
def test_each_source_of_chance_reaches_the_logits_in_training_alone(source: dict[str, object]) -> None:
    model = small_model(**{"options": {"stochastic": False}, **source})
    ids, padding = batch()
    first, second = model.train()(ids, padding), model(ids, padding)
    alike = (first == second).all(-1)
    # A sentence of one or two tokens has no choice to make, one token no cell to pass.
    untouched = {"dropout": 1, "options": 2}.get(next(iter(source)), 0)
    assert alike[:untouched].all()
    assert not alike[-1]
    assert model.eval()(ids, padding).equal(model(ids, padding))
