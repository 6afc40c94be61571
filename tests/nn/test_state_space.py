"""State-space layers against their recurrences, written as loops."""

import copy

import pytest
import torch
import torch.nn.functional as F
from on_gpu import needs_gpu
from small_encoders import stirred
from torch import Tensor

from beamtree.nn.state_space import (
    STEPS,
    DiagonalStateSpace,
    ReadStates,
    SelectiveStateSpaceLayer,
    StateSpaceLayer,
)

D = 5


def recur(space: DiagonalStateSpace, direction: int, x: Tensor) -> Tensor:
    """y before the skip, one token after the other: x (B, n, d)."""
    transition, added = space.discretize()
    state = torch.zeros(x.shape[0], *added.shape[1:], dtype=added.dtype)  # (B, d, N)
    outputs = []
    for token in x.unbind(1):
        state = transition[direction].exp() * state + token.unsqueeze(-1)
        outputs.append(2 * (added[direction] * state).sum(-1).real)
    return torch.stack(outputs, 1)


def make_space(bidirectional: bool) -> DiagonalStateSpace:
    torch.manual_seed(0)
    return DiagonalStateSpace(D, state_size=3, bidirectional=bidirectional, dtype=torch.float64)


def test_a_token_is_held_for_a_step_and_states_decay_by_half_of_it():
    space = make_space(True)
    transition, added = space.discretize()
    step = space.log_step.exp().unsqueeze(-1)
    assert step.min() >= STEPS[0]
    assert step.max() <= STEPS[1]
    rate = transition / step
    torch.testing.assert_close(rate.real, torch.full_like(rate.real, -0.5))
    torch.testing.assert_close(rate.imag[0, 0], torch.pi * torch.arange(3, dtype=torch.float64))
    times = torch.linspace(0, 1, 2001, dtype=torch.float64) * step.unsqueeze(-1)
    held = torch.trapezoid((rate.unsqueeze(-1) * times).exp(), times)
    torch.testing.assert_close(added, torch.view_as_complex(space.readout) * held, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("n", [1, 2, 3, 8, 33])
def test_the_convolution_is_the_recurrence(n, bidirectional):
    space = make_space(bidirectional)
    x = torch.randn(2, n, D, dtype=torch.float64, requires_grad=True)
    expected = recur(space, 0, x) + space.skip * x
    if bidirectional:
        later = recur(space, 1, x.flip(1)).flip(1)
        expected = expected + F.pad(later[:, 1:], (0, 0, 0, 1))  # what lies strictly to the right
    found = space(x)
    torch.testing.assert_close(found, expected)
    cotangent = torch.randn_like(found)
    inputs = [x, *space.parameters()]
    torch.testing.assert_close(
        torch.autograd.grad((found * cotangent).sum(), inputs),
        torch.autograd.grad((expected * cotangent).sum(), inputs),
    )


def test_no_sequence_is_a_batch_too():
    layer = StateSpaceLayer(D)
    found = layer(torch.randn(0, 4, D))
    assert found.shape == (0, 4, D)
    found.sum().backward()
    assert all(parameter.grad.eq(0).all() for parameter in layer.parameters())


def test_one_direction_does_not_see_the_future_and_two_do():
    x = torch.randn(1, 6, D, dtype=torch.float64)
    changed = x.clone()
    changed[:, 4] += 1
    for bidirectional in (False, True):
        space = make_space(bidirectional)
        same = torch.isclose(space(x), space(changed), rtol=0, atol=1e-12)[0, :4].all()
        assert bool(same) is not bidirectional


@pytest.mark.parametrize("bidirectional", [False, True])
def test_nothing_leaks_from_padding(bidirectional):
    torch.manual_seed(0)
    layer = stirred(StateSpaceLayer(D, bidirectional=bidirectional, dtype=torch.float64))
    lengths = torch.tensor([7, 1, 4])
    is_padding = torch.arange(7) >= lengths[:, None]
    x = torch.randn(3, 7, D, dtype=torch.float64).masked_fill(is_padding.unsqueeze(-1), torch.nan)
    x.requires_grad_()
    found = layer(x, is_padding)
    assert found[is_padding].eq(0).all()
    for b, length in enumerate(lengths):
        torch.testing.assert_close(found[b, :length], layer(x[b : b + 1, :length])[0])
    found.square().sum().backward()
    assert x.grad[is_padding].eq(0).all()
    assert x.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())


def test_autocast_keeps_the_parameters_type():
    torch.manual_seed(0)
    layer = StateSpaceLayer(8)
    x = torch.randn(2, 9, 8)
    with torch.autocast("cpu", torch.bfloat16):
        found = layer(x)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, layer(x), rtol=0.05, atol=0.05)


def test_a_bad_state_size_is_refused():
    with pytest.raises(ValueError, match="state_size must be at least 1, got 0"):
        DiagonalStateSpace(4, state_size=0)
    assert DiagonalStateSpace(4, state_size=1)(torch.randn(2, 3, 4)).shape == (2, 3, 4)
    assert "state_size=16" in repr(StateSpaceLayer(4))


@pytest.mark.gpu
@needs_gpu
def test_devices_agree():
    torch.manual_seed(0)
    layer = StateSpaceLayer(D, dtype=torch.float64)
    x = torch.randn(2, 17, D, dtype=torch.float64)
    found = copy.deepcopy(layer).cuda()(x.cuda())
    torch.testing.assert_close(found.cpu(), layer(x))


def read_by_hand(
    u: Tensor, step: Tensor, write: Tensor, read: Tensor, log_decay: Tensor, skip: Tensor
) -> Tensor:
    found, state = [], torch.zeros(u.shape[1], *log_decay.shape, dtype=u.dtype)
    for t in range(len(u)):
        decay = (step[t].unsqueeze(-1) * -log_decay.exp()).exp()
        state = decay * state + (step[t] * u[t]).unsqueeze(-1) * write[t].unsqueeze(1)
        found.append((state * read[t].unsqueeze(1)).sum(-1) + skip * u[t])
    return torch.stack(found)


@pytest.mark.parametrize("n", [1, 2, 3, 50, 200])
def test_the_states_read_and_their_gradients_are_those_of_the_recurrence(n: int) -> None:
    torch.manual_seed(n)
    B, inner, states = 2, 3, 4
    shapes = [(n, B, inner), (n, B, inner), (n, B, states), (n, B, states), (inner, states), (inner,)]
    parts = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    parts[1] = parts[1].exp()  # steps are positive
    for part in parts:
        part.requires_grad_()
    weight = torch.randn(n, B, inner, dtype=torch.float64)
    expected, found = read_by_hand(*parts), ReadStates.apply(*parts)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        torch.autograd.grad(found, parts, weight),
        torch.autograd.grad(expected, parts, weight),
        rtol=1e-10,
        atol=1e-10,
    )


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
def test_the_selective_layer_is_the_published_block_and_padding_has_no_effect(backwards: bool) -> None:
    torch.manual_seed(0)
    layer = SelectiveStateSpaceLayer(8, state_size=3, backwards=backwards, dtype=torch.float64)
    x = torch.randn(3, 9, 8, dtype=torch.float64)
    lengths = [9, 1, 5]
    is_padding = torch.arange(9) >= torch.tensor(lengths).unsqueeze(1)
    found = layer(x.masked_fill(is_padding.unsqueeze(-1), torch.nan), is_padding)
    for b, length in enumerate(lengths):
        torch.testing.assert_close(found[b, :length], layer_by_hand(layer, x[b, :length]))
        assert found[b, length:].eq(0).all()


def test_gradients_of_the_selective_layer_are_those_of_the_published_block() -> None:
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
def test_sizes_of_the_selective_layer_must_be_positive(option: str) -> None:
    with pytest.raises(ValueError, match=f"{option} must be at least 1, got 0"):
        SelectiveStateSpaceLayer(8, **{option: 0})
