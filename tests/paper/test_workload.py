"""What is measured: the original algorithm computes the same, and every model takes a step."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from beamtree import BeamtreeError
from beamtree.nn.encoder import BeamTreeEncoder
from beamtree.paper.speed.workload import (
    Case,
    NaiveEncoder,
    Workload,
    create_measured,
    find_variant,
    measurable_names,
    takes,
)
from beamtree.parts.cell import GatedRecursiveCell
from beamtree.zoo.by_name import encoder_names

CPU = torch.device("cpu")


TINY = Case(B=2, n=5, d=16, K=2)


def padded_input() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    x = torch.randn(4, 7, 8, dtype=torch.float64)
    return x, torch.arange(7) >= torch.tensor([7, 1, 2, 5])[:, None]


@pytest.mark.parametrize("training", [False, True])
def test_the_original_algorithm_gives_the_same_values_gradients_and_trees(training):
    torch.manual_seed(1)
    fast = BeamTreeEncoder(8, beam_size=3, dropout=0.3, dtype=torch.float64).train(training)
    naive = NaiveEncoder(fast).train(training)
    x, is_padding = padded_input()
    found = []
    for encoder in (fast, naive):
        fast.zero_grad()
        torch.manual_seed(5)  # of noise and dropout
        y, trees = encoder(x, key_padding_mask=is_padding, need_trees=True)
        y.square().sum().backward()
        found.append((y, trees, [p.grad.clone() for p in fast.parameters()]))
    (y, trees, gradients), (y_naive, trees_naive, gradients_naive) = found
    torch.testing.assert_close(y_naive, y, rtol=0, atol=1e-10)
    assert torch.equal(trees_naive.merges, trees.merges)
    torch.testing.assert_close(trees_naive.weights, trees.weights)
    torch.testing.assert_close(gradients_naive, gradients, rtol=0, atol=1e-8)


def test_the_original_algorithm_needs_neither_mask_nor_trees():
    torch.manual_seed(1)
    fast = BeamTreeEncoder(8, dtype=torch.float64).eval()
    x, _ = padded_input()
    torch.testing.assert_close(NaiveEncoder(fast).eval()(x), fast(x))


def test_every_encoder_and_the_original_algorithm_can_be_measured():
    assert set(encoder_names()) < set(measurable_names())
    assert "naive" in measurable_names()
    with pytest.raises(BeamtreeError, match="no model 'ebt-gcr' to measure; did you mean 'ebt-grc'"):
        find_variant("ebt-gcr")


@pytest.mark.parametrize("name", measurable_names())
def test_every_model_takes_a_training_step_and_a_forward_pass(name):
    training = Workload(Case(name, B=2, n=4, d=16, K=2), CPU)
    before = [parameter.clone() for parameter in training.encoder.parameters()]
    timing = training.timed_step()
    assert timing.seconds > 0
    assert timing.processor_seconds >= 0
    after = list(training.encoder.parameters())
    assert not all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert training.x.grad is not None

    forward = Workload(Case(name, B=2, n=4, d=16, K=2, inference=True), CPU)
    before = [parameter.clone() for parameter in forward.encoder.parameters()]
    forward.step()
    assert not forward.encoder.training
    assert all(torch.equal(a, b) for a, b in zip(before, forward.encoder.parameters(), strict=True))


@pytest.mark.parametrize(
    ("name", "kind"), [("nn.LSTM", nn.LSTM), ("nn.TransformerEncoder", nn.TransformerEncoder)]
)
def test_the_plain_layers_are_those_of_pytorch_of_the_same_width(name, kind):
    step = Workload(Case(name, B=3, n=6, d=16, inference=True), CPU)
    assert isinstance(step.encoder, kind)
    sentences = step.encoder(step.x, key_padding_mask=step.is_padding)
    assert sentences.shape == (3, 16)
    tokens = kind.forward(step.encoder, step.x)
    if name == "nn.LSTM":
        torch.testing.assert_close(sentences, tokens[0][:, -1])
    else:
        assert len(step.encoder.layers) == 2
        torch.testing.assert_close(sentences, tokens.mean(1))


def test_a_users_own_cell_replaces_the_built_in_one():
    encoder = Workload(replace(TINY, model="own-cell"), CPU).encoder
    assert not isinstance(encoder.cell, GatedRecursiveCell)
    assert encoder.cell(torch.ones(3, 16), torch.ones(3, 16)).shape == (3, 16)


def test_a_contextualiser_is_measured_by_the_mean_of_its_tokens():
    work = Workload(replace(TINY, model="contextualizer", inference=True), CPU)
    found = work.encoder(work.x, key_padding_mask=work.is_padding)
    torch.testing.assert_close(found, work.encoder.block(work.x).mean(1))
    training = Workload(replace(TINY, model="contextualizer"), CPU).encoder.block
    assert training.source.cell.dropout == 0.1
    assert training.parent_gau.dropout.p == 0.1


def test_a_training_step_has_noise_dropout_and_a_mask():
    encoder = Workload(TINY, CPU).encoder
    assert encoder.training
    assert encoder.stochastic
    assert encoder.cell.dropout == 0.1
    step = Workload(TINY, CPU)
    seen = {}
    step.encoder.register_forward_pre_hook(lambda _, __, named: seen.update(named), with_kwargs=True)
    step.step()
    assert torch.equal(seen["key_padding_mask"], torch.zeros(2, 5, dtype=torch.bool))


def test_the_two_paths_start_from_equal_weights_and_inputs_and_leave_the_seed_alone():
    fast = Workload(TINY, CPU)
    torch.rand(1)
    state = torch.get_rng_state()
    naive = Workload(Case("naive", B=2, n=5, d=16, K=2), CPU)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(fast.x, naive.x)
    assert torch.equal(fast.encoder.cell.w1.weight, naive.encoder.encoder.cell.w1.weight)


def test_options_reach_the_models_that_have_them():
    def created(model: str, **sizes):
        return create_measured(Case(model, d=32, **sizes), "meta")

    measured = Workload(replace(TINY, slice_size=8), CPU).encoder
    assert (measured.d_model, measured.beam_size, measured.scorer.slice_size) == (16, 2, 8)
    assert created("ebt-grc", slice_size=16).scorer.slice_size == 16
    assert created("ebt-grc-noslice", slice_size=16).scorer.slice_size == 32
    assert created("naive", K=3).encoder.beam_size == 3
    for name in ("gt-grc", "bt-grc", "bt-grc-os"):
        assert created(f"{name}-faithful").mode == "faithful"
    wide = created("ebt-grc-512-noslice")
    assert (wide.input_size, wide.d_model, wide.scorer.slice_size) == (128, 512, 512)
    assert takes("bt-grc", "beam_size")
    assert not takes("om", "beam_size")
