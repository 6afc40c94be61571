"""Trees that a caller fixes, wholly (`merges`) or in part (`pinned_spans`): values and gradients."""

import itertools
import math
import random

import pytest
import torch
from merge_orders import cross, merge_orders
from small_encoders import padding, sharp_encoder
from torch import Tensor, nn

from beamtree import BeamTreeEncoder, recursion
from beamtree.engine.randomness import draw_keep

D = 6
SEED = torch.tensor(2023)


def encoder(scale: float = 3.0, **options: object) -> BeamTreeEncoder:
    return sharp_encoder(D, scale, **options)


def tokens(B: int, n: int) -> Tensor:
    return torch.randn(B, n, D, dtype=torch.float64)


def gradients(loss: Tensor, model: nn.Module) -> list[Tensor]:
    """Of all parameters, zero where there is none."""
    found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, retain_graph=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(model.parameters(), found, strict=True)]


def assert_all_close(found: list[Tensor], expected: list[Tensor]) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_a_given_tree_is_composed_as_by_hand_with_its_log_probability(
    monkeypatch: pytest.MonkeyPatch, dropout: float
) -> None:
    monkeypatch.setattr(recursion, "draw_seed", lambda device: SEED)
    model = encoder(dropout=dropout).train()
    lengths = [5, 1, 3, 2]
    merges = torch.tensor([[2, 0, 1, 0], [-1] * 4, [1, 0, -1, -1], [0, -1, -1, -1]])
    x = tokens(4, 5).requires_grad_()
    root, trees = model(x, key_padding_mask=padding(lengths), merges=merges, need_trees=True)
    assert torch.equal(trees.merges, merges.unsqueeze(1))
    assert torch.equal(trees.weights, torch.ones(4, 1, dtype=torch.float64))

    leaves, roots, log_scores = model.leaf(x), [], []
    for b, length in enumerate(lengths):
        nodes, log_score = [*leaves[b, :length]], leaves.new_zeros(())
        for t, j in enumerate(merges[b, : length - 1].tolist()):
            scores = model.scorer(torch.stack(nodes[:-1]), torch.stack(nodes[1:]))
            log_score = log_score + scores.log_softmax(0)[j]
            counters = (torch.tensor(t), torch.tensor(b), torch.tensor(0))
            keep = draw_keep(SEED, *counters, 4 * D, dropout, torch.float64) if dropout else None
            nodes[j : j + 2] = [model.cell(nodes[j], nodes[j + 1], keep)]
        roots.append(nodes[0])
        log_scores.append(log_score)
    torch.testing.assert_close(root, torch.stack(roots), rtol=0, atol=1e-12)
    torch.testing.assert_close(trees.log_scores[:, 0], torch.stack(log_scores), rtol=0, atol=1e-12)

    weights = torch.randn(4, D + 1, dtype=torch.float64)
    mine = torch.cat((root, trees.log_scores), 1)
    theirs = torch.cat((torch.stack(roots), torch.stack(log_scores)[:, None]), 1)
    assert_all_close(gradients((mine * weights).sum(), model), gradients((theirs * weights).sum(), model))
    (of_mine,), (of_theirs,) = (torch.autograd.grad((y * weights).sum(), x) for y in (mine, theirs))
    torch.testing.assert_close(of_mine, of_theirs, rtol=1e-8, atol=1e-9)


def test_the_trees_found_can_be_given_back() -> None:
    model = encoder().eval()
    x, is_padding = tokens(3, 9), padding([9, 4, 6])
    _, trees = model(x, key_padding_mask=is_padding, need_trees=True)
    for beam in range(5):
        root, again = model(x, key_padding_mask=is_padding, merges=trees.merges[:, beam], need_trees=True)
        torch.testing.assert_close(again.log_scores[:, 0], trees.log_scores[:, beam], rtol=0, atol=1e-12)
        vectors = model.beams(x, is_padding).vectors[:, beam]
        torch.testing.assert_close(root, vectors, rtol=0, atol=1e-12)


def nested_pins(n: int) -> list[list[tuple[int, int]]]:
    """All sets of one or two spans over n tokens that do not cross."""
    spans = list(itertools.combinations(range(n + 1), 2))
    pairs = [[*pair] for pair in itertools.combinations(spans, 2) if not cross(*pair)]
    return [[span] for span in spans] + pairs


@pytest.mark.parametrize("n", [2, 3, 4])
def test_pinned_probabilities_are_those_of_enumeration(n: int) -> None:
    """Every set of one or two pins at once, as a batch of the same sequence."""
    model = encoder(beam_size=math.factorial(n - 1)).eval()
    sets = nested_pins(n)
    x = tokens(1, n)
    root, trees = model(x.expand(len(sets), n, D), pinned_spans=sets, need_trees=True)
    for b, pins in enumerate(sets):
        orders = merge_orders(model.leaf(x)[0], model.cell, model.scorer, pins)
        found = {tuple(tree.merges): tree.log_score for tree in trees.k_best(b)}
        assert found == pytest.approx({order.merges: order.log_score.item() for order in orders}, abs=1e-10)
        assert sum(math.exp(score) for score in found.values()) == pytest.approx(1)
        expected = sum(order.log_score.exp() * order.root for order in orders)
        torch.testing.assert_close(root[b], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("pins", [[(1, 3)], [(0, 2), (2, 5)], [(1, 5), (2, 4)], [(0, 5)], []], ids=str)
def test_pinned_training_has_the_gradients_of_plain_autograd(pins: list[tuple[int, int]]) -> None:
    model = encoder(beam_size=24).train()
    x = tokens(1, 5)
    root, trees = model(x, pinned_spans=[pins], need_trees=True)
    orders = merge_orders(model.leaf(x)[0], model.cell, model.scorer, pins)
    assert int(trees.alive.sum()) == len(orders)
    expected = sum(order.log_score.exp() * order.root for order in orders)
    torch.testing.assert_close(root[0], expected, rtol=0, atol=1e-10)
    assert_all_close(gradients(root.square().sum(), model), gradients(expected.square().sum(), model))
    best = max(orders, key=lambda order: order.log_score.item())
    assert_all_close(gradients(trees.log_scores[0, 0], model), gradients(best.log_score, model))


@pytest.mark.parametrize("training", [False, True])
def test_pins_that_leave_fewer_trees_than_beams_leave_dead_beams_and_nothing_else(training: bool) -> None:
    """The sequences are longer than K, so that it is the pins alone that kill beams."""
    n, K, draw = 5, 4, random.Random(0)
    model = encoder(beam_size=K).train(training)
    sets = []
    for _ in range(80):
        live, spans = [(i, i + 1) for i in range(n)], []
        while len(live) > 1:
            i = draw.randrange(len(live) - 1)
            live[i : i + 2] = [(live[i][0], live[i + 1][1])]
            spans.append(live[i])
        sets.append(draw.sample(spans, draw.randrange(1, n)))
    root, trees = model(tokens(80, n), pinned_spans=sets, need_trees=True)
    assert root.isfinite().all()
    assert not trees.log_scores.isnan().any()
    torch.testing.assert_close(trees.weights.sum(1), torch.ones(80, dtype=torch.float64))
    for b, pins in enumerate(sets):
        for beam in range(K):
            if trees.alive[b, beam]:
                spans = set(map(tuple, trees.spans[b, beam].tolist()))
                assert set(pins) <= spans | {(0, n)}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("own", [False, True], ids=["built-in", "own cell"])
def test_every_tree_contains_the_pinned_spans(training: bool, own: bool) -> None:
    class OwnCell(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, left: Tensor, right: Tensor, keep: Tensor | None = None) -> Tensor:
            return self.inner(left, right, keep)

    model = encoder().train(training)
    if own:
        model.cell = OwnCell(model.cell)
    pins = [[(3, 7), (4, 6), (0, 2)], [], [(1, 2)], [(0, 3), (1, 3)]]
    lengths = [9, 9, 2, 4]
    _, trees = model(tokens(4, 9), padding(lengths), pinned_spans=pins, need_trees=True)
    for b, spans in enumerate(pins):
        for beam in range(len(trees.k_best(b))):
            longer = {(start, end) for start, end in spans if end - start > 1}
            assert longer <= trees.span_sets(b, beam)


def test_the_nodes_of_trees_with_pins_lead_to_their_root() -> None:
    model, x, pins = encoder().eval(), tokens(2, 7), [[(1, 4)], [(2, 5)]]
    forest = model.forest(x, pinned_spans=pins)
    expected = model(x, pinned_spans=pins)
    torch.testing.assert_close(forest.average(forest.nodes[:, :, -1]), expected, rtol=0, atol=1e-12)


def test_pins_leave_sequences_without_any_as_they_were() -> None:
    model = encoder().eval()
    x = tokens(2, 7)
    torch.testing.assert_close(model(x, pinned_spans=[[], []]), model(x), rtol=0, atol=1e-12)
    tensor = torch.tensor([[[-1, -1]], [[2, 5]]])
    torch.testing.assert_close(model(x, pinned_spans=tensor)[0], model(x)[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(
        model(x, pinned_spans=tensor), model(x, pinned_spans=[[], [(2, 5)]]), rtol=0, atol=1e-12
    )
