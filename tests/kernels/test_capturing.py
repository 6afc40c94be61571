"""Garbage does not disturb a capture, and a failed one leaves nothing behind; a stand-in plays the GPU."""

import gc
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from on_gpu import needs_gpu
from stopped_threads import Stopped, answers, stopped_while_waiting, untraced

from beamtree.kernels.runtime import capturing


class Graph:
    """Refuses to be freed during a capture, as a CUDA graph does, and can be unable to end."""

    underway = 0
    freed_underway: ClassVar[list[str]] = []
    endings: ClassVar[list[bool]] = []  # whether the next captures end well; then all do

    def __init__(self) -> None:
        self.itself = self  # a reference cycle: only the collector frees it

    def __del__(self) -> None:
        if Graph.underway:
            Graph.freed_underway.append("in a capture")

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        Graph.underway += 1

    def capture_end(self) -> None:
        if not Graph.underway:
            raise RuntimeError("no capture is underway")
        Graph.underway -= 1
        if Graph.endings and not Graph.endings.pop(0):
            raise RuntimeError("operation failed due to a previous error during capture")


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    ended: list[Any] = []
    Graph.underway, Graph.freed_underway, Graph.endings = 0, [], []
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 7))
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: SimpleNamespace(device=device))
    monkeypatch.setattr(
        torch._C, "_cuda_endAllocateToPool", lambda index, pool: ended.append(pool), raising=False
    )
    threshold = gc.get_threshold()
    gc.set_threshold(1)
    yield SimpleNamespace(device=torch.device("cpu"), ended=ended)
    gc.set_threshold(*threshold)
    assert gc.isenabled()
    assert not Graph.underway


def make_objects() -> list[list[int]]:
    """Enough for the collector to run many times, were it allowed to."""
    return [[i] for i in range(1000)]


def test_no_garbage_is_collected_in_a_capture(stream: Any) -> None:
    for _ in range(3):
        Graph()
        _, made = capturing.capture(make_objects, stream)
    assert len(made) == 1000
    assert not Graph.freed_underway


def test_without_it_garbage_would_be_collected_there(stream: Any) -> None:
    Graph()
    Graph.underway = 1
    make_objects()
    Graph.underway = 0
    assert Graph.freed_underway


def test_a_collector_that_was_off_stays_off(stream: Any) -> None:
    gc.disable()
    try:
        with capturing.undisturbed(), capturing.undisturbed():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()
    with capturing.undisturbed():
        assert not gc.isenabled()


def fail() -> None:
    raise KeyError("a step of the user's")


@pytest.mark.parametrize("ends_well", [True, False])
def test_a_failed_capture_is_left_and_the_next_succeeds(stream: Any, ends_well: bool) -> None:
    Graph.endings = [ends_well]
    with pytest.raises(KeyError, match="the user's"):
        capturing.capture(fail, stream, (0, 3))
    assert stream.ended == ([] if ends_well else [(0, 3)])
    assert capturing.capture(lambda: 5, stream)[1] == 5


def test_a_capture_that_is_stopped_as_it_begins_is_left_too(
    stream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Graph.capture_begin

    def begin_and_be_stopped(*arguments: Any, **options: Any) -> None:
        begin(*arguments, **options)
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(Graph, "capture_begin", begin_and_be_stopped)
        with pytest.raises(Stopped):
            capturing.capture(lambda: 5, stream)
    assert not Graph.underway
    assert capturing.capture(lambda: 5, stream)[1] == 5


def test_who_is_stopped_as_the_collector_goes_off_leaves_it_on(
    stream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    disable = gc.disable

    def disable_and_be_stopped() -> None:
        disable()
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(gc, "disable", disable_and_be_stopped)
        with pytest.raises(Stopped):
            capturing.capture(lambda: 5, stream)
    assert gc.isenabled()


@untraced()
def test_who_is_stopped_while_another_captures_leaves_the_next_its_turn(stream: Any) -> None:
    with capturing.one_at_a_time:
        waiting = stopped_while_waiting(lambda: capturing.capture(lambda: 5, stream))
    waiting.join()
    assert answers(lambda: capturing.capture(lambda: 5, stream)[1]) == 5


def test_a_capture_that_cannot_end_says_so(stream: Any) -> None:
    Graph.endings = [False]
    with pytest.raises(RuntimeError, match="previous error during capture"):
        capturing.capture(lambda: 5, stream)


@pytest.mark.gpu
@needs_gpu
def test_a_gpu_captures_though_graphs_become_garbage_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    from beamtree import BeamTreeEncoder
    from beamtree.kernels.search import fused_search

    stream, number, steps = torch.cuda.Stream(), torch.zeros((), device="cuda"), fused_search._steps
    cycles: list[list[Any]] = []
    for _ in range(20):
        cycles.append([capturing.capture(lambda: number.add_(1), stream)[0]])
        cycles[-1].append(cycles[-1])

    def among_garbage(*arguments: Any) -> None:
        cycles.clear()
        make_objects()
        steps(*arguments)

    monkeypatch.setattr(fused_search, "_steps", among_garbage)
    encoder, threshold = BeamTreeEncoder(32, device="cuda"), gc.get_threshold()
    gc.set_threshold(1)
    try:
        encoder(torch.randn(10, 5, 32, device="cuda")).sum().backward()
    finally:
        gc.set_threshold(*threshold)
    assert not cycles
    assert all(p.grad is not None and p.grad.isfinite().all() for p in encoder.parameters())


@pytest.mark.gpu
@needs_gpu
def test_a_gpu_goes_on_after_a_capture_that_was_invalidated() -> None:
    from beamtree import BeamTreeEncoder
    from beamtree.kernels.search import fused_search

    encoder = BeamTreeEncoder(32, device="cuda").eval()
    x, held = torch.randn(9, 5, 32, device="cuda"), len(fused_search._graphs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused_search, "_steps", lambda *_: torch.cuda.synchronize())
        with pytest.raises(RuntimeError):
            encoder(x)
    assert len(fused_search._graphs) == held
    assert torch.randn(3, device="cuda").isfinite().all()  # the random generator is free again
    on_cpu = BeamTreeEncoder(32).eval()
    on_cpu.load_state_dict(encoder.state_dict())
    torch.testing.assert_close(encoder(x).cpu(), on_cpu(x.cpu()), atol=1e-3, rtol=1e-3)


def test_a_search_keeps_no_graphs_that_failed_and_few_that_did_not(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    from beamtree.kernels.search import fused_search

    made: list[Any] = []

    def make(plan: str, device: torch.device) -> str:
        made.append(plan)
        if made == ["a"]:
            raise RuntimeError("the first capture fails")
        return f"graphs of {plan}"

    monkeypatch.setattr(fused_search, "_graphs", OrderedDict())
    monkeypatch.setattr(fused_search, "_Graphs", make)
    monkeypatch.setattr(fused_search, "GRAPHS_AT_MOST", 2)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=0))
    find: Any = fused_search._graphs_for
    device = torch.device("cpu")
    with pytest.raises(RuntimeError, match="the first"):
        find("a", device)
    assert not fused_search._graphs
    assert [find(plan, device) for plan in "abacb"] == [f"graphs of {plan}" for plan in "abacb"]
    assert made == ["a", "a", "b", "c", "b"]  # c drove b out, not a, which was used since
    assert gc.isenabled()


def test_a_search_warms_up_before_its_captures_and_replays_as_many_steps_as_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("triton")
    from beamtree.kernels.search import fused_search

    done: list[tuple[str, int]] = []

    class Plan:
        def begin(self, board: torch.Tensor) -> None:
            done.append(("begin", 0))

        def finish(self, board: torch.Tensor) -> None:
            done.append(("finish", 0))

        def step(self, board: torch.Tensor, step: int) -> None:
            done.append(("step", step))

        def advance(self, board: torch.Tensor, steps: int) -> None:
            done.append(("advance", steps))

    def capture(call: Any, stream: Any) -> tuple[Any, None]:
        start = len(done)
        call()
        launches = done[start:]
        del done[start:]
        return SimpleNamespace(replay=lambda: done.extend(launches)), None

    stream = SimpleNamespace(wait_stream=lambda other: None)
    monkeypatch.setattr(fused_search, "capture", capture)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    plan: Any = Plan()
    graphs = fused_search._Graphs(plan, torch.device("cpu"))
    assert {kind for kind, _ in done} == {"begin", "finish", "step", "advance"}
    done.clear()
    graphs.replay(43)
    assert [launch for launch in done if launch[0] != "step"] == [
        ("begin", 0), ("advance", 32), ("advance", 8), ("advance", 2), ("advance", 2), ("finish", 0)
    ]  # fmt: skip
    assert [step for kind, step in done if kind == "step"] == [*range(32), *range(8), 0, 1, 0, 1]


def test_threads_capture_in_turn(stream: Any) -> None:
    most: list[int] = []

    def watch() -> None:
        for _ in range(200):
            most.append(Graph.underway)

    threads = [threading.Thread(target=capturing.capture, args=(watch, stream)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(most) == {1}
