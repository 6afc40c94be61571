"""BT-GRC and BT-GRC OS with parents by kernels against the plain ones in float64: outputs and gradients.

Without a GPU the kernels run in Triton's interpreter.
"""

import copy
from collections.abc import Callable

import pytest
import torch
from kernel_cases import DEVICE
from small_encoders import gradients, random_tokens
from torch import Tensor

from beamtree import create_encoder
from beamtree.parts.cell import GatedRecursiveCell
from beamtree.zoo import beam_tree_grc

pytestmark = pytest.mark.usefixtures("unwritten_memory_is_nan")


@pytest.mark.parametrize(
    ("name", "mode", "lengths", "d", "dropout"),
    [
        ("bt-grc-os", "cached", (8, 1, 2, 3, 5), 6, 0.0),
        ("bt-grc-os", "cached", (6, 4), 20, 0.3),
        ("bt-grc-os", "faithful", (5, 3), 16, 0.3),
        ("bt-grc", "faithful", (5, 2), 6, 0.0),
    ],
)
def test_outputs_and_gradients_are_the_plain_ones(
    name: str,
    mode: str,
    lengths: tuple[int, ...],
    d: int,
    dropout: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.set_float32_matmul_precision("highest")
    monkeypatch.setattr(GatedRecursiveCell, "draw_keep", masks(dropout))
    torch.manual_seed(0)
    plain = create_encoder(name, d, mode=mode, stochastic=False, dropout=dropout, dtype=torch.float64).train()
    with torch.no_grad():
        plain.scorer.weight.mul_(2)
        plain.cell.norm.weight.uniform_(0.5, 1.5)
        plain.cell.norm.bias.uniform_(-0.5, 0.5)
    by_kernels = copy.deepcopy(plain).float().to(DEVICE)
    x, is_padding = random_tokens(lengths, d, seed=1)
    x.requires_grad_()
    expected = plain(x, is_padding)
    monkeypatch.setattr(beam_tree_grc, "has_kernels", lambda device: True)
    there = x.detach().float().to(DEVICE).requires_grad_()
    found = by_kernels(there, is_padding.to(DEVICE))
    close = {"atol": 5e-5, "rtol": 5e-4, "check_dtype": False}
    torch.testing.assert_close(found.cpu(), expected, **close)
    for ours, theirs in zip(gradients(found, there, by_kernels), gradients(expected, x, plain), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, **close)


def masks(dropout: float) -> Callable[..., Tensor | None]:
    """A mask that depends on the shape alone, so that both ways have the same."""

    def draw_keep(cell: GatedRecursiveCell, *shape: int) -> Tensor | None:
        if dropout == 0.0:
            return None
        drawn = torch.rand(*shape, cell.hidden_size, generator=torch.Generator().manual_seed(sum(shape)))
        return ((drawn > dropout) / (1 - dropout)).to(cell.w1.weight)

    return draw_keep


def test_weights_that_a_hook_makes_are_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    x, trained = torch.randn(2, 4, 8, device=DEVICE), []
    for by_kernels in (False, True):
        monkeypatch.setattr(beam_tree_grc, "has_kernels", lambda _, by_kernels=by_kernels: by_kernels)
        torch.manual_seed(0)
        encoder = create_encoder("bt-grc-os", 8, stochastic=False).to(DEVICE).train()
        encoder.graphs.capacity = 0
        with pytest.warns(FutureWarning):
            torch.nn.utils.weight_norm(encoder.cell.w1)
        optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            (encoder(x) * torch.arange(8.0, device=DEVICE)).sum().backward()
            optimizer.step()
        trained.append(torch.cat([parameter.detach().flatten() for parameter in encoder.parameters()]))
    torch.testing.assert_close(*trained, rtol=1e-4, atol=1e-4)


def test_a_scorer_of_ones_own_keeps_the_plain_path(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(8, 1)

        def forward(self, parents: Tensor) -> Tensor:
            return self.inner(parents).squeeze(-1)

    monkeypatch.setattr(beam_tree_grc, "has_kernels", lambda _: True)
    encoder = create_encoder("bt-grc-os", 8).to(DEVICE).train()
    encoder.scorer = Own().to(DEVICE)
    assert encoder(torch.randn(2, 4, 8, device=DEVICE)).shape == (2, 8)


def test_a_backward_pass_may_stand_inside_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    x, found = torch.randn(2, 4, 8, device=DEVICE), []
    encoder = create_encoder("bt-grc-os", 8, stochastic=False).to(DEVICE).train()
    encoder.graphs.capacity = 0
    monkeypatch.setattr(beam_tree_grc, "has_kernels", lambda _: True)
    for enabled in (False, True):
        loss = encoder(x).square().sum()
        with torch.autocast(DEVICE, torch.bfloat16, enabled=enabled):
            found.append(torch.autograd.grad(loss, encoder.cell.w1.weight)[0])
    exact, rounded = found  # as everything around the parents is
    assert (exact - rounded).norm() <= 0.02 * exact.norm()
