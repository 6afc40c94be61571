"""The contract of a user's parts: what a cell or scorer has to have, and what it may leave out."""

import pytest
import torch
from torch import Tensor, nn

import beamtree
from beamtree.parts.contract import CellWithDropout, dropout_rate, mask_width


class Mean(nn.Module):
    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return (left + right) / 2


class Dropping(Mean):
    dropout, hidden_size = 0.25, 6


def test_a_cell_drops_out_in_training_only_and_at_its_own_rate() -> None:
    assert dropout_rate(Mean()) == 0.0
    assert dropout_rate(Dropping()) == 0.25
    assert dropout_rate(Dropping().eval()) == 0.0
    layer = Mean()
    layer.dropout = nn.Dropout(0.1)
    assert dropout_rate(layer) == 0.0


def test_masks_need_a_width() -> None:
    assert mask_width(Dropping()) == 6
    assert isinstance(beamtree.GatedRecursiveCell(8), CellWithDropout)
    with pytest.raises(ValueError, match="cell has a rate `dropout` but no `hidden_size`"):
        mask_width(Mean())


def test_a_cell_without_dropout_needs_no_third_argument() -> None:
    encoder = beamtree.BeamTreeEncoder(4, cell=Mean())
    x = torch.randn(2, 5, 4, requires_grad=True)
    encoder(x).sum().backward()
    assert x.grad is not None
