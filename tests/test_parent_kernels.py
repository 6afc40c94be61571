"""BT-GRC and BT-GRC OS with parents by kernels against the plain ones in float64: outputs and gradients.

Without a GPU the kernels run in Triton's interpreter.
"""

import copy
import os
from collections.abc import Callable

import pytest
import torch
from small_encoders import gradients, random_tokens
from torch import Tensor

from beamtree import create_encoder
from beamtree.cell import GatedRecursiveCell
from beamtree.rivals import entangled

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("Triton's interpreter must be chosen before Triton is imported", allow_module_level=True)


@pytest.fixture(autouse=True)
def unwritten_memory_is_nan():
    """An element that no kernel writes fails a comparison."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)


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
    monkeypatch.setattr(entangled, "has_kernels", lambda device: True)
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
