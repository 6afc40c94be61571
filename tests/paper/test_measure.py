"""Measuring: models take turns, and peaks of memory come from fresh processes."""

import resource
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from beamtree.paper.speed import measure
from beamtree.paper.speed.fresh_process import OUT_OF_MEMORY, call_alone
from beamtree.paper.speed.measure import (
    Group,
    Measurement,
    PeakMemory,
    Plan,
    measure_groups,
    measure_peak,
    peak_memory,
    peak_resident,
)
from beamtree.paper.speed.workload import Case, Timing

CPU = torch.device("cpu")
TINY = Case(B=2, n=5, d=16, K=2)


class FakeWorkload:
    """Steps of a second each; the lengths in `lacking` run out of memory."""

    calls: list[str]
    lacking: tuple[int, ...] = ()

    def __init__(self, case: Case, device: torch.device) -> None:
        self.case = case

    def timed_step(self) -> Timing:
        self.calls.append(self.case.model)
        if self.case.n in self.lacking and self.case.model == "naive":
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 1 bytes")
        return Timing(float(len(self.calls)), 0.5)


@pytest.fixture
def calls(monkeypatch) -> list[str]:
    monkeypatch.setattr(measure, "Workload", FakeWorkload)
    monkeypatch.setattr(measure, "peak_memory", lambda case, device: 1000 * case.n)
    FakeWorkload.calls, FakeWorkload.lacking = [], ()
    return FakeWorkload.calls


def groups_of(*lengths: int) -> list[Group]:
    return [[Measurement(Case(model, n=n), "n") for model in ("ebt-grc", "naive")] for n in lengths]


def test_models_take_turns_after_warming_up_and_the_median_counts(calls):
    said: list[tuple[float, str]] = []
    into: list[Group] = []
    measure_groups(groups_of(10), Plan(CPU, repeat=3), into, lambda share, doing: said.append((share, doing)))
    assert calls == ["ebt-grc", "naive"] * 4
    fast, naive = into[0]
    assert [timing.seconds for timing in fast.timings] == [3.0, 5.0, 7.0]
    assert (fast.seconds, naive.seconds) == (5.0, 6.0)
    assert fast.processor_seconds == 0.5
    assert fast.tokens_per_second == 2.0
    assert fast.microseconds_a_search_step == pytest.approx(5e6 / 9)
    assert fast.peak_bytes == 10_000
    assert said[0] == (0.0, "B = 1, n = 10, ebt-grc: memory")
    assert said[-1] == (0.0, "B = 1, n = 10, naive: step 3 of 3")


def test_a_slow_model_is_stepped_less_and_not_tried_at_greater_length(calls):
    into: list[Group] = []
    measure_groups(groups_of(10, 20), Plan(CPU, repeat=9, max_seconds=4.0, memory=False), into)
    (fast, naive), (fast_later, naive_later) = into
    assert [timing.seconds for timing in fast.timings] == [3.0, 5.0]
    assert [timing.seconds for timing in naive.timings] == [4.0]
    assert fast.seconds == 4.0
    assert fast_later.problem == naive_later.problem == "not tried: 4 s at n = 10"
    assert fast_later.seconds is None
    assert fast_later.peak_bytes is None


def test_warming_up_ends_when_the_time_is_spent(calls, monkeypatch):
    monkeypatch.setitem(measure._WARM_UP_STEPS, "cpu", 3)
    measure_groups([[Measurement(TINY, "n")]], Plan(CPU, repeat=1, max_seconds=1.0, memory=False), [])
    assert len(calls) == 2


def test_running_out_of_memory_is_a_result_and_larger_sizes_are_not_tried(calls):
    FakeWorkload.lacking = (20, 30)
    into: list[Group] = []
    measure_groups(groups_of(10, 20, 30), Plan(CPU, repeat=1), into)
    assert [naive.problem for _, naive in into] == [
        None,
        OUT_OF_MEMORY,
        "not tried: out of memory at n = 20",
    ]
    assert [fast.problem for fast, _ in into] == [None] * 3
    assert all(fast.seconds for fast, _ in into)


def test_the_peak_is_the_high_water_mark_of_this_process(monkeypatch, tmp_path):
    resident = resource.getpagesize() * int(Path("/proc/self/statm").read_text().split()[1])
    assert peak_resident() >= resident - (4 << 20)  # the kernel adds up the pages of threads now and then
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nVmHWM:\t  1000 kB\nVmRSS:\t   900 kB\n")
    monkeypatch.setattr(measure, "_STATUS", status)
    peak = PeakMemory(torch.device("cpu"))
    assert peak.bytes() == 1_024_000
    peak.warmed_up()
    status.write_text("VmHWM:\t  3000 kB\n")
    assert peak.bytes() == 2_048_000


def test_without_proc_the_peak_comes_from_getrusage(monkeypatch, tmp_path):
    monkeypatch.setattr(measure, "_STATUS", tmp_path / "absent")
    assert peak_resident() > 1 << 20
    # A fixed figure: between two calls the real one may grow.
    monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=5000))
    assert peak_resident() == 5000 * 1024
    monkeypatch.setattr(measure.sys, "platform", "darwin")
    assert peak_resident() == 5000


def test_memory_on_a_gpu_is_the_allocated_peak_less_what_was_there_before(monkeypatch):
    allocated = iter([700])
    done: list[str] = []
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: next(allocated))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 1700)
    for name in ("synchronize", "empty_cache", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda *_, name=name: done.append(name))
    peak = PeakMemory(torch.device("cuda"))
    assert done == ["empty_cache", "synchronize", "reset_peak_memory_stats"]
    peak.warmed_up()
    assert peak.bytes() == 1000


def test_a_gpu_case_is_measured_at_its_own_length_only(monkeypatch):
    lengths: list[int] = []

    class Counted:
        def __init__(self, case, device):
            self.feed(case.n)

        def feed(self, n):
            self.n = n

        def step(self):
            lengths.append(self.n)

    peaks = SimpleNamespace(warmed_up=lambda: None, bytes=lambda: 7)
    monkeypatch.setattr(measure, "Workload", Counted)
    monkeypatch.setattr(measure, "PeakMemory", lambda device: peaks)
    assert peak_memory(Case(n=500), torch.device("cuda")) == 7
    assert lengths == [500, 500]
    lengths.clear()
    assert measure_peak(asdict(Case(n=500))) == 7
    assert lengths == [8, 500]


def test_growth_in_a_fresh_process_is_that_of_the_algorithm():
    # 60 steps that copy 25 candidates of up to 60 nodes of 64 floats keep at least 10 MB alive.
    with ThreadPoolExecutor(2) as pool:
        sizes = {"B": 4, "d": 64}
        naive = pool.submit(peak_memory, Case("naive", n=60, **sizes), CPU)
        fast = pool.submit(peak_memory, Case(n=60, **sizes), CPU)
    assert naive.result() > 10e6
    assert fast.result() < naive.result() / 3


def test_a_fresh_process_that_lacks_memory_says_so_and_this_one_goes_on():
    with pytest.raises(MemoryError, match="measure_peak"):
        call_alone(measure_peak, case=asdict(Case(n=10**10)))
