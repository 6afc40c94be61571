"""One cache for all CUDA graphs: what it keeps, what it drops, and that no thread leaves it locked."""

import copy
import pickle
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from stopped_threads import answers, stop_wherever, untraced

from beamtree.pytorch import capturing
from beamtree.pytorch.capturing import GraphCache


def entry(nbytes: int = 1) -> Any:
    return SimpleNamespace(nbytes=nbytes)


def test_the_longest_unused_goes_first_by_number_and_by_bytes() -> None:
    cache: GraphCache[Any] = GraphCache(3, bytes_at_most=100)
    made: list[str] = []

    def use(key: str, nbytes: int = 1) -> None:
        def capture() -> Any:
            made.append(key)
            return entry(nbytes)

        assert cache.find(key, capture) is not None

    for key in "abcadb":  # d drives b out, b then c
        use(key)
    assert made == [*"abcd", "b"]
    use("large", 99)
    assert (len(cache), cache.nbytes) == (2, 100)
    use("b")
    assert made[-1] == "large"
    cache.capacity = 1
    use("b")
    assert len(cache) == 1


def test_what_is_not_to_be_captured_is_not_kept() -> None:
    cache: GraphCache[Any] = GraphCache(3)
    assert cache.find("a", lambda: None) is None
    cache.capacity = 0
    assert cache.find("a", lambda: pytest.fail("it has no room")) is None
    assert len(cache) == 0


def test_a_capture_that_fails_warns_once_and_ends_the_graphs() -> None:
    cache: GraphCache[Any] = GraphCache(3)
    cache.find("a", entry)

    def fail() -> Any:
        raise RuntimeError("capture invalidated")

    with pytest.raises(RuntimeError, match="invalidated"):
        cache.get("b", fail)
    assert len(cache) == 1
    with pytest.warns(UserWarning, match="no CUDA graphs, slower but just as exact: capture invalidated"):
        assert cache.find("b", fail) is None
    assert (len(cache), cache.capacity) == (0, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.find("b", fail) is None


def test_copies_and_pickles_start_with_none() -> None:
    cache: GraphCache[Any] = GraphCache(5)
    cache.find("a", entry)
    for other in (copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))):
        assert (len(cache), len(other), other.capacity) == (1, 0, 5)


def test_buffers_are_made_outside_of_inference_mode() -> None:
    cache: GraphCache[Any] = GraphCache(5)
    with torch.inference_mode():
        found = cache.find("a", lambda: torch.zeros(1))
    assert not found.is_inference()


def test_threads_that_want_the_same_graph_capture_it_once() -> None:
    cache: GraphCache[Any] = GraphCache(5)
    made, start = [], threading.Barrier(4)

    def capture() -> Any:
        time.sleep(0.05)
        made.append(1)
        return entry()

    def use(_: int) -> None:
        start.wait()
        cache.find("a", capture)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(use, range(4)))
    assert len(made) == 1


def test_graphs_that_are_there_are_found_while_others_are_captured() -> None:
    cache: GraphCache[Any] = GraphCache(5)
    cache.find("a", entry)
    with capturing.one_at_a_time:
        assert answers(lambda: cache.find("a", entry)) is not None


def test_a_call_that_is_warmed_up_may_use_the_cache_another_thread_captures_for() -> None:
    cache: GraphCache[Any] = GraphCache(5)
    begun = threading.Event()

    def other() -> None:
        begun.wait()
        cache.find("b", entry)

    thread = threading.Thread(target=other, daemon=True)
    thread.start()
    with capturing.one_at_a_time:  # as one does who warms up
        begun.set()
        time.sleep(0.05)
        assert cache.find("c", entry) is not None
    thread.join(10)
    assert not thread.is_alive()
    assert len(cache) == 2


@untraced()
def test_wherever_a_thread_is_stopped_the_cache_stays_usable() -> None:
    cache: GraphCache[Any] = GraphCache(2)

    def use() -> None:
        for key in range(4):
            cache.find(key, entry)

    def check() -> None:
        assert answers(lambda: cache.find("a", entry)) is not None
        assert len(cache) <= 2

    stop_wherever(use, check)
