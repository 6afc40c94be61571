"""Calling a function in a fresh process, also one that runs out of memory."""

import resource
from dataclasses import asdict
from types import SimpleNamespace

import pytest
import torch

from beamtree import BeamtreeError
from beamtree.paper.speed import fresh_process as process
from beamtree.paper.speed.fresh_process import OUT_OF_MEMORY, call_alone, noting_lack_of_memory
from beamtree.paper.speed.measure import measure_peak
from beamtree.paper.speed.workload import Case


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


@pytest.mark.parametrize(
    ("status", "last_words", "expected", "message"),
    [
        (-9, "", MemoryError, "measure_peak"),
        (3, "", BeamtreeError, "fresh process failed: exit status 3"),
        (1, "Traceback:\nValueError: n must be odd\n", BeamtreeError, "failed: ValueError: n must be odd"),
    ],
)
def test_a_process_that_fails_says_why(monkeypatch, status, last_words, expected, message):
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
    assert call_alone(measure_peak, case=asdict(Case(n=9, d=16))) == {"answer": 7}
    monkeypatch.setattr(process.sys, "stdin", SimpleNamespace(read=lambda: orders[0]))
    monkeypatch.setattr(process, "bound_memory", lambda: None)
    set_to = {}
    monkeypatch.setattr(torch, "set_num_threads", lambda n: set_to.update(threads=n))
    monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda p: set_to.update(precision=p))
    process.main()
    assert int(capsys.readouterr().out) >= 0
    assert set_to == {"threads": threads, "precision": precision}


def test_memory_is_bounded_by_free_memory_and_the_users_limit(monkeypatch, tmp_path):
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
