"""What wraps a part whose weights are read directly is refused, since it would silently do nothing."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from beamtree import BeamTreeEncoder

D = 6


class Adapted(nn.Module):
    """As fine-tuning libraries wrap a linear map: its result and a little more."""

    def __init__(self, wrapped: nn.Linear) -> None:
        super().__init__()
        self.wrapped = wrapped
        self.weight = wrapped.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.wrapped(x) + 1


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


@pytest.mark.parametrize(
    ("owner", "name"), [("cell", "w1"), ("cell", "w2"), ("scorer", "hidden"), ("leaf", "linear")]
)
def test_a_wrapper_is_refused_and_the_part_stays(owner: str, name: str) -> None:
    encoder = BeamTreeEncoder(D)
    module = getattr(encoder, owner)
    part = getattr(module, name)
    with pytest.raises(ValueError, match=f"{name} of .* must stay an nn.Linear, got Adapted: its weights"):
        setattr(module, name, Adapted(part))
    assert getattr(module, name) is part


def test_another_linear_map_and_a_parametrization_have_their_effect() -> None:
    encoder, x = BeamTreeEncoder(D).eval(), torch.randn(2, 4, D)
    exchanged = copy.deepcopy(encoder)
    exchanged.cell.w1 = nn.Linear(2 * D, 4 * D)
    exchanged.cell.w1.load_state_dict(
        {name: 2 * value for name, value in encoder.cell.w1.state_dict().items()}
    )
    parametrize.register_parametrization(encoder.cell.w1, "weight", Doubled())
    parametrize.register_parametrization(encoder.cell.w1, "bias", Doubled())
    torch.testing.assert_close(encoder(x), exchanged(x))
