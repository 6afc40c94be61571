"""Batches with hardly anything in them: no sequence, sequences of a token or two, shapes without numbers."""

import pytest
import torch
from every_block import BLOCKS, D, call
from small_encoders import padding
from torch import nn

from beamtree import BeamTreeContextualizer, create_encoder
from beamtree.trees.forest import DENSE_UP_TO

NAMED = pytest.mark.parametrize("name", BLOCKS)
TRAINING = pytest.mark.parametrize("training", [False, True], ids=["evaluating", "training"])


def without_gradient(block: nn.Module) -> list[str]:
    return [name for name, parameter in block.named_parameters() if parameter.grad is None]


@NAMED
@TRAINING
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("n", [4, DENSE_UP_TO + 1])
def test_no_sequence_is_a_batch_too(name, training, masked, n):
    block = BLOCKS[name](dropout=0.2, dtype=torch.float64).train(training)
    x = torch.randn(0, n, D, dtype=torch.float64)
    is_padding = torch.zeros(0, n, dtype=torch.bool) if masked else None
    output = call(block, x, is_padding)
    assert output.shape in ((0, D), (0, n, D))
    output.sum().backward()
    assert without_gradient(block) == []
    assert all(parameter.grad.eq(0).all() for parameter in block.parameters())
    with torch.no_grad():
        assert call(block, x, is_padding).shape == output.shape


@NAMED
@TRAINING
@pytest.mark.parametrize("lengths", [[1], [2], [3], [1, 1], [2, 1], [4, 3, 1]], ids=str)
def test_every_parameter_gets_a_gradient_from_the_shortest_input_on(name, training, lengths):
    block = BLOCKS[name](dtype=torch.float64).train(training)
    x = torch.randn(len(lengths), max(lengths), D, dtype=torch.float64)
    call(block, x, padding(lengths)).sum().backward()
    assert without_gradient(block) == []


@NAMED
@TRAINING
@pytest.mark.parametrize("n", [1, 4])
def test_the_meta_device_gives_shapes(name, training, n):
    block = BLOCKS[name](dropout=0.2, device="meta").train(training)
    x = torch.empty(2, n, D, device="meta", requires_grad=True)
    is_padding = torch.empty(2, n, dtype=torch.bool, device="meta")
    output = call(block, x, is_padding)
    assert output.shape in ((2, D), (2, n, D))
    output.sum().backward()
    assert x.grad.shape == x.shape
    assert without_gradient(block) == []


@pytest.mark.parametrize("name", ["gold-grc", "balanced-grc", "om"])
def test_the_meta_device_gives_the_shapes_of_trees(name):
    encoder = BLOCKS[name](device="meta")
    x = torch.empty(2, 4, D, device="meta")
    given = {"merges": torch.empty(2, 3, dtype=torch.int64, device="meta")} if name == "gold-grc" else {}
    _, trees = encoder(x, need_trees=True, **given)
    assert (trees.merges.shape, trees.spans.shape) == ((2, 1, 3), (2, 1, 3, 2))
    if hasattr(encoder, "forest"):
        assert encoder.forest(x, **given).nodes.shape == (2, 1, 3, D)


def test_the_meta_device_gives_the_shapes_of_long_sequences_in_trees():
    block = BeamTreeContextualizer(D, device="meta")
    n = DENSE_UP_TO + 1
    assert block(torch.empty(2, n, D, device="meta")).shape == (2, n, D)


@pytest.mark.parametrize("name", ["ebt-grc", "bt-grc"])
@pytest.mark.parametrize("shape", [(2, 1, 1), (0, 3, 1)], ids=str)
def test_where_nothing_is_merged_nothing_is_dropped(name, shape):
    """With one feature, whose masks have four numbers: as many as come from one draw."""
    encoder, x = create_encoder(name, 1, dropout=0.3), torch.randn(shape, requires_grad=True)
    encoder(x).sum().backward()
    assert x.grad.isfinite().all()
    assert without_gradient(encoder) == []
