"""A suite from beginning to end, or to Ctrl-C: what was measured until then is the report."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from beamtree.errors import BeamtreeError, nearest
from beamtree.paper.speed.measure import Plan, Progress, measure_groups
from beamtree.paper.speed.models import find_variant
from beamtree.paper.speed.page import Report, describe_environment
from beamtree.paper.speed.suites import SUITES, Wanted
from beamtree.paper.speed.table1 import DEFAULT_MODELS, PAPER_SAMPLES, RANGES, measure_table
from beamtree.paper.speed.workload import DROPOUT

CPU_SAMPLES = 3


def run_sizes(suite: str, wanted: Wanted, plan: Plan, progress: Progress) -> Report:
    groups = SUITES[suite](wanted, plan.device.type)
    settings = {
        "step": "forward" if wanted.inference else "forward, backward, AdamW",
        "dropout": 0.0 if wanted.inference else DROPOUT,
        "repeat": plan.repeat,
        "max_seconds_per_cell": plan.max_seconds,
        "peak_bytes": _WHAT_PEAK_MEANS[plan.device.type],
    }
    report = Report(suite, settings, describe_environment(plan.device))
    return _until_interrupted(report, lambda: measure_groups(groups, plan, report.groups, progress))


def run_paper(
    models: tuple[str, ...],
    ranges: tuple[str, ...],
    device: torch.device,
    *,
    samples: int | None,
    max_seconds: float,
    progress: Progress,
) -> Report:
    for model in models:
        find_variant(model)
    for name in ranges:
        if name not in RANGES:
            raise BeamtreeError(f"the paper's table has no lengths {name!r}{nearest(name, RANGES)}")
    count = samples or (CPU_SAMPLES if device.type == "cpu" else PAPER_SAMPLES)
    settings = {
        "step": "batch 1: forward, backward, clipping at 1, Ranger",
        "samples": count,
        "max_seconds_per_cell": max_seconds,
        "peak_bytes": _WHAT_PEAK_MEANS[device.type],
    }
    report = Report("paper", settings, describe_environment(device))
    return _until_interrupted(
        report,
        lambda: measure_table(
            models or DEFAULT_MODELS,
            ranges or tuple(RANGES),
            device,
            samples=count,
            max_seconds=max_seconds,
            into=report.cells,
            progress=progress,
        ),
    )


_WHAT_PEAK_MEANS = {
    "cpu": "growth of a fresh process's peak resident memory since one step on 8 tokens",
    "cuda": "torch.cuda.max_memory_allocated less what was allocated before the model was made",
}


def _until_interrupted(report: Report, measure: Callable[[], Any]) -> Report:
    try:
        measure()
    except KeyboardInterrupt:
        report.interrupted = True
    return report


@contextmanager
def arithmetic(threads: int | None, matmul_precision: str | None) -> Iterator[None]:
    """PyTorch's threads and precision of float32 products, put back at the end."""
    before = torch.get_num_threads(), torch.get_float32_matmul_precision()
    try:
        torch.set_num_threads(threads or before[0])
        torch.set_float32_matmul_precision(matmul_precision or before[1])
        yield
    finally:
        torch.set_num_threads(before[0])
        torch.set_float32_matmul_precision(before[1])
