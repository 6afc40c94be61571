"""Transformers: their read-out and padding, adaptive halting against a plain per-position loop, and rotary
positions, whose products of queries and keys see distances alone."""

import math

import pytest
import torch
from small_encoders import random_tokens
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from beamtree.zoo import transformers
from beamtree.zoo.by_name import create_encoder
from beamtree.zoo.transformers import (
    TransformerSentenceEncoder,
    UniversalTransformer,
    sinusoids,
    turn,
    turns_of,
)

LENGTHS = (7, 1, 2, 3, 5)
BOTH = pytest.mark.parametrize("name", ["transformer", "universal-transformer"])


def make_encoder(name: str, **options: float) -> nn.Module:
    torch.manual_seed(1)
    return create_encoder(name, 16, dtype=torch.float64, **options)


@BOTH
def test_forward_mode_is_right_where_attention_has_it_but_refused_where_pondering_has_its_price(
    name: str,
) -> None:
    encoder, (x, is_padding) = make_encoder(name).eval(), random_tokens(LENGTHS, 16)
    direction, weight = torch.randn_like(x), torch.randn(len(LENGTHS), 16, dtype=x.dtype)

    def project(x: Tensor) -> Tensor:
        return (encoder(x, is_padding) * weight).sum()

    with sdpa_kernel(SDPBackend.MATH):
        _, tangent = torch.func.jvp(project, (x,), (direction,))
        (gradient,) = torch.autograd.grad(project(x.requires_grad_()), x)
        torch.testing.assert_close(tangent, (gradient * direction).sum())
        encoder.train()
        if name == "universal-transformer":
            with pytest.raises(NotImplementedError, match="no forward-mode derivative"):
                torch.func.jvp(project, (x.detach(),), (direction,))


@BOTH
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 5}, "heads must divide d_model = 16, got 5"),
        ({"heads": 0}, "heads must divide d_model = 16, got 0"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\), got 1.0"),
    ],
)
def test_bad_options_are_named(name: str, options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_encoder(name, **options)


def test_bad_halting_options_are_named() -> None:
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        UniversalTransformer(16, steps=0)
    with pytest.raises(ValueError, match=r"threshold must lie in \(0, 1\), got 1.0"):
        UniversalTransformer(16, threshold=1.0)


def test_heads_left_open_divide_the_width() -> None:
    for d, heads in ((128, 8), (300, 6), (10, 5), (7, 7), (11, 1)):
        layer = TransformerSentenceEncoder(d, layers=1, device="meta").layers[0]
        assert layer.self_attn.num_heads == heads


def test_the_transformer_is_pytorchs_layers_between_leaves_and_a_norm() -> None:
    encoder, (x, _) = make_encoder("transformer"), random_tokens(LENGTHS, 16)
    tokens = torch.cat((encoder.cls.expand(len(x), 1, -1), encoder.leaf(x)), 1)
    for t in range(tokens.shape[1]):
        for k in range(16):
            angle = t / 10000 ** (2 * (k // 2) / 16)
            tokens[:, t, k] += math.cos(angle) if k % 2 else math.sin(angle)
    for layer in encoder.layers:
        tokens = layer(tokens)
    torch.testing.assert_close(encoder(x), encoder.norm(tokens[:, 0]), atol=1e-12, rtol=0)
    assert len(encoder.layers) == 6


def test_odd_widths_have_positions_too() -> None:
    signal = sinusoids(torch.arange(3), torch.zeros(7))
    assert signal.shape == (3, 7)
    assert signal[0].tolist() == [0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0]


def halting_loop(encoder: UniversalTransformer, x: Tensor) -> tuple[Tensor, Tensor, list[int]]:
    """The result of CLS for one sequence, the mean remainder, and how many steps each position ran."""
    tokens = torch.cat((encoder.cls.expand(1, -1), encoder.leaf(x)))
    n = len(tokens)
    positions = sinusoids(torch.arange(n), tokens)
    probabilities: list[list[Tensor]] = [[] for _ in range(n)]
    states: list[list[Tensor]] = [[] for _ in range(n)]
    for step in range(encoder.steps):
        signal = positions + sinusoids(torch.tensor([step]), tokens)
        tokens = encoder.layer((tokens + signal).unsqueeze(0))[0]
        for i in range(n):
            probabilities[i].append(encoder.halting(tokens[i]).sigmoid().squeeze())
            states[i].append(tokens[i])
    results, remainders, ran = [], [], []
    for i in range(n):
        last = next(
            (k for k in range(encoder.steps) if sum(probabilities[i][: k + 1]) > encoder.threshold),
            encoder.steps - 1,
        )
        remainder = 1 - sum(probabilities[i][:last], torch.zeros((), dtype=x.dtype))
        weights = [*probabilities[i][:last], remainder]
        results.append(sum(w * s for w, s in zip(weights, states[i], strict=False)))
        remainders.append(remainder)
        ran.append(last + 1)
    return results[0], torch.stack(remainders).mean(), ran


@pytest.mark.parametrize("bias", [-4.0, -0.5, 0.5, 6.0])
def test_each_position_halts_on_its_own_and_averages_its_states(bias: float) -> None:
    encoder, (x, _) = make_encoder("universal-transformer"), random_tokens(LENGTHS, 16)
    with torch.no_grad():
        encoder.halting.weight.mul_(3)
        encoder.halting.bias.fill_(bias)
    encoder.train()
    batch = encoder(x)
    for b in range(len(x)):
        result, _, ran = halting_loop(encoder, x[b])
        torch.testing.assert_close(batch[b], encoder.norm(result), atol=1e-12, rtol=0)
        if bias == -0.5:
            assert len(set(ran)) > 1
        if bias == -4.0:
            assert max(ran) == 12


def test_a_backward_pass_in_training_adds_the_ponder_costs_gradient() -> None:
    encoder, (x, _) = make_encoder("universal-transformer", ponder_weight=0.5), random_tokens(LENGTHS, 16)
    parameters = list(encoder.parameters())
    result, remainder, ran = halting_loop(encoder, x[0])
    assert max(ran) > 1
    loss = encoder.norm(result).square().sum() + 0.5 * remainder
    expected = torch.autograd.grad(loss, parameters)
    ours = torch.autograd.grad(encoder.train()(x[:1]).square().sum(), parameters)
    torch.testing.assert_close(ours, expected, atol=1e-10, rtol=1e-10)
    without = torch.autograd.grad(encoder.eval()(x[:1]).square().sum(), parameters)
    assert (without[-1] - ours[-1]).abs().max() > 1e-6


def test_stopping_early_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, (x, is_padding) = make_encoder("universal-transformer"), random_tokens(LENGTHS, 16)
    with torch.no_grad():
        encoder.halting.bias.fill_(3.0)
    calls: list[int] = []
    encoder.layer.register_forward_hook(lambda *_: calls.append(1))
    early = encoder(x, is_padding)
    assert len(calls) < 12
    monkeypatch.setattr(transformers, "_may_look", lambda tokens: False)
    torch.testing.assert_close(encoder(x, is_padding), early, atol=1e-12, rtol=0)


def test_a_product_of_two_turned_vectors_depends_on_their_distance_alone() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(2, 8, dtype=torch.float64)
    turns = turns_of(30, 8, query)
    at = lambda x: turn(x.expand(30, 8), turns)  # noqa: E731
    products = at(query) @ at(key).T
    for distance in (-7, 0, 5):
        diagonal = products.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))
    assert not torch.allclose(products.diagonal(1)[0], products.diagonal(2)[0])


def test_turning_by_hand_is_the_complex_product() -> None:
    torch.manual_seed(1)
    x = torch.randn(5, 6, dtype=torch.float64)
    pairs = torch.complex(x[:, :3], x[:, 3:])
    angle = torch.arange(5).double().unsqueeze(1) * 10_000.0 ** -(torch.arange(0, 6, 2).double() / 6)
    turned = pairs * torch.polar(torch.ones_like(angle), angle)
    torch.testing.assert_close(turn(x, turns_of(5, 6, x)), torch.cat((turned.real, turned.imag), 1))


def test_the_order_of_tokens_matters() -> None:
    torch.manual_seed(2)
    encoder = create_encoder("rotary-transformer", 16).eval()
    x = torch.randn(1, 6, 16)
    assert not torch.allclose(encoder(x), encoder(x.flip(1)), atol=1e-4)


def test_heads_must_leave_pairs_of_features() -> None:
    with pytest.raises(ValueError, match="heads must divide d_model = 12 into even parts, got 4"):
        create_encoder("rotary-transformer", 12, heads=4)
    with pytest.raises(ValueError, match="layers must be at least 1, got 0"):
        create_encoder("rotary-transformer", 16, layers=0)
