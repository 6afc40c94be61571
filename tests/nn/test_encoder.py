"""`BeamTreeEncoder` from outside: edge cases, sizes, greedy search, padding, precisions."""

import math
import warnings

import pytest
import torch
from small_encoders import padding, sharp_encoder
from torch import Tensor, nn

from beamtree import BeamTreeEncoder, GatedRecursiveCell

D = 6


def encoder(scale: float = 3.0, **options: object) -> BeamTreeEncoder:
    return sharp_encoder(D, scale, **options)


def tokens(B: int, n: int) -> Tensor:
    return torch.randn(B, n, D, dtype=torch.float64)


def test_one_token_gives_the_transformed_leaf() -> None:
    model = encoder().train()
    x = tokens(3, 1)
    root, trees = model(x, need_trees=True)
    assert torch.equal(root, model.leaf(x)[:, 0])
    assert trees.merges.shape == (3, 5, 0)
    assert trees.weights.tolist() == [[1, 0, 0, 0, 0]] * 3
    assert trees.log_scores[:, 0].tolist() == [0, 0, 0]


def test_two_tokens_give_one_merge() -> None:
    model = encoder().train()
    x = tokens(3, 2)
    root, trees = model(x, need_trees=True)
    leaves = model.leaf(x)
    torch.testing.assert_close(root, model.cell(leaves[:, 0], leaves[:, 1]), rtol=0, atol=1e-14)
    assert trees.merges[:, 0].tolist() == [[0]] * 3
    assert trees.alive.sum(1).tolist() == [1, 1, 1]
    assert trees.log_scores[:, 0].tolist() == [0, 0, 0]


@pytest.mark.parametrize("training", [False, True])
def test_as_many_beams_live_as_there_are_merge_orders_but_no_more_than_the_beam_holds(training: bool) -> None:
    model = encoder(beam_size=5).train(training)
    lengths = [1, 2, 3, 4, 5, 9]
    _, trees = model(tokens(6, 9), key_padding_mask=padding(lengths), need_trees=True)
    assert trees.alive.sum(1).tolist() == [1, 1, 2, 5, 5, 5]
    assert not trees.weights.isnan().any()
    torch.testing.assert_close(trees.weights.sum(1), torch.ones(6, dtype=torch.float64))
    assert ((trees.weights > 0) == trees.alive).all()
    dead = ~trees.alive
    assert (trees.log_scores[dead] == -torch.inf).all()
    assert (trees.merges[dead] == -1).all()
    assert (trees.spans[dead] == -1).all()
    assert (trees.log_scores[:, 1:] <= trees.log_scores[:, :-1]).all()
    for b, length in enumerate(lengths):
        assert len(trees.k_best(b)) == min(5, math.factorial(length - 1))
        assert (trees.merges[b, :, max(0, length - 1) :] == -1).all()
        assert (trees.merges[b, 0, : length - 1] >= 0).all()


def test_greedy_search_is_argmax_with_the_same_scorer() -> None:
    model = encoder(beam_size=1).eval()
    x = tokens(1, 12)
    root, trees = model(x, need_trees=True)
    nodes, expected, log_score = [*model.leaf(x)[0]], [], 0.0
    while len(nodes) > 1:
        scores = model.scorer(torch.stack(nodes[:-1]), torch.stack(nodes[1:]))
        j = int(scores.argmax())
        expected.append(j)
        log_score += scores.log_softmax(0)[j].item()
        nodes[j : j + 2] = [model.cell(nodes[j], nodes[j + 1])]
    assert trees.merges[0, 0].tolist() == expected
    torch.testing.assert_close(root[0], nodes[0], rtol=0, atol=1e-12)
    assert trees.log_scores.item() == pytest.approx(log_score, abs=1e-11)


def test_greedy_training_warns_once_and_gives_the_scorer_zero_gradients_not_none() -> None:
    model = encoder(beam_size=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.eval()(tokens(2, 5))
        assert not caught
        model.train()
        for _ in range(3):
            model(tokens(2, 5)).sum().backward()
    (warning,) = caught
    assert "beam_size=1 is greedy" in str(warning.message)
    assert "the scorer gets no gradient" in str(warning.message)
    assert warning.filename == __file__
    for parameter in model.scorer.parameters():
        assert torch.equal(parameter.grad, torch.zeros_like(parameter))
    assert model.cell.w1.weight.grad.abs().max() > 0


def test_what_stands_in_padded_rows_has_no_effect() -> None:
    model = encoder().eval()
    is_padding = padding([6, 1, 4])
    clean = tokens(3, 6).masked_fill(is_padding.unsqueeze(-1), 0.0)
    results = []
    for junk in (0.0, math.nan, math.inf, 1e30):
        x = clean.masked_fill(is_padding.unsqueeze(-1), junk).requires_grad_()
        root = model(x, key_padding_mask=is_padding)
        model.zero_grad()
        root.square().sum().backward()
        results.append([root, x.grad, *(p.grad.clone() for p in model.parameters())])
        assert (x.grad[is_padding] == 0).all()
    for other in results[1:]:
        assert all(torch.equal(one, two) for one, two in zip(results[0], other, strict=True))


def test_trees_carry_gradient_through_scores_and_weights() -> None:
    model = encoder().train()
    _, trees = model(tokens(2, 6), need_trees=True)
    assert trees.log_scores.requires_grad
    assert trees.weights.requires_grad
    trees.weights[:, 0].sum().backward()
    assert model.scorer.hidden.weight.grad.abs().max() > 0


@pytest.mark.parametrize("training", [False, True])
def test_half_precision_parameters_give_half_precision_outputs_near_the_exact_ones(training: bool) -> None:
    exact = encoder(stochastic=False).train(training)
    x, is_padding = tokens(4, 3), padding([3, 2, 1, 3])
    for dtype in (torch.bfloat16, torch.float16):
        rounded = encoder(stochastic=False).to(dtype).train(training)
        root, trees = rounded(x.to(dtype), key_padding_mask=is_padding, need_trees=True)
        assert root.dtype == dtype
        assert trees.log_scores.dtype == trees.weights.dtype == torch.float32
        torch.testing.assert_close(root.double(), exact(x, key_padding_mask=is_padding), rtol=0, atol=0.08)
        root.sum().backward()
        for name, parameter in rounded.named_parameters():
            assert parameter.grad.dtype == dtype, name
            assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("own", [False, True], ids=["built-in", "own cell"])
def test_under_autocast_only_the_cell_and_the_leaf_are_rounded(own: bool) -> None:
    seen: list[torch.dtype] = []

    class Watched(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            score = self.inner(left, right)
            seen.append(score.dtype)
            return score

    model = encoder(dtype=torch.float32).train()
    model.stochastic = False
    x = tokens(4, 3).float().requires_grad_()
    exact = model(x)
    exact.sum().backward()
    expected = [x.grad.clone(), *(p.grad.clone() for p in model.parameters())]
    x.grad = None
    model.zero_grad()
    if own:
        model.scorer = Watched(model.scorer)
    with torch.autocast("cpu", torch.bfloat16):
        root, trees = model(x, need_trees=True)
    root.sum().backward()  # outside of autocast, as is usual
    assert root.dtype == torch.float32
    assert trees.log_scores.dtype == torch.float32
    assert set(seen) <= {torch.float32}
    difference = float((root - exact).detach().abs().max())
    assert 1e-6 < difference < 0.05  # the products were rounded, and only they
    for found, wanted in zip([x.grad, *(p.grad for p in model.parameters())], expected, strict=True):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, wanted, rtol=0.1, atol=0.05 * float(wanted.abs().max()) + 1e-3)


def test_under_autocast_scores_are_those_of_float32_on_the_same_nodes() -> None:
    model = encoder(dtype=torch.float32).eval()
    x = tokens(2, 3).float()
    with torch.autocast("cpu", torch.bfloat16):
        _, trees = model(x, need_trees=True)
        leaves = model.leaf(x)
    scores = model.scorer(leaves[:, :-1], leaves[:, 1:])  # (2, 2), outside of autocast
    expected = scores.log_softmax(-1).sort(descending=True).values
    torch.testing.assert_close(trees.log_scores[:, :2], expected, rtol=0, atol=2e-7)


def test_beams_are_averaged_in_float32_and_rounded_once() -> None:
    model = encoder().bfloat16().eval()
    x = tokens(3, 4).bfloat16()
    beams, forest = model.beams(x), model.forest(x)
    weights = beams.relative.softmax(1).unsqueeze(-1)
    expected = (weights * beams.vectors.float()).sum(1).bfloat16()
    assert torch.equal(model(x), expected)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(forest.average(forest.roots), expected, rtol=0, atol=0.01)
        assert forest.average(forest.roots.float()).dtype == torch.float32
        assert forest.average(forest.roots.double()).dtype == torch.float64


def test_tokens_and_masks_may_lie_anyhow_in_memory() -> None:
    model = encoder().eval()
    x, is_padding = tokens(4, 6), padding([6, 2, 5, 1])
    expected = model(x, key_padding_mask=is_padding)
    crosswise = x.transpose(0, 1).contiguous().transpose(0, 1)
    flat = is_padding.t().contiguous().t()
    assert torch.equal(model(crosswise, key_padding_mask=flat), expected)
    one = x[:1].expand(4, 6, D)
    torch.testing.assert_close(model(one), model(x[:1]).expand(4, D), rtol=0, atol=1e-12)


def test_float32_and_float64_agree() -> None:
    model = encoder(dtype=torch.float32).eval()
    x, is_padding = tokens(5, 9).float(), padding([9, 1, 4, 7, 2])
    found = model(x, key_padding_mask=is_padding)
    exact = model.double()(x.double(), key_padding_mask=is_padding)
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=2e-6)


def test_an_empty_batch_gives_an_empty_result_and_zero_gradients() -> None:
    for training in (False, True):
        model = encoder(dropout=0.1).train(training)
        root, trees = model(tokens(0, 4), need_trees=True)
        assert root.shape == (0, D)
        assert len(trees) == 0
        root.sum().backward()
        for parameter in model.parameters():
            assert torch.equal(parameter.grad, torch.zeros_like(parameter))


def test_its_description_names_its_settings() -> None:
    assert "d_model=6, beam_size=3, stochastic=True" in repr(BeamTreeEncoder(D, beam_size=3))


def test_a_cell_or_scorer_of_another_width_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"cell\.d_model is 16, expected 32"):
        BeamTreeEncoder(32, cell=GatedRecursiveCell(16))
