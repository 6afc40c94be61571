"""BT-GRC: against the plain published algorithm, and what a beam of trees promises (`cached`, `faithful`)."""

import warnings

import pytest
import torch
from small_encoders import ThroughTheCell, gradients, random_tokens
from torch import Tensor, nn

from beamtree import create_encoder
from beamtree.engine.naive import naive_beam_tree_recursion

D = 6
LENGTHS = [9, 1, 2, 3, 4, 7, 9]


def make(name: str = "bt-grc", **options) -> nn.Module:
    torch.manual_seed(0)
    encoder = create_encoder(name, D, **{"dtype": torch.float64} | options)
    encoder.scorer.weight.data *= 4
    return encoder


def make_input(lengths: list[int] = LENGTHS) -> tuple[Tensor, Tensor]:
    x, is_padding = random_tokens(lengths, D, seed=1)
    return x.requires_grad_(), is_padding


@pytest.mark.parametrize("beam_size", [1, 2, 5])
@pytest.mark.parametrize("mode", ["cached", "faithful"])
def test_evaluation_equals_the_published_algorithm(mode, beam_size):
    encoder = make(mode=mode, beam_size=beam_size).eval()
    x, is_padding = make_input()
    found, trees = encoder(x, is_padding, need_trees=True)
    leaves = encoder.leaf(x.masked_fill(is_padding.unsqueeze(-1), 0.0))
    roots, scores, merges = naive_beam_tree_recursion(
        leaves,
        torch.tensor(LENGTHS),
        encoder.cell,
        ThroughTheCell(encoder.cell, encoder.scorer),
        beam_size=beam_size,
    )
    expected = (scores.softmax(1).unsqueeze(-1) * roots).sum(1)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(trees.merges, merges)
    torch.testing.assert_close(trees.log_scores, scores, rtol=0, atol=1e-10)
    torch.testing.assert_close(
        gradients(found, x, encoder), gradients(expected, x, encoder), rtol=0, atol=1e-8
    )


@pytest.mark.parametrize("stochastic", [False, True])
def test_cached_and_faithful_agree_in_training_without_dropout(stochastic):
    """Noise falls differently on the two, so that with it their averages are compared."""
    cached, faithful = (make(mode=mode, stochastic=stochastic).train() for mode in ("cached", "faithful"))
    x, is_padding = make_input()
    if not stochastic:
        found = [cached(x, is_padding), faithful(x, is_padding)]
        torch.testing.assert_close(*found, rtol=0, atol=1e-10)
        torch.testing.assert_close(*map(gradients, found, [x, x], [cached, faithful]), rtol=0, atol=1e-8)
        return
    torch.manual_seed(2)
    with torch.no_grad():
        draws = [torch.stack([encoder(x, is_padding) for _ in range(200)]) for encoder in (cached, faithful)]
    assert draws[0].std(0).max() > 0.05, "noise must change the choice somewhere"
    error = (draws[0].var(0) / 200 + draws[1].var(0) / 200).sqrt() + 1e-9
    assert ((draws[0].mean(0) - draws[1].mean(0)).abs() < 5 * error).all()


def test_a_faithful_survivor_is_the_parent_that_was_scored_dropout_included(monkeypatch):
    """With one pair only, the root is LayerNorm's output under exactly one of the drawn masks."""
    encoder = make(mode="faithful", dropout=0.5).train()
    x, _ = make_input([2, 2, 2])
    drawn = []
    draw = encoder.cell.draw_keep
    monkeypatch.setattr(encoder.cell, "draw_keep", lambda *shape: drawn.append(draw(*shape)) or drawn[-1])
    root = encoder(x)
    leaves = encoder.leaf(x)
    assert [mask.shape[:-1] for mask in drawn] == [(3, 1, 1)]
    torch.testing.assert_close(root, encoder.cell(leaves[:, 0], leaves[:, 1], drawn[0][:, 0, 0]))


def test_faithful_redraws_the_masks_of_all_pairs_at_every_step(monkeypatch):
    x, _ = make_input([6])
    encoder = make(mode="faithful", dropout=0.5, beam_size=2).train()
    drawn = []
    draw = encoder.cell.draw_keep
    monkeypatch.setattr(encoder.cell, "draw_keep", lambda *shape: drawn.append(shape) or draw(*shape))
    encoder(x)
    assert drawn == [(1, 1, 5), (1, 2, 4), (1, 2, 3), (1, 2, 2), (1, 2, 1)]


@pytest.mark.parametrize("name", ["bt-grc", "bt-grc-os"])
def test_one_beam_is_greedy_in_evaluation(name):
    encoder = make(name, beam_size=1).eval()
    greedy = create_encoder("gt-grc", D, dtype=torch.float64).eval()
    greedy.load_state_dict(encoder.state_dict())
    x, is_padding = make_input()
    found, trees = encoder(x, is_padding, need_trees=True)
    expected, greedy_trees = greedy(x, is_padding, need_trees=True)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(trees.merges, greedy_trees.merges)


@pytest.mark.parametrize(
    ("name", "options"), [("bt-grc", {"mode": "faithful"}), ("bt-grc", {}), ("bt-grc-os", {})]
)
def test_one_beam_gives_the_scorer_no_gradient_and_warns_once(name, options):
    encoder = make(name, beam_size=1, **options).train()
    x, is_padding = make_input()
    with pytest.warns(UserWarning, match="the scorer gets no gradient"):
        encoder(x, is_padding)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encoder(x, is_padding).square().sum().backward()
    assert all(p.grad.eq(0).all() for p in encoder.scorer.parameters())
    assert encoder.cell.w1.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("mode", ["cached", "faithful"])
def test_the_scorer_s_bias_has_no_effect_and_its_weight_has(mode):
    encoder = make(mode=mode).train()
    x, is_padding = make_input()
    encoder(x, is_padding).square().sum().backward()
    assert encoder.scorer.bias.grad.abs().max() < 1e-12
    assert encoder.scorer.weight.grad.abs().max() > 1e-4


@pytest.mark.parametrize("name", ["bt-grc", "bt-grc-os"])
def test_beams_are_no_more_than_the_orders_there_are(name):
    encoder = make(name).eval()
    x, is_padding = make_input([9, 1, 2, 3, 4])
    _, trees = encoder(x, is_padding, need_trees=True)
    assert trees.alive.sum(1).tolist() == [5, 1, 1, 2, 5]
    torch.testing.assert_close(trees.weights.sum(1), torch.ones(5, dtype=torch.float64))
    assert (trees.relative_scores[:, :-1] >= trees.relative_scores[:, 1:]).all()
    assert trees.merges[~trees.alive].eq(-1).all()


def test_equal_scores_go_to_the_lower_position():
    encoder = make(beam_size=3).eval()
    nn.init.zeros_(encoder.scorer.weight)
    _, trees = encoder(make_input([5])[0], need_trees=True)
    assert trees.merges[0].tolist() == [[0, 0, 0, 0], [0, 0, 1, 0], [0, 1, 0, 0]]


def test_long_sequences_keep_their_beams_apart_in_float32():
    encoder = make(dtype=torch.float32, beam_size=2).eval()
    x = torch.randn(1, 120, D)
    _, trees = encoder(x, need_trees=True)
    assert trees.offset[0] < -50
    assert trees.relative_scores[0, 0] == 0


@pytest.mark.parametrize(
    ("options", "message"), [({"beam_size": 0}, "beam_size"), ({"mode": "fast"}, "mode must be")]
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)
