"""Ordered Memory by kernels is Ordered Memory: outputs and all gradients against the plain path in float64.

Without a GPU the kernels run in Triton's interpreter.
"""

import copy

import pytest
import torch
import torch.nn.functional as F
from kernel_cases import DEVICE
from small_encoders import gradients, random_tokens

from beamtree.kernels.zoo.attention_kernels import Attention
from beamtree.zoo import ordered_memory, ordered_memory_step
from beamtree.zoo.ordered_memory import OrderedMemory

pytestmark = pytest.mark.usefixtures("unwritten_memory_is_nan")


@pytest.mark.parametrize(
    ("lengths", "d", "slots", "dropout", "memory_dropout", "sharpness"),
    [
        ((4, 1, 2, 3), 6, 4, 0.0, 0.0, 20.0),
        ((3, 2), 20, 3, 0.3, 0.2, 20.0),
        ((2,), 16, 1, 0.3, 0.0, 20.0),
        ((1, 1), 5, 2, 0.0, 0.0, 20.0),
        ((2,) * 19, 8, 5, 0.0, 0.2, 20.0),
        ((3, 2), 70, 2, 0.3, 0.0, 20.0),
        ((5, 4), 6, 5, 0.0, 0.0, 60.0),  # slots that attention has left behind are closed
    ],
)
def test_outputs_and_gradients_are_the_plain_ones(
    lengths: tuple[int, ...],
    d: int,
    slots: int,
    dropout: float,
    memory_dropout: float,
    sharpness: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.set_float32_matmul_precision("highest")
    monkeypatch.setattr(ordered_memory, "draw_seed", lambda device: torch.tensor(7, device=device))
    monkeypatch.setattr(F, "dropout", lambda x, p, training: x)  # drawn by the device's own generator
    torch.manual_seed(1)
    plain = OrderedMemory(
        d, memory_slots=slots, dropout=dropout, memory_dropout=memory_dropout, dtype=torch.float64
    )
    with torch.no_grad():
        plain.beta.weight.mul_(sharpness)  # so that the attention is far from uniform
        for norm in (plain.memory_norm, plain.key.norm):
            norm.weight.uniform_(0.5, 1.5)
            norm.bias.uniform_(-0.5, 0.5)
    by_kernels = copy.deepcopy(plain).float().to(DEVICE)
    x, is_padding = random_tokens(lengths, d)
    x.requires_grad_()
    expected = plain(x, is_padding)
    monkeypatch.setattr(ordered_memory_step, "has_kernels", lambda device: True)
    there = x.detach().float().to(DEVICE).requires_grad_()
    found = by_kernels(there, is_padding.to(DEVICE))
    close = {"atol": 2e-5, "rtol": 2e-4, "check_dtype": False}
    torch.testing.assert_close(found.cpu(), expected, **close)
    for ours, theirs in zip(gradients(found, there, by_kernels), gradients(expected, x, plain), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, **close)


def test_weights_may_lie_in_memory_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, x, found = OrderedMemory(8, memory_slots=3).to(DEVICE), torch.randn(2, 3, 8, device=DEVICE), []
    encoder.cell["w2"].weight.data = encoder.cell["w2"].weight.data.t().contiguous().t()
    for by_kernels in (False, True):
        monkeypatch.setattr(ordered_memory_step, "has_kernels", lambda _, by_kernels=by_kernels: by_kernels)
        with torch.no_grad():
            found.append(encoder(x))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_a_closed_slot_passes_no_gradient_to_the_attention_before() -> None:
    """Less than 1e-5 of it leads to the first two slots, which have the greatest scores."""
    S, B, d = 5, 3, 6
    torch.manual_seed(3)
    memory, candidates, d_written = torch.randn(3, S, B, d, dtype=torch.float64)
    query, d_p, d_cp = torch.randn(B, d, dtype=torch.float64), *torch.randn(2, S, B, dtype=torch.float64)
    p_before = torch.tensor([1e-6, 2e-6, 3e-6, 0.4, 0.6], dtype=torch.float64)
    p_before = p_before.unsqueeze(1).repeat(1, B).requires_grad_()
    shapes = ((d, d), (d,), (d,), (d,), (1, d), (1,))
    weights = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    nothing = ordered_memory_step.Masks()
    p, cp, written = ordered_memory_step.attend(weights, query, memory, candidates, p_before, nothing)
    (wanted,) = torch.autograd.grad((p, cp, written), p_before, (d_p, d_cp, d_written))

    def single(*tensors: torch.Tensor) -> list[torch.Tensor]:
        return [tensor.detach().float().contiguous().to(DEVICE) for tensor in tensors]

    attention = Attention(
        single(*weights), *single(query, memory, candidates, p_before), None, eps=1e-5, unreached=1e-5
    )
    torch.testing.assert_close(attention.p.cpu(), p.detach().float(), rtol=1e-4, atol=1e-6)
    zeros = torch.zeros(S, B, d, device=DEVICE)
    sums = [torch.zeros_like(weight) for weight in single(*weights)]
    flows = [*single(d_written), zeros, zeros, zeros]
    *_, found = attention.differentiate(*single(d_p, d_cp), flows, None, sums)
    torch.testing.assert_close(found.cpu(), wanted.float(), rtol=1e-3, atol=1e-4)
