"""CRvNN by kernels is CRvNN: outputs and all gradients against the plain path in float64.

Without a GPU the kernels run in Triton's interpreter.
"""

import copy

import pytest
import torch
from kernel_cases import DEVICE
from small_encoders import gradients, random_tokens

from beamtree.zoo import crvnn, crvnn_step
from beamtree.zoo.crvnn import CRvNN

pytestmark = pytest.mark.usefixtures("unwritten_memory_is_nan")


@pytest.mark.parametrize(
    ("lengths", "d", "dropout", "halt", "sharpness", "tolerance"),
    [
        ((7, 1, 2, 3, 9, 4), 6, 0.0, True, 3.0, 5e-5),
        ((5, 2), 20, 0.3, False, 3.0, 5e-5),
        ((18, 3), 16, 0.3, True, 3.0, 5e-5),
        ((1, 1), 5, 0.0, True, 3.0, 5e-5),
        ((18, 3), 16, 0.0, True, 40.0, 1e-3),
    ],
)
def test_outputs_and_gradients_are_the_plain_ones(
    lengths: tuple[int, ...],
    d: int,
    dropout: float,
    halt: bool,
    sharpness: float,
    tolerance: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.set_float32_matmul_precision("highest")
    monkeypatch.setattr(crvnn, "draw_seed", lambda device: torch.tensor(7, device=device))
    torch.manual_seed(1)
    plain = CRvNN(d, dropout=dropout, halt=halt, dtype=torch.float64)
    with torch.no_grad():
        plain.scorer.weight.mul_(sharpness)
        plain.scorer.bias.fill_(6.0)  # so that sequences halt before the cap
        plain.cell.norm.weight.uniform_(0.5, 1.5)
        plain.cell.norm.bias.uniform_(-0.5, 0.5)
    by_kernels = copy.deepcopy(plain).float().to(DEVICE)
    x, is_padding = random_tokens(lengths, d)
    x.requires_grad_()
    expected, trees = plain(x, is_padding, need_trees=True)
    monkeypatch.setattr(crvnn_step, "has_kernels", lambda device: True)
    there = x.detach().float().to(DEVICE).requires_grad_()
    found, found_trees = by_kernels(there, is_padding.to(DEVICE), need_trees=True)
    close = {"atol": tolerance, "rtol": 10 * tolerance, "check_dtype": False}
    torch.testing.assert_close(found.cpu(), expected, **close)
    assert torch.equal(found_trees.merges.cpu(), trees.merges)
    for ours, theirs in zip(gradients(found, there, by_kernels), gradients(expected, x, plain), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, **close)
