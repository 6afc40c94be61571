"""Measures several models at one size: peak memory one after another, then times in turns (A B A B …), so
that other load on the machine affects all of them equally.

On a GPU, memory is what PyTorch allocated; on a CPU, what a fresh process held. The peak of a process never
falls, so on a CPU every figure needs its own process; it counts from the peak after one step on 8 tokens,
when libraries are loaded and weights and optimiser state exist.
"""

import gc
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from beamtree.paper.speed.fresh_process import OUT_OF_MEMORY, Result, call_on, noting_lack_of_memory
from beamtree.paper.speed.workload import Case, Timing, Workload, wait_for

FIRST_LENGTH = 8
_STATUS = Path("/proc/self/status")
_WARM_UP_STEPS = {"cpu": 1, "cuda": 3}

Progress = Callable[[float, str], None]  # the share that is done, and what is done now


@dataclass
class Measurement(Result):
    """A case, the size that is `varied` in its table, and the results."""

    case: Case
    varied: str
    timings: list[Timing] = field(default_factory=list)

    @property
    def size(self) -> int:
        return self.case.size(self.varied) or 0

    @property
    def seconds(self) -> float | None:
        """The median step."""
        return median(timing.seconds for timing in self.timings) if self.timings else None

    @property
    def milliseconds(self) -> float | None:
        return self.seconds and 1e3 * self.seconds

    @property
    def processor_seconds(self) -> float | None:
        return median(timing.processor_seconds for timing in self.timings) if self.timings else None

    @property
    def tokens_per_second(self) -> float | None:
        return self.case.B * self.case.n / self.seconds if self.seconds else None

    @property
    def microseconds_a_search_step(self) -> float | None:
        return 1e6 * self.seconds / max(1, self.case.n - 1) if self.seconds else None

    def to_dict(self) -> dict[str, Any]:
        return {
            **asdict(self.case),
            "varied": self.varied,
            "seconds": self.seconds,
            "processor_seconds": self.processor_seconds,
            "peak_bytes": self.peak_bytes,
            "tokens_per_second": self.tokens_per_second,
            "microseconds_a_search_step": self.microseconds_a_search_step,
            "all_seconds": [timing.seconds for timing in self.timings],
            "all_processor_seconds": [timing.processor_seconds for timing in self.timings],
            "problem": self.problem,
        }


@dataclass(frozen=True)
class Plan:
    """How to measure. A model gets no further step at a size once its steps there took `max_seconds`."""

    device: torch.device
    repeat: int = 5
    max_seconds: float = 60.0
    memory: bool = True


Group = list[Measurement]  # models at one size, measured side by side


def measure_groups(
    groups: Sequence[Group], plan: Plan, into: list[Group], progress: Progress = lambda share, doing: None
) -> None:
    """Measure one group after another; after an interruption, `into` has those that were begun.

    A model that ran out of memory, or took `max_seconds` for a step, is not tried at larger sizes.
    """
    given_up: dict[tuple[str, Case], str] = {}
    for number, group in enumerate(groups):
        into.append(group)
        for one in group:
            one.problem = given_up.get(_series(one))
        size = f"B = {group[0].case.B}, n = {group[0].case.n}"
        measure_together(
            group,
            plan,
            lambda doing: progress(number / len(groups), f"{size}, {doing}"),  # noqa: B023
        )
        for one in group:
            if one.problem == OUT_OF_MEMORY:
                given_up[_series(one)] = f"not tried: out of memory at {one.varied} = {one.size}"
            elif one.seconds is not None and one.seconds >= plan.max_seconds:
                given_up[_series(one)] = f"not tried: {one.seconds:.0f} s at {one.varied} = {one.size}"


def _series(one: Measurement) -> tuple[str, Case]:
    """What all sizes of a case have in common."""
    return one.varied, one.case.with_size(one.varied, 0)


def measure_together(group: Group, plan: Plan, progress: Callable[[str], None]) -> None:
    """Fill in peak memory and times of the measurements that have no problem yet."""
    for one in group:
        if plan.memory and one.problem is None:
            progress(f"{one.case.model}: memory")
            with noting_lack_of_memory(one):
                one.peak_bytes = peak_memory(one.case, plan.device)
    workloads: dict[int, Workload] = {}
    for i, one in enumerate(group):
        if one.problem is None:
            progress(f"{one.case.model}: warming up")
            with noting_lack_of_memory(one):
                workloads[i] = _warmed_up(one.case, plan)
    for round_ in range(plan.repeat):
        for i, workload in workloads.items():
            one = group[i]
            if one.problem is None and sum(timing.seconds for timing in one.timings) < plan.max_seconds:
                progress(f"{one.case.model}: step {round_ + 1} of {plan.repeat}")
                with noting_lack_of_memory(one):
                    one.timings.append(workload.timed_step())


def _warmed_up(case: Case, plan: Plan) -> Workload:
    workload = Workload(case, plan.device)
    spent = 0.0
    for _ in range(_WARM_UP_STEPS[plan.device.type]):
        if spent < plan.max_seconds:
            spent += workload.timed_step().seconds
    return workload


class PeakMemory:
    """Peak memory in bytes: on a GPU since this object was made, elsewhere since `warmed_up` was called.

    On a GPU it is what PyTorch allocated, elsewhere what the process held.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._before = 0
        if device.type == "cuda":
            gc.collect()
            torch.cuda.empty_cache()
            wait_for(device)
            torch.cuda.reset_peak_memory_stats(device)
            self._before = torch.cuda.memory_allocated(device)

    def warmed_up(self) -> None:
        if self.device.type != "cuda":
            self._before = peak_resident()

    def bytes(self) -> int:
        if self.device.type == "cuda":
            wait_for(self.device)
            return torch.cuda.max_memory_allocated(self.device) - self._before
        # Linux sums the page counts of all cores with a delay, so that the peak may even fall.
        return max(0, peak_resident() - self._before)


def peak_resident() -> int:
    """The most bytes of physical memory that this process has held."""
    if _STATUS.exists():
        # Not getrusage: its figure starts from what the parent process held.
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def forget_peak() -> None:
    """Reset this process's peak to what it holds now; without Linux's `clear_refs` the old peak stays."""
    gc.collect()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def measure_peak(case: dict[str, Any], device: str = "cpu") -> int:
    """Peak bytes of a case, in this process."""
    sizes, place = Case(**case), torch.device(device)
    peak = PeakMemory(place)
    # On a GPU the count starts before the weights, and buffers for a second length would only add to it.
    first = min(FIRST_LENGTH, sizes.n) if place.type == "cpu" else sizes.n
    workload = Workload(replace(sizes, n=first), place)
    workload.step()
    peak.warmed_up()
    workload.feed(sizes.n)
    workload.step()
    return peak.bytes()


def peak_memory(case: Case, device: torch.device) -> int:
    """Peak bytes of a case; raises MemoryError if there is not enough."""
    return int(call_on(device, measure_peak, case=asdict(case)))
