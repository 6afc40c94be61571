"""Small work runs on one thread of PyTorch's, and the number is as before afterwards."""

import threading
from collections.abc import Iterator

import pytest
import torch

from beamtree.pytorch.threads import WORTH_SHARING, threads_for

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
