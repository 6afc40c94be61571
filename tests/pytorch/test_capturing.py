"""Garbage does not disturb a capture, and a failed one leaves nothing behind; a stand-in plays the GPU."""

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from stopped_threads import Stopped, answers, stopped_while_waiting, untraced

import beamtree
from beamtree.pytorch import capturing


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


def test_threads_capture_in_turn(stream: Any) -> None:
    most: list[int] = []

    def watch() -> None:
        for _ in range(200):
            most.append(Graph.underway)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: capturing.capture(watch, stream), range(4)))
    assert set(most) == {1}


def test_the_switch_holds_until_the_next_call_or_the_end_of_a_block() -> None:
    try:
        beamtree.cuda_graphs(False)
        assert not capturing.are_wanted()
        with beamtree.cuda_graphs(True):
            assert capturing.are_wanted()
        assert not capturing.are_wanted()
        with pytest.raises(KeyError), beamtree.cuda_graphs():
            fail()
        assert not capturing.are_wanted()
    finally:
        beamtree.cuda_graphs(True)
    assert capturing.are_wanted()
