"""How a user's cell and scorer are called."""

import pytest
import torch
from own_cells import MeanCell, make_encoder, make_input
from torch import Tensor

from beamtree.graphs import own_cell


@pytest.mark.parametrize("keeps", [True, False])
def test_where_autocast_keeps_weights_cast_without_a_graph_its_cache_is_off(
    monkeypatch: pytest.MonkeyPatch, keeps: bool
) -> None:
    """In PyTorch 2.8 their gradients would be lost."""
    monkeypatch.setattr(own_cell, "_KEEPS_CASTS_WITHOUT_A_GRAPH", keeps)
    cached = set()

    class Looking(MeanCell):
        def forward(self, left: Tensor, right: Tensor, keep: Tensor | None = None) -> Tensor:
            cached.add((torch.is_grad_enabled(), torch.is_autocast_cache_enabled()))
            return super().forward(left, right)

    encoder = make_encoder(Looking, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        root = encoder(*make_input([5, 3], dtype=torch.float32))
    root.sum().backward()
    assert {cache for grad, cache in cached if not grad} == {not keeps}
