"""The scan is the recurrence, forward and backward; the layer selects, and reads from either end."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from beamtree.nn.selective_state_space import SelectiveStateSpaceLayer, scan


def scan_by_hand(decay: Tensor, added: Tensor) -> Tensor:
    states, state = [], torch.zeros_like(added[:, 0])
    for t in range(added.shape[1]):
        state = decay[:, t] * state + added[:, t]
        states.append(state)
    return torch.stack(states, 1)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 16, 17, 50])
def test_the_scan_and_its_gradients_are_those_of_the_recurrence(n: int) -> None:
    torch.manual_seed(n)
    decay = torch.rand(2, n, 3, 4, dtype=torch.float64, requires_grad=True)
    added = torch.randn(2, n, 3, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, n, 3, 4, dtype=torch.float64)
    expected, found = scan_by_hand(decay, added), scan(decay, added)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    for mine, theirs in zip(
        torch.autograd.grad(found, (decay, added), weight),
        torch.autograd.grad(expected, (decay, added), weight),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


def layer_by_hand(layer: SelectiveStateSpaceLayer, x: Tensor) -> Tensor:
    """The published block, token by token, for one sequence (n, d)."""
    tokens = x.flip(0) if layer.backwards else x
    a = -layer.log_decay.exp()
    state = torch.zeros_like(a)
    window: list[Tensor] = [torch.zeros(layer.inner_size, dtype=x.dtype)] * 3
    found = []
    for token in tokens:
        u, gate = layer.enter(layer.norm(token)).chunk(2, -1)
        window = [*window[-3:], u]
        u = F.silu((torch.stack(window, 1) * layer.window.weight[:, 0]).sum(1) + layer.window.bias)
        rank, write, read = layer.select(u).split((layer.rank, layer.state_size, layer.state_size))
        step = F.softplus(layer.step(rank))
        state = (step.unsqueeze(1) * a).exp() * state + (step * u).unsqueeze(1) * write
        found.append(token + layer.leave((state @ read + layer.skip * u) * F.silu(gate)))
    result = torch.stack(found)
    return result.flip(0) if layer.backwards else result


@pytest.mark.parametrize("backwards", [False, True])
def test_the_layer_is_the_published_block_and_padding_has_no_effect(backwards: bool) -> None:
    torch.manual_seed(0)
    layer = SelectiveStateSpaceLayer(8, state_size=3, backwards=backwards, dtype=torch.float64)
    x = torch.randn(3, 9, 8, dtype=torch.float64)
    lengths = [9, 1, 5]
    is_padding = torch.arange(9) >= torch.tensor(lengths).unsqueeze(1)
    found = layer(x.masked_fill(is_padding.unsqueeze(-1), torch.nan), is_padding)
    for b, length in enumerate(lengths):
        torch.testing.assert_close(found[b, :length], layer_by_hand(layer, x[b, :length]))
        assert found[b, length:].eq(0).all()


def test_gradients_are_those_of_the_published_block() -> None:
    torch.manual_seed(3)
    layer = SelectiveStateSpaceLayer(6, inner_size=5, state_size=2, dtype=torch.float64)
    x = torch.randn(1, 7, 6, dtype=torch.float64)
    weight = torch.randn(1, 7, 6, dtype=torch.float64)
    parameters = dict(layer.named_parameters())
    found = torch.autograd.grad((layer(x) * weight).sum(), list(parameters.values()))
    expected = torch.autograd.grad((layer_by_hand(layer, x[0]) * weight[0]).sum(), list(parameters.values()))
    for name, mine, theirs in zip(parameters, found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, msg=lambda text, name=name: f"{name}: {text}")


def test_a_layer_from_the_left_does_not_see_what_comes_later() -> None:
    torch.manual_seed(1)
    layer = SelectiveStateSpaceLayer(8)
    x = torch.randn(1, 6, 8)
    changed = x.clone()
    changed[0, 4] += torch.randn(8)
    same = torch.isclose(layer(x), layer(changed)).all(-1)[0]
    assert same.tolist() == [True, True, True, True, False, False]


@pytest.mark.parametrize("option", ["inner_size", "state_size"])
def test_sizes_must_be_positive(option: str) -> None:
    with pytest.raises(ValueError, match=f"{option} must be at least 1, got 0"):
        SelectiveStateSpaceLayer(8, **{option: 0})
