"""Small work runs on one thread of PyTorch's, and the number is as before afterwards."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from beamtree.pytorch.threads import WORTH_SHARING, share, threads_for

x = torch.zeros(1)


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_small_work_gets_one_thread_and_large_work_all() -> None:
    with threads_for(WORTH_SHARING - 1, x):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    with threads_for(WORTH_SHARING, x):
        assert torch.get_num_threads() == 2
    with threads_for(1, x.to("meta")):
        assert torch.get_num_threads() == 2


def test_the_number_is_as_before_after_an_error() -> None:
    with pytest.raises(KeyError), threads_for(1, x):
        raise KeyError
    assert torch.get_num_threads() == 2


def test_a_thread_that_computes_beside_it_keeps_its_number() -> None:
    seen, ready, within = [], threading.Event(), threading.Event()

    def work() -> None:
        seen.append(torch.get_num_threads())
        ready.set()
        within.wait()
        seen.append(torch.get_num_threads())

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait()
    with threads_for(1, x):
        within.set()
        thread.join()
    assert seen == [2, 2]


def test_an_interruption_stops_the_other_threads() -> None:
    """Ctrl-C reaches the caller only: the others stop before their next steps, and no group is begun."""
    main, begun = threading.current_thread(), []
    all_run = threading.Barrier(2, timeout=60)

    def run(group: range, is_stopped: Callable[[], bool]) -> None:
        begun.append(group)
        all_run.wait()
        if threading.current_thread() is main:
            raise KeyboardInterrupt
        while not is_stopped():
            time.sleep(0.001)

    with pytest.raises(KeyboardInterrupt):
        share(30, 2, 2**60, run)
    assert len(begun) == 2


def test_an_error_on_another_thread_reaches_the_caller() -> None:
    main, both_run = threading.current_thread(), threading.Barrier(2, timeout=60)

    def run(group: range, is_stopped: Callable[[], bool]) -> None:
        both_run.wait()
        if threading.current_thread() is not main:
            raise KeyError("there")

    with pytest.raises(KeyError, match="there"):
        share(2, 1, 2**60, run)


@pytest.mark.parametrize(
    ("count", "most", "work"), [(1, 5, 2**60), (7, 2, 0), (7, 2, 2**60), (100, 96, 2**60), (3, 1, 2**60)]
)
def test_all_of_the_work_is_shared_out_once(count: int, most: int, work: int) -> None:
    groups: list[range] = []
    share(count, most, work, lambda group, is_stopped: groups.append(group))
    assert sorted(i for group in groups for i in group) == list(range(count))
    assert max(map(len, groups)) <= most
