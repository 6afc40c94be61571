"""A replayed step behaves as the function it was captured from; a stand-in for the device checks it here."""

import random
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch
from on_gpu import needs_gpu
from played_graphs import Recording
from stopped_threads import answers, stop_wherever, stopped_while_waiting, untraced
from torch import Tensor

from beamtree import cuda_graphs
from beamtree.graphs.step_graphs import StepGraphs
from beamtree.zoo.crvnn import CRvNN
from beamtree.zoo.ordered_memory import OrderedMemory


def scale(constants: list[Tensor], x: Tensor, *, by: float) -> tuple[Tensor]:
    weight, total = constants
    total += x
    return (weight * x * by,)


def test_outputs_are_fresh_and_constants_are_those_of_the_run(captures: list[Recording]) -> None:
    graphs = StepGraphs()
    x = torch.tensor([1.0, 2.0])
    for weight in (2.0, 5.0):
        mine = [torch.tensor([weight]), torch.zeros(2)]
        with graphs.run(scale, mine, replay=True, by=10.0) as step:
            (first,) = step(x)
            (second,) = step(2 * x)
            assert step.constants[1].tolist() == [3.0, 6.0]
        assert first.tolist() == [10 * weight, 20 * weight]
        assert second.tolist() == [20 * weight, 40 * weight]
        assert mine[1].tolist() == [0.0, 0.0]
    assert len(captures) == 1


def test_without_replay_the_function_itself_runs(captures: list[Recording]) -> None:
    constants = [torch.tensor([3.0]), torch.zeros(1)]
    with StepGraphs().run(scale, constants, replay=False, by=1.0) as step:
        assert step(torch.ones(1))[0].item() == 3.0
    assert constants[1].item() == 1.0
    assert not captures


def test_each_shape_type_and_option_has_its_graph_and_the_longest_unused_goes_first(
    captures: list[Recording],
) -> None:
    graphs = StepGraphs(capacity=3)

    def use(x: Tensor, by: float = 1.0) -> None:
        with graphs.run(scale, [x.new_ones(1), torch.zeros_like(x)], replay=True, by=by) as step:
            assert torch.equal(step(x)[0], x * by)

    small, large, double = torch.ones(2), torch.ones(3), torch.ones(2).double()
    for x in (small, large, double, small):
        use(x)
    assert (len(captures), len(graphs)) == (3, 3)
    use(small, by=2.0)  # drops `large`
    use(small)
    use(double)
    assert (len(captures), len(graphs)) == (4, 3)
    use(large)
    assert (len(captures), len(graphs)) == (5, 3)


def test_threads_take_turns(captures: list[Recording]) -> None:
    graphs, results = StepGraphs(), {}
    start = threading.Barrier(4)

    def work(weight: int) -> None:
        start.wait()
        with graphs.run(scale, [torch.tensor([float(weight)]), torch.zeros(1)], replay=True, by=1.0) as step:
            x = torch.ones(1)
            for _ in range(50):
                (x,) = step(x.clamp(max=1.0))
            results[weight] = x.item()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(1, 5)))
    assert results == {1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0}


def test_what_is_captured_is_first_tried_in_order_with_what_others_replay(
    captures: list[Recording], monkeypatch: pytest.MonkeyPatch
) -> None:
    streams: list[str] = []

    @contextmanager
    def on_stream(_: object) -> Iterator[None]:
        streams.append("that of the captures")
        yield
        streams.pop()

    def note(constants: list[Tensor], x: Tensor) -> tuple[Tensor]:
        ran.append(streams[-1] if streams else "the caller's")
        return (x + 1,)

    ran: list[str] = []
    monkeypatch.setattr(torch.cuda, "stream", on_stream)
    with StepGraphs().run(note, [], replay=True) as step:
        step(torch.ones(1))
    assert ran == ["the caller's", "the caller's", "that of the captures"]


def test_a_failing_step_leaves_the_graph_usable(captures: list[Recording]) -> None:
    graphs = StepGraphs()
    constants = [torch.ones(1), torch.zeros(1)]
    run = graphs.run(scale, constants, replay=True, by=1.0)
    with pytest.raises(RuntimeError, match="shape"), run as step:
        step(torch.ones(1)), step(torch.ones(3))
    with graphs.run(scale, constants, replay=True, by=1.0) as step:
        assert step(torch.ones(1))[0].item() == 1.0


@untraced()
def test_a_thread_stopped_while_it_waits_for_its_turn_leaves_the_graph_usable(
    captures: list[Recording],
) -> None:
    graphs = StepGraphs()

    def use() -> float:
        with graphs.run(scale, [torch.ones(1), torch.zeros(1)], replay=True, by=1.0) as step:
            return step(torch.ones(1))[0].item()

    with graphs.run(scale, [torch.ones(1), torch.zeros(1)], replay=True, by=1.0) as step:
        step(torch.ones(1))
        waiting = stopped_while_waiting(use)
    waiting.join()
    assert answers(use) == 1.0


@untraced()
def test_wherever_a_thread_is_stopped_the_graph_stays_usable(captures: list[Recording]) -> None:
    graphs = StepGraphs()

    def use() -> float:
        with graphs.run(scale, [torch.ones(1), torch.zeros(1)], replay=True, by=1.0) as step:
            return step(torch.ones(1))[0].item()

    def check() -> None:
        assert answers(use) == 1.0

    use()
    stop_wherever(use, check)


@pytest.mark.parametrize("rates", [{}, {"dropout": 0.3}])
@pytest.mark.parametrize("model", [OrderedMemory, CRvNN])
def test_a_model_replayed_gives_the_gradients_of_the_model(
    model: type[torch.nn.Module],
    rates: dict[str, float],
    captures: list[Recording],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    encoder = model(6, dtype=torch.float64, **rates)
    monkeypatch.setattr("beamtree.zoo.crvnn._row_width", lambda B, n, on_gpu: (16, True))

    def gradients(seed: int) -> list[Tensor]:
        torch.manual_seed(seed)
        x = torch.randn(3, 5 + seed, 6, dtype=torch.float64, requires_grad=True)
        output = encoder(x, torch.arange(5 + seed) >= torch.tensor([[5 + seed], [2], [4]]))
        return [output, *torch.autograd.grad(output.square().sum(), [x, *encoder.parameters()])]

    replayed = [gradients(seed) for seed in range(3)]
    assert len(encoder._graphs) == len(captures) == 2
    # These have no deterministic form on a GPU, which recipes may ask for.
    assert not any(
        word in str(op[0]) for graph in captures for op in graph.tape for word in ("cumsum", "index_add")
    )
    with cuda_graphs(False):
        for seed in range(3):
            torch.testing.assert_close(replayed[seed], gradients(seed), atol=1e-12, rtol=0)


def test_a_graph_captured_in_inference_serves_training(captures: list[Recording]) -> None:
    torch.manual_seed(0)
    encoder, x = OrderedMemory(6), torch.randn(2, 5, 6)
    with torch.inference_mode():
        expected = encoder(x)
    output = encoder(x)
    output.sum().backward()
    torch.testing.assert_close(output, expected)
    with torch.inference_mode():
        torch.testing.assert_close(encoder(x), expected)
    assert len(captures) == 2


def test_a_step_that_waits_for_a_value_is_launched_with_one_warning(captures: list[Recording]) -> None:
    def peek(constants: list[Tensor], x: Tensor) -> tuple[Tensor]:
        constants[0] += x
        return (x * x.sum().item(),)

    graphs = StepGraphs()
    for told in (True, False):
        total = torch.zeros(1)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with graphs.run(peek, [total], replay=True) as step:
                assert [step(torch.full((1,), x))[0].item() for x in (2.0, 3.0)] == [4.0, 9.0]
        assert total.item() == 5.0
        assert [("must not wait" in str(one.message)) for one in caught] == [True] * told


@pytest.mark.gpu
@needs_gpu
def test_gpu_streams_have_graphs_of_their_own() -> None:
    graphs, x = StepGraphs(), torch.ones(4, device="cuda")
    streams = [torch.cuda.Stream() for _ in range(2)]
    results = []
    for stream, weight in zip(streams, (2.0, 3.0), strict=True):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            constants = [torch.full((1,), weight, device="cuda"), torch.zeros(4, device="cuda")]
            with graphs.run(scale, constants, replay=True, by=1.0) as step:
                results.append(step(x)[0])
    torch.cuda.synchronize()
    assert [result.tolist() for result in results] == [[2.0] * 4, [3.0] * 4]
    assert len(graphs) == 2


@pytest.mark.gpu
@needs_gpu
def test_gpu_threads_capture_and_replay_at_once() -> None:
    torch.manual_seed(0)
    encoder, shapes = CRvNN(32, device="cuda").eval(), [(B, n) for B in range(1, 7) for n in (3, 20, 40)]
    inputs = {shape: torch.randn(*shape, 32, device="cuda") for shape in shapes}
    with torch.no_grad():
        expected = {shape: encoder(x).clone() for shape, x in inputs.items()}
    wrong: list[tuple[int, int]] = []

    @torch.no_grad()
    def work(seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(200):
            shape = draw.choice(shapes)  # more than there is room for: graphs are made all the time
            if not torch.allclose(encoder(inputs[shape]), expected[shape], atol=1e-4):
                wrong.append(shape)

    threads = [threading.Thread(target=work, args=(seed,), daemon=True) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not wrong
