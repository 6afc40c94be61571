"""Models without a tree: BiLSTM against PyTorch's own on packed sequences; the two Transformers' read-out and
padding, adaptive halting against a plain per-position loop."""

import copy
import math

import pytest
import torch
from on_gpu import needs_gpu
from small_encoders import gradients, random_tokens
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.rnn import pack_padded_sequence

from beamtree.zoo import sequence_models
from beamtree.zoo.by_name import create_encoder
from beamtree.zoo.sequence_models import BiLSTM, TransformerSentenceEncoder, UniversalTransformer, sinusoids

LENGTHS = (7, 1, 2, 3, 5)
ALL = pytest.mark.parametrize("name", ["bilstm", "transformer", "universal-transformer"])
BOTH = pytest.mark.parametrize("name", ["transformer", "universal-transformer"])


def make_encoder(name: str, **options: float) -> nn.Module:
    torch.manual_seed(1)
    return create_encoder(name, 16, dtype=torch.float64, **options)


@ALL
def test_order_matters(name: str) -> None:
    encoder, (x, _) = make_encoder(name).eval(), random_tokens(LENGTHS, 16)
    assert (encoder(x) - encoder(x.flip(1))).abs().max() > 1e-3


@ALL
def test_dropout_acts_in_training_only(name: str) -> None:
    encoder, (x, _) = make_encoder(name, dropout=0.3), random_tokens(LENGTHS, 16)
    assert not torch.equal(encoder(x), encoder(x))
    encoder.eval()
    assert torch.equal(encoder(x), encoder(x))


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


@ALL
def test_autocast_stays_near(name: str) -> None:
    encoder, (x, is_padding) = make_encoder(name), random_tokens(LENGTHS, 16)
    single = copy.deepcopy(encoder).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = single(x.float(), is_padding)
    assert output.dtype == torch.float32
    torch.testing.assert_close(output.double(), encoder(x, is_padding), atol=0.2, rtol=0.1)


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


def packed_lstm(encoder: BiLSTM, x: Tensor, is_padding: Tensor) -> Tensor:
    """The sentences by PyTorch's bidirectional LSTM, which is told the lengths."""
    lstm = nn.LSTM(16, 8, len(encoder.rightward), batch_first=True, bidirectional=True, dtype=x.dtype)
    lent = {
        f"{name.replace('_l0', f'_l{i}')}{end}": parameter
        for layers, end in ((encoder.rightward, ""), (encoder.leftward, "_reverse"))
        for i, layer in enumerate(layers)
        for name, parameter in layer.named_parameters()
    }
    lengths = (~is_padding).sum(1)
    packed = pack_padded_sequence(encoder.leaf(x), lengths, batch_first=True, enforce_sorted=False)
    _, (last, _) = functional_call(lstm, lent, (packed,))
    return encoder.norm(torch.cat((last[-2], last[-1]), -1))


@pytest.mark.parametrize("layers", [1, 3])
def test_the_bilstm_is_pytorchs_on_packed_sequences(layers: int) -> None:
    encoder, (x, is_padding) = make_encoder("bilstm", layers=layers), random_tokens(LENGTHS, 16)
    x.requires_grad_()
    found, expected = encoder(x, is_padding), packed_lstm(encoder, x, is_padding)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    for one, other in zip(gradients(found, x, encoder), gradients(expected, x, encoder), strict=True):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-10)


def test_bad_options_of_the_bilstm_are_named() -> None:
    with pytest.raises(ValueError, match="d_model must be even, half of it for each direction, got 7"):
        BiLSTM(7)
    with pytest.raises(ValueError, match="layers must be at least 1, got 0"):
        BiLSTM(16, layers=0)
    with pytest.raises(ValueError, match=r"dropout must lie in \[0, 1\), got 1.0"):
        BiLSTM(16, dropout=1.0)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("training", [False, True])
def test_the_bilstm_on_a_gpu_waits_for_nothing_and_has_gradients_in_either_mode(training: bool) -> None:
    encoder, (x, is_padding) = make_encoder("bilstm", layers=2), random_tokens(LENGTHS, 16)
    x.requires_grad_()
    expected = gradients(encoder(x, is_padding), x, encoder)
    there, is_padding = copy.deepcopy(encoder).to("cuda", torch.float32).train(training), is_padding.cuda()
    z = x.detach().float().cuda().requires_grad_()
    there(z, is_padding)  # what libraries set up once
    torch.cuda.set_sync_debug_mode("error")
    try:
        output = there(z, is_padding)
        found = gradients(output, z, there)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.cpu().double(), other, atol=1e-3, rtol=1e-3)
    empty = there(z[:0], is_padding[:0])
    assert empty.shape == (0, 16)
    empty.sum().backward()


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
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-10)
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
    monkeypatch.setattr(sequence_models, "looks_at_values", lambda tokens: False)
    torch.testing.assert_close(encoder(x, is_padding), early, atol=1e-12, rtol=0)
