"""Peaks of memory in fresh processes, and what becomes of a process that lacks it."""

import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from beamtree import BeamtreeError
from beamtree.paper.speed import memory
from beamtree.paper.speed.memory import PeakMemory, measure_peak, peak_growth, peak_memory, peak_resident
from beamtree.paper.speed.workload import Case
from beamtree.processes import fresh as process
from beamtree.processes.fresh import OUT_OF_MEMORY, call_alone, noting_lack_of_memory


def test_only_lack_of_memory_is_a_result():
    result = SimpleNamespace(problem=None)
    with pytest.raises(RuntimeError, match="shapes"), noting_lack_of_memory(result):
        raise RuntimeError("shapes do not match")
    assert result.problem is None
    for error in (MemoryError(), torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")):
        with noting_lack_of_memory(result):
            raise error
        assert result.problem == OUT_OF_MEMORY
        result.problem = None


def test_the_peak_is_the_high_water_mark_of_this_process(monkeypatch, tmp_path):
    assert peak_resident() >= resource.getpagesize() * int(Path("/proc/self/statm").read_text().split()[1])
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nVmHWM:\t  1000 kB\nVmRSS:\t   900 kB\n")
    monkeypatch.setattr(memory, "_STATUS", status)
    peak = PeakMemory(torch.device("cpu"))
    assert peak.bytes() == 1_024_000
    peak.warmed_up()
    status.write_text("VmHWM:\t  3000 kB\n")
    assert peak.bytes() == 2_048_000


def test_without_proc_the_peak_comes_from_getrusage(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "_STATUS", tmp_path / "absent")
    assert peak_resident() > 1 << 20
    # A fixed figure: between two calls the real one may grow.
    monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=5000))
    assert peak_resident() == 5000 * 1024
    monkeypatch.setattr(memory.sys, "platform", "darwin")
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
    monkeypatch.setattr(memory, "Workload", Counted)
    monkeypatch.setattr(memory, "PeakMemory", lambda device: peaks)
    assert peak_memory(Case(n=500), torch.device("cuda")) == 7
    assert lengths == [500, 500]
    lengths.clear()
    assert measure_peak(Case(n=500).to_dict()) == 7
    assert lengths == [8, 500]


def test_growth_in_a_fresh_process_is_that_of_the_algorithm():
    # 60 steps that copy 25 candidates of up to 60 nodes of 64 floats keep at least 10 MB alive.
    with ThreadPoolExecutor(2) as pool:
        sizes = {"B": 4, "d": 64}
        naive = pool.submit(peak_growth, 60, model="naive", **sizes)
        fast = pool.submit(peak_growth, 60, **sizes)
    assert naive.result() > 10e6
    assert fast.result() < naive.result() / 3


def test_a_fresh_process_that_lacks_memory_says_so_and_this_one_goes_on():
    with pytest.raises(MemoryError, match="measure_peak"):
        call_alone(measure_peak, case=Case(n=10**10).to_dict())


@pytest.mark.parametrize(
    ("status", "last_words", "expected", "message"),
    [
        (-9, "", MemoryError, "measure_peak"),
        (3, "", BeamtreeError, "fresh process failed: exit status 3"),
        (1, "Traceback:\nValueError: n must be odd\n", BeamtreeError, "failed: ValueError: n must be odd"),
    ],
)
def test_a_process_that_ends_badly_says_why(monkeypatch, status, last_words, expected, message):
    ended = SimpleNamespace(returncode=status, stdout="", stderr=last_words)
    monkeypatch.setattr(process.subprocess, "run", lambda *_, **__: ended)
    with pytest.raises(expected, match=message):
        call_alone(measure_peak, case={})


def test_the_fresh_process_works_with_the_same_threads_and_precision(monkeypatch, capsys):
    orders = []

    def run(command, *, input, **_):
        orders.append(input)
        return SimpleNamespace(returncode=0, stdout='a warning\n{"answer": 7}\n', stderr="")

    monkeypatch.setattr(process.subprocess, "run", run)
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    assert call_alone(measure_peak, case=Case(n=9, d=16).to_dict()) == {"answer": 7}
    monkeypatch.setattr(process.sys, "stdin", SimpleNamespace(read=lambda: orders[0]))
    monkeypatch.setattr(process, "bound_memory", lambda: None)
    set_to = {}
    monkeypatch.setattr(torch, "set_num_threads", lambda n: set_to.update(threads=n))
    monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda p: set_to.update(precision=p))
    process.main()
    assert int(capsys.readouterr().out) >= 0
    assert set_to == {"threads": threads, "precision": precision}


def test_memory_is_bounded_by_what_the_machine_has_free_and_what_the_user_may_have(monkeypatch, tmp_path):
    limits = []
    monkeypatch.setattr(resource, "setrlimit", lambda kind, pair: limits.append((kind, pair)))
    monkeypatch.setattr(process, "_MEMORY", tmp_path / "meminfo")
    process.bound_memory()
    assert limits == []
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:   1000 kB\n")
    for hard, bound in ((resource.RLIM_INFINITY, 819_200), (500_000, 500_000)):
        monkeypatch.setattr(resource, "getrlimit", lambda kind, hard=hard: (hard, hard))
        process.bound_memory()
        assert limits.pop() == (resource.RLIMIT_DATA, (bound, hard))
