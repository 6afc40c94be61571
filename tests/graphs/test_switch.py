"""`beamtree.cuda_graphs(False)` reaches everything that runs as a graph; the CPU plays the GPU."""

import pytest
import torch
from own_cells import make_encoder, make_input
from played_graphs import Recording
from torch import nn

import beamtree
from beamtree import create_encoder


def models() -> dict[str, nn.Module]:
    kind = {"dtype": torch.float64}
    return {
        "a user's cell": make_encoder(),
        "a step": create_encoder("om", 6, **kind),
        "a whole pass": create_encoder("bt-grc-os", 6, **kind),
    }


@pytest.mark.parametrize("name", models())
def test_off_nothing_is_captured_nor_replayed_and_results_are_the_same(
    captures: list[Recording], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    torch.manual_seed(0)
    model, (x, is_padding) = models()[name].train(), make_input([6, 3])

    def gradients() -> list[torch.Tensor]:
        root = model(x, is_padding)
        return [root, *torch.autograd.grad(root.square().sum(), [x, *model.parameters()])]

    with beamtree.cuda_graphs(False):
        launched = gradients()
    assert not captures
    replayed = gradients()
    assert captures
    monkeypatch.setattr(Recording, "replay", lambda self: pytest.fail("replayed"))
    with beamtree.cuda_graphs(False):
        again = gradients()
    for some in (replayed, again):
        torch.testing.assert_close(some, launched, rtol=0, atol=1e-10)
