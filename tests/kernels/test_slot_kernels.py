"""Ordered Memory by kernels is Ordered Memory: outputs and all gradients against the plain path in float64.

Without a GPU the kernels run in Triton's interpreter.
"""

import copy

import pytest
import torch
import torch.nn.functional as F
from kernel_cases import DEVICE
from small_encoders import gradients, random_tokens

from beamtree.zoo import ordered_memory, ordered_memory_step
from beamtree.zoo.ordered_memory import OrderedMemory

pytestmark = pytest.mark.usefixtures("unwritten_memory_is_nan")


@pytest.mark.parametrize(
    ("lengths", "d", "slots", "dropout", "memory_dropout"),
    [
        ((4, 1, 2, 3), 6, 4, 0.0, 0.0),
        ((3, 2), 20, 3, 0.3, 0.2),
        ((2,), 16, 1, 0.3, 0.0),
        ((1, 1), 5, 2, 0.0, 0.0),
        ((2,) * 19, 8, 5, 0.0, 0.2),
        ((3, 2), 70, 2, 0.3, 0.0),
    ],
)
def test_outputs_and_gradients_are_the_plain_ones(
    lengths: tuple[int, ...],
    d: int,
    slots: int,
    dropout: float,
    memory_dropout: float,
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
        plain.beta.weight.mul_(20)  # so that the attention is far from uniform
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
