"""Blocks made on the meta device and drawn later, as sharded training makes them."""

import pytest
import torch
from torch import nn

from beamtree import BeamTreeContextualizer, BeamTreeEncoder, HybridStack, create_encoder

D = 6


@pytest.mark.parametrize(
    "make",
    [
        lambda **where: BeamTreeEncoder(D, **where),
        lambda **where: BeamTreeContextualizer(D, residual=True, **where),
        lambda **where: HybridStack(["ssm", "tree"], D, **where),
        lambda **where: create_encoder("bt-grc", D, **where),
    ],
    ids=["encoder", "contextualizer", "stack", "bt-grc"],
)
def test_a_block_made_on_meta_is_drawn_by_its_parts_as_a_fresh_one_is(make) -> None:
    block: nn.Module = make(device="meta").to_empty(device="cpu")
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.fill_(torch.nan)
    for part in block.modules():
        if any(True for _ in part.parameters(recurse=False)):
            part.reset_parameters()
    fresh = dict(make().named_parameters())
    for name, parameter in block.named_parameters():
        assert parameter.isfinite().all(), name
        # What is constant at first is the same constant, what is drawn is drawn as widely.
        assert parameter.std(correction=0).item() == pytest.approx(
            fresh[name].std(correction=0).item(), rel=2.0, abs=1e-6
        ), name
    assert block(torch.randn(2, 5, D)).isfinite().all()
