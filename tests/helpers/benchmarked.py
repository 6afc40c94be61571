"""Measurements as `beamtree bench` takes them, for the tests of what it shows."""

from typing import Any

import torch

from beamtree.paper.speed.benchmark import Benchmark, describe_environment
from beamtree.paper.speed.measure import Measurement
from beamtree.paper.speed.table1 import RangeResult
from beamtree.paper.speed.workload import Case, Timing


def measured(model: str, seconds: list[float], peak: int | None = None, **options: Any) -> Measurement:
    varied, problem = options.pop("varied", "n"), options.pop("problem", None)
    case = Case(model, **{"n": 10, **options})
    return Measurement(case, varied, [Timing(s, s / 2) for s in seconds], peak_bytes=peak, problem=problem)


GROUPS = [
    [measured("ebt-grc", [0.010, 0.030, 0.020], 2_000_000), measured("naive", [0.2], 50_000_000)],
    [
        measured("ebt-grc", [0.5], 4_000_000, n=1000),
        measured("naive", [], None, n=1000, problem="out of memory"),
    ],
]


CELLS = [
    RangeResult("ebt-grc", "200-250", 223.0, [0.006] * 100, peak_bytes=50_000_000),
    RangeResult("naive", "200-250", 223.0, [0.6] * 7, peak_bytes=400_000_000),
    RangeResult("bt-grc-os", "1500-2000", 1700.0, problem="out of memory"),
]


def benchmark(suite: str = "quick", **content: Any) -> Benchmark:
    return Benchmark(
        suite, {"repeat": 3, "step": "forward"}, describe_environment(torch.device("cpu")), **content
    )
