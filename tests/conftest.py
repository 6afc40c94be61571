"""Two workers share two cores, so each computes with one thread; property tests do not race the clock."""

import os
from typing import TYPE_CHECKING

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import settings

import beamtree.recursion  # noqa: F401 - tests find its operators in torch.ops.beamtree

if TYPE_CHECKING:
    from collections.abc import Iterator

    from played_graphs import Recording

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports Triton
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> "list[Recording]":
    """Lets the CPU play the GPU; the graphs made so far."""
    from played_graphs import play_gpu

    return play_gpu(monkeypatch)


@pytest.fixture
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a kernel, where Triton's interpreter runs them one after the other."""
    from beamtree.kernels.replay import cell_replay, replay_plan
    from beamtree.kernels.search import plan

    if not torch.cuda.is_available():
        for module, name in ((plan, "PROGRAMS"), (cell_replay, "PROGRAMS"), (replay_plan, "PAIRS_AT_ONCE")):
            monkeypatch.setattr(module, name, 1)


@pytest.fixture
def unwritten_memory_is_nan() -> "Iterator[None]":
    """An element that no kernel writes fails a comparison."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)
