"""A recursion replayed as a whole gives the gradients of the recursion; the CPU plays the GPU."""

import copy
import pickle

import pytest
import torch
from on_gpu import needs_gpu
from own_cells import D, make_input
from played_graphs import Recording
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from beamtree import create_encoder, cuda_graphs
from beamtree.graphs import whole_graphs
from beamtree.graphs.whole_graphs import WholeGraphs
from beamtree.pytorch import capturing
from beamtree.zoo import transformers


def make(name: str = "bt-grc-os", **options: object) -> nn.Module:
    torch.manual_seed(0)
    encoder = create_encoder(name, D, dtype=torch.float64, **options)
    return encoder.train()


def gradients(encoder: nn.Module, x: Tensor, is_padding: Tensor) -> list[Tensor]:
    root = encoder(x, is_padding)
    torch.manual_seed(2)
    return [root, *torch.autograd.grad(root, [x, *encoder.parameters()], torch.randn_like(root))]


def check_replays(encoder: nn.Module) -> None:
    """Values and gradients are those without graphs, at three lengths that share theirs."""
    for lengths in ([6, 3], [7, 2], [5, 5]):
        given = make_input(lengths)
        replayed = gradients(encoder, *given)
        with cuda_graphs(False):
            plain = gradients(encoder, *given)
        torch.testing.assert_close(replayed, plain, rtol=0, atol=1e-10)


QUIET = {"stochastic": False}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("bt-grc-os", {"beam_size": 3}),
        ("bt-grc", {"beam_size": 3, "mode": "faithful", **QUIET}),
        ("transformer", {"layers": 2}),
        ("rotary-transformer", {"layers": 2}),
        ("s4d", {"layers": 2}),
        ("mamba", {"layers": 2}),
    ],
)
def test_replays_give_values_and_gradients_of_the_recursion(
    captures: list[Recording], name: str, options: dict[str, object]
) -> None:
    encoder = make(name, **options)
    check_replays(encoder)
    assert len(captures) == 2  # forward and backward, all three lengths in one


def test_a_universal_transformer_is_not_captured_but_ends_where_all_have_halted(
    captures: list[Recording], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, steps, attend = make("universal-transformer"), [], transformers._attend
    with torch.no_grad():
        encoder.halting.bias.fill_(3.0)
    monkeypatch.setattr(transformers, "_attend", lambda *given: steps.append(1) or attend(*given))
    gradients(encoder, *make_input([6, 3]))
    assert not captures
    assert len(steps) == 2


def test_what_a_replay_returns_is_the_callers_to_keep(captures: list[Recording]) -> None:
    encoder = make()
    first = gradients(encoder, *make_input([6, 3]))
    kept = [part.clone() for part in first]
    gradients(encoder, *make_input([5, 4]))
    assert all(torch.equal(a, b) for a, b in zip(first, kept, strict=True))


def test_a_second_forward_before_the_first_backward_runs_without_graphs(captures: list[Recording]) -> None:
    encoder = make()
    x, is_padding = make_input([6, 3])
    expected = gradients(encoder, x, is_padding)[1]
    one, other = encoder(x, is_padding), encoder(x, is_padding)
    torch.manual_seed(2)
    cotangent = torch.randn_like(one)
    (found,) = torch.autograd.grad((one * cotangent).sum() + (other * cotangent).sum(), x)
    torch.testing.assert_close(found, 2 * expected)
    assert len(captures) == 2


def test_a_forward_that_nobody_differentiates_does_not_block_the_next(captures: list[Recording]) -> None:
    encoder = make()
    encoder(make_input([6, 3])[0])
    replays = []
    (captured,) = encoder.graphs._entries.values()
    captured.go_forward = lambda: replays.append(1)
    encoder(make_input([6, 3])[0])
    assert replays


def test_a_capture_that_fails_warns_and_leaves_the_recursion_as_it_was(
    captures: list[Recording], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("capture invalidated")

    encoder, given = make(), make_input([6, 3])
    expected = gradients(encoder, *given)
    monkeypatch.setattr(capturing, "warm_up_and_capture", fail)
    other = copy.deepcopy(encoder)
    with pytest.warns(UserWarning, match="no CUDA graphs, slower but just as exact: capture invalidated"):
        found = gradients(other, *given)
    gradients(other, *given)  # warns no more
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def test_a_second_backward_and_a_second_derivative_are_refused(captures: list[Recording]) -> None:
    encoder = make()
    x, is_padding = make_input([6, 3])
    root = encoder(x, is_padding)
    root.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="serves one backward pass"):
        root.sum().backward()
    with pytest.raises(RuntimeError, match="second derivative"):
        torch.autograd.grad(encoder(x, is_padding).sum(), x, create_graph=True)


def test_weights_changed_before_the_backward_raise_pytorchs_error(captures: list[Recording]) -> None:
    encoder = make()
    root = encoder(*make_input([6, 3]))
    with torch.no_grad():
        encoder.scorer.weight += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        root.sum().backward()


def test_a_capture_reads_leaves_of_its_own_in_the_weights_memory(captures: list[Recording]) -> None:
    """Those of an earlier loss that somebody still holds belong to another stream."""
    encoder = make()
    weight, search, seen = encoder.cell.w1.weight, encoder.search, []

    def watched(*given: Tensor) -> object:
        seen.append(encoder.cell.w1.weight)
        return search(*given)

    encoder.search = watched
    encoder(*make_input([6, 3]))
    assert len(seen) == 3  # twice to warm up, once captured
    assert all(one is not weight and one.data_ptr() == weight.data_ptr() for one in seen)
    assert encoder.cell.w1.weight is weight


def test_an_option_changed_between_two_calls_is_followed(captures: list[Recording]) -> None:
    encoder = make(dropout=0.5)
    x, is_padding = make_input([6, 3])
    assert not torch.equal(encoder(x, is_padding), encoder(x, is_padding))
    encoder.cell.dropout = 0.0
    assert torch.equal(encoder(x, is_padding), encoder(x, is_padding))


def test_frozen_weights_get_no_gradient(captures: list[Recording]) -> None:
    encoder = make()
    encoder.scorer.requires_grad_(False)
    encoder(*make_input([6, 3])).sum().backward()
    assert encoder.scorer.weight.grad is None
    assert encoder.cell.w1.weight.grad is not None


def test_graphs_are_few_and_copies_start_without(
    captures: list[Recording], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_graphs, "MULTIPLE", 1)
    encoder = make()
    encoder.graphs = WholeGraphs(capacity=2)
    for n in (3, 4, 5, 6):
        encoder(make_input([n])[0])
    assert len(encoder.graphs) == 2
    made = len(captures)
    encoder(make_input([7])[0]).sum().backward()  # a fifth: shapes may go on and on
    assert len(captures) == made
    encoder(make_input([6])[0])
    assert len(encoder.graphs) == 2
    assert len(copy.deepcopy(encoder).graphs) == len(pickle.loads(pickle.dumps(encoder)).graphs) == 0


def test_no_graph_where_none_is_possible(captures: list[Recording], monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = make()
    x, is_padding = make_input([6, 3])
    with torch.no_grad():
        encoder(x, is_padding)
    encoder(x, is_padding, need_trees=True)
    encoder(make_input([1])[0])
    encoder.graphs.capacity = 0
    encoder(x, is_padding)
    encoder.graphs.capacity = 1
    monkeypatch.setattr(whole_graphs, "LONGEST", 5)
    encoder(x, is_padding)
    assert not captures


@needs_gpu
@pytest.mark.gpu
def test_on_a_gpu_replays_agree_with_the_recursion() -> None:
    torch.manual_seed(0)
    encoder, d = create_encoder("bt-grc-os", 32, device="cuda", **QUIET).train(), 32
    for n in (9, 17, 12):
        x = torch.randn(4, n, d, device="cuda", requires_grad=True)
        replayed = torch.autograd.grad(encoder(x).square().sum(), [x, *encoder.parameters()])
        root, _ = encoder(x, need_trees=True)
        plain = torch.autograd.grad(root.square().sum(), [x, *encoder.parameters()])
        torch.testing.assert_close(replayed, plain, rtol=1e-3, atol=1e-4)
    assert len(encoder.graphs) == 2


def test_weights_cached_by_a_parametrization_are_not_captured(captures: list[Recording]) -> None:
    # They are freed at the end of the block, so a graph would read freed memory.
    encoder, given = make("transformer", layers=2), make_input([6, 3])
    parametrizations.weight_norm(encoder.layers[0].linear1)
    for _ in range(2):
        with parametrize.cached():
            found = gradients(encoder, *given)
        with cuda_graphs(False):
            torch.testing.assert_close(found, gradients(encoder, *given), rtol=0, atol=1e-10)
    assert not captures
