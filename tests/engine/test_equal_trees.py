"""Beams that reach the same tree are one: by enumeration the exact posterior over trees, and its gradient."""

from collections import defaultdict
from math import comb
from typing import Any

import pytest
import torch
from merge_orders import MergeOrder, Span, continue_order, merge_orders
from small_encoders import sharp_encoder
from torch import Tensor, nn

from beamtree import BeamTreeEncoder, create_encoder
from beamtree.engine.equal_trees import EqualTrees
from beamtree.engine.randomness import mix

D = 5
ENOUGH = {1: 1, 2: 1, 3: 2, 4: 5, 5: 14, 6: 46}  # forests of n leaves that can be met at one step, at most


def encoder(beam_size: int, **options: Any) -> BeamTreeEncoder:
    return sharp_encoder(D, 5, beam_size=beam_size, merge_equal_trees=True, **options)


def by_tree(orders: list[MergeOrder]) -> dict[frozenset[Span], list[MergeOrder]]:
    trees = defaultdict(list)
    for order in orders:
        trees[frozenset(order.made)].append(order)
    return trees


def posterior(orders: list[MergeOrder]) -> tuple[dict[frozenset[Span], Tensor], Tensor]:
    """The weight of every tree, all its orders taken together, and the mean of the roots."""
    weights = {
        tree: torch.stack([order.log_score for order in same]).logsumexp(0).exp()
        for tree, same in by_tree(orders).items()
    }
    root = sum(weights[tree] * same[0].root for tree, same in by_tree(orders).items())
    return weights, torch.as_tensor(root)


def spans_of(spans: list[list[int]]) -> frozenset[Span]:
    return frozenset((start, end) for start, end in spans)


def assert_same_gradients(found: Tensor, wanted: Tensor, module: nn.Module, x: Tensor) -> None:
    inputs = [x, *module.parameters()]
    mine = torch.autograd.grad(found.square().sum(), inputs, allow_unused=True)
    theirs = torch.autograd.grad(wanted.square().sum(), inputs, allow_unused=True)
    for of, a, b in zip(inputs, mine, theirs, strict=True):
        torch.testing.assert_close(a, torch.zeros_like(of) if b is None else b, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kind", ["eval", "noisy", "repeated tokens"])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6])
def test_a_wide_beam_is_the_exact_posterior_over_trees_with_its_gradient(n: int, kind: str) -> None:
    model = encoder(ENOUGH[n] + 2).train(kind == "noisy")
    x = torch.randn(1, n, D, dtype=torch.float64)
    if kind == "repeated tokens":
        x = x[:, torch.arange(n) % 2]
    x.requires_grad_()
    weights, expected = posterior(merge_orders(model.leaf(x)[0], model.cell, model.scorer))
    assert len(weights) == comb(2 * n - 2, n - 1) // n

    root, trees = model(x, need_trees=True)
    found = {
        spans_of(spans): w for spans, w in zip(trees.spans[0].tolist(), trees.weights[0], strict=True) if w
    }
    assert {tree: w.item() for tree, w in found.items()} == pytest.approx(
        {tree: w.item() for tree, w in weights.items()}, abs=1e-10
    )
    assert trees.log_scores[0].exp().sum().item() == pytest.approx(1, abs=1e-10)
    torch.testing.assert_close(root[0], expected, rtol=0, atol=1e-10)
    assert_same_gradients(root[0], expected, model, x)


@pytest.mark.parametrize("n", [5, 6, 7])
def test_with_as_many_beams_as_trees_the_weights_of_spans_are_their_exact_probabilities(n: int) -> None:
    model = encoder(comb(2 * n - 2, n - 1) // n).eval()
    x = torch.randn(1, n, D, dtype=torch.float64)
    with torch.no_grad():
        trees = model(x, need_trees=True)[1]
        expected = torch.zeros(n, n + 1, dtype=torch.float64)
        for order in merge_orders(model.leaf(x)[0], model.cell, model.scorer):
            for span in order.made:
                expected[span] += order.log_score.exp()
    torch.testing.assert_close(trees.span_weights[0], expected, rtol=0, atol=1e-10)


def test_sequences_of_a_batch_do_not_mix() -> None:
    model = encoder(ENOUGH[5]).eval()
    lengths = [5, 1, 3, 2, 4]
    x = torch.randn(5, 5, D, dtype=torch.float64, requires_grad=True)
    root = model(x, key_padding_mask=torch.arange(5) >= torch.tensor(lengths)[:, None])
    wanted = [
        posterior(merge_orders(model.leaf(x[b, :n]), model.cell, model.scorer))[1]
        for b, n in enumerate(lengths)
    ]
    torch.testing.assert_close(root, torch.stack(wanted), rtol=0, atol=1e-10)
    assert_same_gradients(root, torch.stack(wanted), model, x)


@pytest.mark.parametrize("beam_size", [1, 2, 3, 5])
def test_a_narrow_beam_is_the_search_over_forests_done_by_hand(beam_size: int) -> None:
    model = encoder(beam_size).eval()
    x = torch.randn(1, 7, D, dtype=torch.float64, requires_grad=True)
    scores, roots = search_forests(model.leaf(x)[0], model.cell, model.scorer, beam_size)
    beams = model.beams(x)
    torch.testing.assert_close(beams.relative[0] + beams.offset[0], scores, rtol=0, atol=1e-10)
    torch.testing.assert_close(beams.vectors[0], roots, rtol=0, atol=1e-10)
    expected = (scores.softmax(0).unsqueeze(1) * roots).sum(0)
    assert_same_gradients(beams.root()[0], expected, model, x)


def search_forests(leaves: Tensor, cell: nn.Module, scorer: nn.Module, K: int) -> tuple[Tensor, Tensor]:
    """Beam search over sets of spans, K best pairs a beam, by dictionaries and autograd."""
    n = leaves.shape[0]
    start = MergeOrder((), (), leaves.new_zeros(()), [*leaves], [(i, i + 1) for i in range(n)])
    beams = [start]
    for _ in range(n - 1):
        families: dict[frozenset[Span], list[MergeOrder]] = defaultdict(list)
        for beam in beams:
            longer = continue_order(beam, cell, scorer)
            for order in sorted(longer, key=lambda order: -order.log_score.item())[:K]:
                families[frozenset(order.made)].append(order)
        united = []
        for family in families.values():
            together = torch.stack([order.log_score for order in family]).logsumexp(0)
            heir = max(family, key=lambda order: order.log_score.item())
            united.append(heir._replace(log_score=together))
        beams = sorted(united, key=lambda order: -order.log_score.item())[:K]
    return torch.stack([beam.log_score for beam in beams]), torch.stack([beam.root for beam in beams])


@pytest.mark.parametrize("training", [False, True])
def test_beams_are_different_trees_where_the_plain_search_repeats_itself(training: bool) -> None:
    merged = encoder(5, dropout=0.2).train(training)
    x = torch.randn(8, 12, D, dtype=torch.float64)
    assert count_trees(merged, x) == [5] * 8
    merged.merge_equal_trees = False
    assert sum(count_trees(merged, x)) < 5 * 8


def count_trees(model: BeamTreeEncoder, x: Tensor) -> list[int]:
    _, trees = model(x, need_trees=True)
    return [len({spans_of(spans) for spans in beams}) for beams in trees.spans.tolist()]


def test_with_dropout_the_gradient_is_that_of_the_function_computed() -> None:
    model = encoder(3, dropout=0.3).train()
    x = torch.randn(2, 6, D, dtype=torch.float64)
    direction = torch.randn(2, 6, D, dtype=torch.float64)

    def value(step: float) -> Tensor:
        torch.manual_seed(7)
        return model((x + step * direction).requires_grad_()).square().sum()

    h = 1e-6
    torch.manual_seed(7)
    at = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(at).square().sum(), at)
    difference = (value(h) - value(-h)).item() / (2 * h)
    assert (slope * direction).sum().item() == pytest.approx(difference, rel=1e-5)


def test_pinned_spans_and_given_trees_are_kept() -> None:
    model = encoder(ENOUGH[5]).eval()
    x = torch.randn(1, 5, D, dtype=torch.float64, requires_grad=True)
    _, expected = posterior(merge_orders(model.leaf(x)[0], model.cell, model.scorer, [(1, 4)]))
    root = model(x, pinned_spans=[[(1, 4)]])
    torch.testing.assert_close(root[0], expected, rtol=0, atol=1e-10)
    assert_same_gradients(root[0], expected, model, x)
    merges = torch.tensor([[3, 0, 1, 0]])
    given = model(x, merges=merges)
    model.merge_equal_trees = False
    torch.testing.assert_close(given, model(x, merges=merges), rtol=0, atol=1e-12)


def test_inner_nodes_are_those_of_the_beam_that_goes_on() -> None:
    model = encoder(4).eval()
    x = torch.randn(2, 6, D, dtype=torch.float64)
    forest = model.forest(x)
    for b in range(2):
        for k in range(4):
            alone = model.forest(x[b : b + 1], merges=forest.trees.merges[b : b + 1, k])
            torch.testing.assert_close(forest.nodes[b, k], alone.nodes[0, 0], rtol=0, atol=1e-10)


def test_nothing_is_recorded_where_no_gradient_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    init = EqualTrees.__init__
    monkeypatch.setattr(
        EqualTrees, "__init__", lambda self, *a, **k: made.append(self) or init(self, *a, **k)
    )
    model = encoder(3).eval()
    with torch.no_grad():
        model(torch.randn(1, 9, D, dtype=torch.float64))
    model(torch.randn(1, 9, D, dtype=torch.float64))
    assert [len(one.steps) for one in made] == [0, 8]


def test_numbers_of_spans_are_spread_over_64_bits() -> None:
    start, end = torch.meshgrid(torch.arange(400), torch.arange(400), indexing="ij")
    numbers = mix(mix(start) + end).flatten()
    assert numbers.unique().numel() == 400 * 400
    bits = (numbers.unsqueeze(1) >> torch.arange(64)) & 1
    assert (bits.double().mean(0) - 0.5).abs().max() < 0.01
    sums = numbers[:1000].unsqueeze(1) + numbers[1000:2000]
    assert sums.unique().numel() == sums.numel()


def test_the_option_is_off_by_default_and_the_zoo_has_it() -> None:
    assert not BeamTreeEncoder(8).merge_equal_trees
    assert create_encoder("ebt-grc", 8, merge_equal_trees=True).merge_equal_trees


def test_export_refuses_it() -> None:
    model = encoder(2).eval()
    with pytest.raises(ValueError, match="merge_equal_trees cannot be exported"):
        torch.export.export(model, (torch.randn(1, 4, D, dtype=torch.float64),))
