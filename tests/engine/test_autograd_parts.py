"""A user's cell and scorer are differentiated as plain autograd would, whatever they do or have attached."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from own_cells import D, DotScorer, MeanCell, gradients, make_encoder, make_input
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook

from beamtree import BeamTreeEncoder


def encoders() -> list[Callable[[], BeamTreeEncoder]]:
    built_in = {"merge_equal_trees": True, "stochastic": False, "dtype": torch.float64}
    return [make_encoder, lambda: BeamTreeEncoder(D, **built_in)]


def weight_gradients(encoder: BeamTreeEncoder) -> list[Tensor]:
    encoder(*make_input([6, 3, 1])).square().sum().backward()
    return [p.grad for p in encoder.parameters()]


@pytest.mark.parametrize("make", encoders(), ids=["own", "equal trees"])
def test_a_hook_of_a_parameter_acts_once_on_the_whole_gradient(make: Callable[[], BeamTreeEncoder]) -> None:
    torch.manual_seed(0)
    plain = make()
    torch.manual_seed(0)
    hooked = make()
    calls = []
    for p in hooked.parameters():
        p.register_hook(lambda grad: calls.append(grad) or -grad)
    for _ in range(2):
        expected, found = weight_gradients(plain), weight_gradients(hooked)
        torch.testing.assert_close(found, [-grad for grad in expected])
    assert len(calls) == 2 * len(found)


def test_a_hook_of_several_parameters_is_called_once() -> None:
    encoder, seen = make_encoder(), []
    expected = weight_gradients(make_encoder())
    register_multi_grad_hook(list(encoder.parameters()), seen.append)
    torch.testing.assert_close(weight_gradients(encoder), expected)
    assert len(seen) == 1
    torch.testing.assert_close(list(seen[0]), expected)


def test_hooks_act_once_where_several_threads_differentiate() -> None:
    encoder, given = make_encoder(), make_input([6, 3])
    weight = encoder.cell.out.weight
    (plain,) = torch.autograd.grad(encoder(*given).square().sum(), weight)
    weight.register_hook(lambda grad: grad * 10)

    def differentiate(_: int) -> Tensor:
        return torch.autograd.grad(encoder(*given).square().sum(), weight)[0]

    with ThreadPoolExecutor(4) as threads:
        for found in threads.map(differentiate, range(40)):
            torch.testing.assert_close(found, plain * 10)


def test_weights_lent_for_one_pass_keep_their_own_gradient() -> None:
    encoder, given = make_encoder(), make_input([6, 3, 1])
    expected = weight_gradients(make_encoder())
    lent = {name: p * 1 for name, p in encoder.named_parameters()}
    for tensor in lent.values():
        tensor.retain_grad()
    torch.func.functional_call(encoder, lent, given).square().sum().backward()
    torch.testing.assert_close([tensor.grad for tensor in lent.values()], expected)
    torch.testing.assert_close([p.grad for p in encoder.parameters()], expected)


def test_weights_derived_once_and_kept_have_a_gradient() -> None:
    class Lazy(MeanCell):
        derived: Tensor | None = None

        def forward(self, left: Tensor, right: Tensor, keep: Tensor | None = None) -> Tensor:
            if self.derived is None:
                self.derived = self.out.weight.exp()
            return super().forward(left @ self.derived[:, :D], right)

    class Eager(MeanCell):
        def forward(self, left: Tensor, right: Tensor, keep: Tensor | None = None) -> Tensor:
            return super().forward(left @ self.out.weight.exp()[:, :D], right)

    encoder, given = make_encoder(Lazy), make_input([6, 3])
    for _ in range(2):
        encoder.cell.derived = None
        encoder.zero_grad()
        torch.testing.assert_close(gradients(encoder, *given), gradients(make_encoder(Eager), *given))


def test_a_buffer_changed_before_the_backward_pass_is_an_error_and_none_is_copied() -> None:
    class Shifted(MeanCell):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.register_buffer(
                "shift", torch.zeros((), dtype=torch.float64).expand(2**40)
            )  # 8 TiB if copied

        def forward(self, left: Tensor, right: Tensor, keep: Tensor | None = None) -> Tensor:
            return super().forward(left + self.shift[0], right)

    encoder = make_encoder(Shifted)
    root = encoder(*make_input([6, 3])).sum()
    encoder.cell.shift[0].add_(1)
    with pytest.raises(
        RuntimeError, match="buffer shift of Shifted has been modified by an inplace operation"
    ):
        root.backward()


def test_a_cell_may_count_its_calls_and_keep_what_it_saw() -> None:
    class Counting(MeanCell):
        calls = 0

        def forward(self, left: Tensor, right: Tensor, keep: Tensor | None = None) -> Tensor:
            self.calls += 1
            self.seen = left
            return super().forward(left, right)

    encoder, given = make_encoder(Counting), make_input([6, 3])
    found = gradients(encoder, *given)
    torch.testing.assert_close(found, gradients(make_encoder(), *given))
    before = encoder.cell.calls
    assert before >= 5
    assert encoder.cell.seen.shape[1] == D
    encoder(*given).sum().backward()
    assert encoder.cell.calls >= before + 5


class InPlaceCell(MeanCell):
    def forward(self, left: Tensor, right: Tensor, keep: Tensor | None = None) -> Tensor:
        left *= self.out.bias
        return super().forward(F.relu(left, inplace=True), right.mul_(0.5))


class CopyingCell(MeanCell):
    def forward(self, left: Tensor, right: Tensor, keep: Tensor | None = None) -> Tensor:
        return super().forward(F.relu(left * self.out.bias), right * 0.5)


class InPlaceScorer(DotScorer):
    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return super().forward(left.mul_(self.scale), right.add_(1))


class CopyingScorer(DotScorer):
    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return super().forward(left * self.scale, right + 1)


def test_a_cell_and_scorer_that_work_in_place_are_differentiated_as_those_that_copy() -> None:
    x, is_padding = make_input([7, 4, 1])
    before = x.detach().clone()
    found = gradients(make_encoder(InPlaceCell, InPlaceScorer), x, is_padding)
    torch.testing.assert_close(found, gradients(make_encoder(CopyingCell, CopyingScorer), x, is_padding))
    assert torch.equal(x, before)


def test_weights_computed_once_a_step_and_read_by_cell_and_scorer_have_their_gradient() -> None:
    class Normal(nn.Module):
        def __init__(self, once: bool) -> None:
            super().__init__()
            self.once = once
            self.raw = nn.Parameter(torch.linspace(-1, 1, 2 * D * D, dtype=torch.float64).view(D, 2 * D))
            self.fixed = F.normalize(self.raw, dim=1)

        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            weight = self.fixed if self.once else F.normalize(self.raw, dim=1)
            return torch.tanh(F.linear(torch.cat((left, right), -1), weight))

    class ByParent(nn.Module):
        def __init__(self, cell: nn.Module) -> None:
            super().__init__()
            self.cell = cell

        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return self.cell(left, right).sum(-1)

    found = []
    for once in (True, False):
        torch.manual_seed(0)
        cell = Normal(once)
        encoder = BeamTreeEncoder(D, cell=cell, scorer=ByParent(cell), stochastic=False, dtype=torch.float64)
        found.append(gradients(encoder, *make_input([6, 3])))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("shape", [(2, 1, D), (0, 5, D)], ids=["one token", "empty batch"])
def test_parts_are_never_called_without_rows(shape: tuple[int, ...]) -> None:
    class Viewing(DotScorer):
        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return super().forward(left.view(len(left), -1), right)  # an error for no rows

    encoder = make_encoder(scorer=Viewing)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    encoder(x).sum().backward()
    assert x.grad.shape == shape
    for p in (*encoder.cell.parameters(), *encoder.scorer.parameters()):
        assert p.grad.eq(0).all()
