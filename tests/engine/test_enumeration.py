"""A beam that is wide enough holds every merge order, scored and weighed as by brute force."""

from math import factorial

import pytest
import torch
from merge_orders import merge_orders
from small_encoders import sharp_encoder

from beamtree import BeamTreeEncoder

D = 5


def encoder(beam_size: int) -> BeamTreeEncoder:
    return sharp_encoder(D, 5, beam_size=beam_size)


@pytest.mark.parametrize("kind", ["eval", "noisy", "repeated tokens"])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6])
def test_a_wide_beam_weighs_all_merge_orders_as_enumeration_does(n: int, kind: str) -> None:
    model = encoder(factorial(n - 1) + 2).train(kind == "noisy")
    x = torch.randn(1, n, D, dtype=torch.float64)
    if kind == "repeated tokens":
        x = x[:, torch.arange(n) % 2]
    orders = merge_orders(model.leaf(x)[0], model.cell, model.scorer)
    by_merges = {order.merges: order for order in orders}
    assert len(by_merges) == len(orders) == factorial(n - 1)

    root, trees = model(x, need_trees=True)
    found = trees.k_best()
    assert {tuple(tree.merges) for tree in found} == set(by_merges)
    assert (trees.log_scores[0, len(orders) :] == -torch.inf).all()
    assert (trees.weights[0, len(orders) :] == 0).all()
    log_scores = torch.stack([order.log_score for order in orders])
    total = log_scores.exp().sum()
    assert total.item() == pytest.approx(1, abs=1e-12)
    for tree in found:
        order = by_merges[tuple(tree.merges)]
        assert tree.log_score == pytest.approx(order.log_score.item(), abs=1e-10)
        assert tree.weight == pytest.approx(order.log_score.exp().item(), abs=1e-10)
    expected = sum(order.log_score.exp() * order.root for order in orders)
    torch.testing.assert_close(root[0], expected, rtol=0, atol=1e-10)

    inputs = list(model.parameters())
    mine = torch.autograd.grad(root.square().sum(), inputs, allow_unused=True)
    theirs = torch.autograd.grad(expected.square().sum(), inputs, allow_unused=True)
    for parameter, a, b in zip(inputs, mine, theirs, strict=True):
        torch.testing.assert_close(a, torch.zeros_like(parameter) if b is None else b, rtol=1e-8, atol=1e-10)


def test_short_and_long_sequences_of_a_batch_all_keep_their_own_orders() -> None:
    model = encoder(factorial(4)).eval()
    lengths = [5, 1, 3, 2, 4]
    x = torch.randn(5, 5, D, dtype=torch.float64)
    is_padding = torch.arange(5) >= torch.tensor(lengths)[:, None]
    root, trees = model(x, key_padding_mask=is_padding, need_trees=True)
    for b, n in enumerate(lengths):
        orders = merge_orders(model.leaf(x[b, :n]), model.cell, model.scorer)
        found = {tuple(tree.merges): tree.weight for tree in trees.k_best(b)}
        assert found == pytest.approx({o.merges: o.log_score.exp().item() for o in orders}, abs=1e-10)
        expected = sum(order.log_score.exp() * order.root for order in orders)
        torch.testing.assert_close(root[b], expected, rtol=0, atol=1e-10)


def test_a_narrow_beam_of_three_tokens_or_fewer_is_complete() -> None:
    model = encoder(2).eval()
    for n in (1, 2, 3):
        x = torch.randn(1, n, D, dtype=torch.float64)
        orders = merge_orders(model.leaf(x)[0], model.cell, model.scorer)
        expected = sum(order.log_score.exp() * order.root for order in orders)
        torch.testing.assert_close(model(x)[0], expected, rtol=0, atol=1e-10)
