"""Models without a tree: what they share, and BiLSTM against PyTorch's own on packed sequences."""

import copy

import pytest
import torch
from on_gpu import needs_gpu
from small_encoders import gradients, random_tokens
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.rnn import pack_padded_sequence

from beamtree import cuda_graphs
from beamtree.zoo.by_name import create_encoder
from beamtree.zoo.sequence_models import BiLSTM

LENGTHS = (7, 1, 2, 3, 5)
ALL = pytest.mark.parametrize("name", ["bilstm", "transformer", "universal-transformer"])


def make_encoder(name: str, **options: float) -> nn.Module:
    torch.manual_seed(1)
    return create_encoder(name, 16, dtype=torch.float64, **options)


@ALL
def test_order_matters(name: str) -> None:
    encoder, (x, _) = make_encoder(name).eval(), random_tokens(LENGTHS, 16)
    assert (encoder(x) - encoder(x.flip(1))).abs().max() > 1e-3


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
    torch.testing.assert_close(
        gradients(found, x, encoder), gradients(expected, x, encoder), atol=1e-10, rtol=1e-10
    )


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


CAPTURED = ["transformer", "rotary-transformer", "s4d", "mamba", "ssm-ebt-grc"]


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("name", CAPTURED)
def test_training_in_graphs_has_the_gradients_of_training_without(name: str) -> None:
    encoder = make_encoder(name).cuda().float()
    for seed, lengths in enumerate([LENGTHS, (7, 7, 7, 7, 7), (17, 4, 9, 12, 1), LENGTHS]):
        x, is_padding = (part.cuda() for part in random_tokens(lengths, 16, seed=seed))
        x = x.float().requires_grad_()
        encoder(x, is_padding)  # captures, which draws random numbers
        torch.manual_seed(seed)
        found = gradients(encoder(x, is_padding), x, encoder)
        with cuda_graphs(False):
            torch.manual_seed(seed)
            expected = gradients(encoder(x, is_padding), x, encoder)
        torch.testing.assert_close(found, expected, atol=2e-4, rtol=2e-4)
    assert len(encoder.graphs) == 2  # lengths of 8 and of 24
    encoder(x[:0], is_padding[:0]).sum().backward()


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("name", CAPTURED)
def test_dropout_in_graphs_is_drawn_afresh_and_ends_with_training(name: str) -> None:
    encoder = make_encoder(name, dropout=0.3).cuda()
    x, is_padding = (part.cuda() for part in random_tokens(LENGTHS, 16))
    first, second = (encoder(x.requires_grad_(), is_padding).detach() for _ in range(2))
    assert not torch.equal(first, second)
    encoder.eval()
    first, second = (encoder(x, is_padding).detach() for _ in range(2))
    assert torch.equal(first, second)
