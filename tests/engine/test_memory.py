"""A training step takes memory in proportion to the length: B = 1, d = 128, K = 5, on a CPU."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from beamtree.paper.speed.measure import peak_memory
from beamtree.paper.speed.workload import Case

LENGTHS = (2000, 4000, 10_000)


@pytest.fixture(scope="module")
def growth() -> dict[int, int]:
    """Bytes above the peak after one step on 8 tokens, each length in a process of its own."""
    with ThreadPoolExecutor(len(LENGTHS)) as pool:
        peaks = pool.map(lambda n: peak_memory(Case(n=n), torch.device("cpu")), LENGTHS)
        return dict(zip(LENGTHS, peaks, strict=True))


@pytest.mark.slow
def test_two_thousand_tokens_take_less_than_150_megabytes(growth):
    assert 0 < growth[2000] < 150e6


@pytest.mark.slow
def test_twice_the_tokens_take_at_most_2_2_times_the_memory(growth):
    assert growth[4000] < 2.2 * growth[2000]


@pytest.mark.slow
def test_ten_thousand_tokens_complete_and_memory_still_grows_with_the_length_only(growth):
    assert growth[2000] < growth[10_000] < 1.1 * 2.5 * growth[4000]
