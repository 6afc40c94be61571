"""The suites of `beamtree bench`: which models at which sizes; measures them until the end or Ctrl-C."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product

import torch

from beamtree.errors import BeamtreeError, nearest
from beamtree.paper.speed.benchmark import Benchmark, describe_environment
from beamtree.paper.speed.measure import Group, Measurement, Plan, Progress, measure_groups
from beamtree.paper.speed.table1 import DEFAULT_MODELS, PAPER_SAMPLES, RANGES, measure_table
from beamtree.paper.speed.workload import ADAMW, DROPOUT, NAIVE, PLAIN, Case, find_variant, takes

_QUICK = {  # (B, n) in training
    "cpu": ((1, 100), (32, 50)),
    "cuda": ((1, 225), (1, 550), (1, 950), (1, 1750), (128, 50), (128, 100), (32, 512)),
}
_QUICK_INFERENCE = {"cpu": ((1, 20), (1, 100), (32, 50)), "cuda": ((1, 20), (1, 100), (128, 50))}
_THROUGHPUT = {"cpu": ((32, 50), (32, 100), (8, 256)), "cuda": ((128, 50), (128, 100), (32, 512))}
_STARTS = {"cpu": Case(n=128), "cuda": Case(n=512)}  # the sizes that are not varied
_SWEEPS = {
    "cpu": {"n": (64, 128, 256, 512), "K": (2, 5, 10), "d": (64, 128, 256), "d_s": (16, 32, 64, 128)},
    "cuda": {
        "n": (225, 550, 950, 1750, 4000, 10_000, 20_000),
        "K": (2, 5, 10, 20, 32),
        "d": (64, 128, 256, 512, 1024),
        "d_s": (16, 32, 64, 128),
    },
}
_CPU_SAMPLES = 3
_WHAT_PEAK_MEANS = {
    "cpu": "growth of a fresh process's peak resident memory since one step on 8 tokens",
    "cuda": "torch.cuda.max_memory_allocated minus what was allocated before the model was made",
}


@dataclass(frozen=True)
class Wanted:
    """What the user asked for; where it is empty, the suite decides."""

    models: tuple[str, ...] = ()
    lengths: tuple[int, ...] = ()
    batches: tuple[int, ...] = ()
    beams: tuple[int, ...] = ()
    widths: tuple[int, ...] = ()
    slices: tuple[int, ...] = ()
    inference: bool = False


def quick(wanted: Wanted, device: str) -> list[Group]:
    """The cost of a tree: the fast path, familiar layers and the original algorithm at a few sizes."""
    models = ("ebt-grc", *PLAIN, NAIVE)
    inference = _at_sizes(replace(wanted, inference=True), _QUICK_INFERENCE[device], models)
    return inference if wanted.inference else [*inference, *_at_sizes(wanted, _QUICK[device], models)]


def throughput(wanted: Wanted, device: str) -> list[Group]:
    """Tokens per second in batches."""
    return _at_sizes(wanted, _THROUGHPUT[device], ("ebt-grc", "ebt-grc-noslice", NAIVE))


def scaling(wanted: Wanted, device: str) -> list[Group]:
    """Vary one of n, K, d and d_s at a time.

    A size with several given values is varied over these; a single given value stays fixed.
    """
    models = wanted.models or ("ebt-grc", "ebt-grc-noslice", NAIVE)
    if len(wanted.batches) > 1:
        raise BeamtreeError(f"the suite scaling takes a single --batch, got {len(wanted.batches)}")
    start = replace(_STARTS[device], B=(*wanted.batches, 1)[0], inference=wanted.inference)
    named = {"n": wanted.lengths, "K": wanted.beams, "d": wanted.widths, "d_s": wanted.slices}
    for varied, sizes in named.items():
        if len(sizes) == 1:
            start = start.with_size(varied, sizes[0])
    grown = [varied for varied, sizes in named.items() if len(sizes) > 1]
    grown = grown or [varied for varied, sizes in named.items() if not sizes]
    groups = []
    for varied in grown:
        able = [model for model in models if _can_vary(model, varied)]
        for size in sorted(named[varied] or _SWEEPS[device][varied]):
            groups.append(_side_by_side(start.with_size(varied, size), able, varied))
    if not any(groups):
        raise BeamtreeError(
            f"{', '.join(models)} cannot vary in {', '.join(grown) or 'any size: all are given'}"
        )
    return [group for group in groups if group]


SUITES: dict[str, Callable[[Wanted, str], list[Group]]] = {
    "quick": quick,
    "throughput": throughput,
    "scaling": scaling,
}


def _at_sizes(wanted: Wanted, usual: Sequence[tuple[int, int]], models: tuple[str, ...]) -> list[Group]:
    if wanted.lengths or wanted.batches:
        lengths = sorted(wanted.lengths) or sorted({n for _, n in usual})
        usual = list(product(wanted.batches or (1,), lengths))
    groups = []
    for (B, n), d, K, slice_size in product(
        usual, wanted.widths or (128,), wanted.beams or (5,), wanted.slices or (None,)
    ):
        case = Case(B=B, n=n, d=d, K=K, slice_size=slice_size, inference=wanted.inference)
        groups.append(_side_by_side(case, wanted.models or models))
    return groups


def _side_by_side(case: Case, models: Sequence[str], varied: str = "n") -> Group:
    """The case for every model, without the sizes that the model does not have."""
    return [
        Measurement(
            replace(
                case,
                model=model,
                d=find_variant(model).d_model or case.d,
                K=case.K if takes(model, "beam_size") else None,
                slice_size=case.slice_size if takes(model, "slice_size") else None,
            ),
            varied,
        )
        for model in models
    ]


def _can_vary(model: str, varied: str) -> bool:
    if varied == "d":
        return find_variant(model).d_model is None
    return varied == "n" or takes(model, {"K": "beam_size", "d_s": "slice_size"}[varied])


def run_sizes(suite: str, wanted: Wanted, plan: Plan, progress: Progress) -> Benchmark:
    groups = SUITES[suite](wanted, plan.device.type)
    settings = {
        "step": _step(groups, plan.device),
        "dropout": 0.0 if wanted.inference else DROPOUT,
        "repeat": plan.repeat,
        "max_seconds_per_cell": plan.max_seconds,
        "peak_bytes": _WHAT_PEAK_MEANS[plan.device.type],
    }
    report = Benchmark(suite, settings, describe_environment(plan.device))
    with report.until_interrupted():
        measure_groups(groups, plan, report.groups, progress)
    return report


def _step(groups: Sequence[Group], device: torch.device) -> str:
    modes = {one.case.inference for group in groups for one in group}
    alone = " (in inference: forward)" if len(modes) > 1 else ""
    return "forward" if modes == {True} else f"forward, backward, {ADAMW[device.type]}{alone}"


def run_paper(
    models: tuple[str, ...],
    ranges: tuple[str, ...],
    device: torch.device,
    *,
    samples: int | None,
    max_seconds: float,
    progress: Progress,
) -> Benchmark:
    for model in models:
        if find_variant(model).encoder in PLAIN:
            raise BeamtreeError(f"the paper's table needs encoders of beamtree, and {model} is not one")
    for name in ranges:
        if name not in RANGES:
            raise BeamtreeError(f"the paper's table has no range of lengths {name!r}{nearest(name, RANGES)}")
    count = samples or (_CPU_SAMPLES if device.type == "cpu" else PAPER_SAMPLES)
    settings = {
        "step": "batch 1: forward, backward, clipping at 1, Ranger",
        "samples": count,
        "max_seconds_per_cell": max_seconds,
        "peak_bytes": _WHAT_PEAK_MEANS[device.type],
    }
    report = Benchmark("paper", settings, describe_environment(device))
    with report.until_interrupted():
        measure_table(
            models or DEFAULT_MODELS,
            ranges or tuple(RANGES),
            device,
            samples=count,
            max_seconds=max_seconds,
            into=report.cells,
            progress=progress,
        )
    return report


@contextmanager
def arithmetic(threads: int | None, matmul_precision: str | None) -> Iterator[None]:
    """Set PyTorch's threads and its precision of float32 products, and restore them at the end."""
    before = torch.get_num_threads(), torch.get_float32_matmul_precision()
    try:
        torch.set_num_threads(threads or before[0])
        torch.set_float32_matmul_precision(matmul_precision or before[1])
        yield
    finally:
        torch.set_num_threads(before[0])
        torch.set_float32_matmul_precision(before[1])
