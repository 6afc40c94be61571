"""Several models at one size, side by side: peak memory one after the other, then times in turns (A B A B …),
so that whatever else the machine does meets all of them alike.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch

from beamtree.paper.speed.memory import peak_memory
from beamtree.paper.speed.suites import Group
from beamtree.paper.speed.workload import Case, Timing, Workload
from beamtree.processes.fresh import OUT_OF_MEMORY, noting_lack_of_memory

_WARM_UP_STEPS = {"cpu": 1, "cuda": 3}

Doing = Callable[[str], None]
Progress = Callable[[float, str], None]  # the share that is done, and what comes now


@dataclass
class Measurement:
    """What came of a case, a point where `varied` grows; `problem` says why it has no times."""

    case: Case
    varied: str
    timings: list[Timing] = field(default_factory=list)
    peak_bytes: int | None = None
    problem: str | None = None

    @property
    def size(self) -> int:
        return self.case.size(self.varied) or 0

    @property
    def seconds(self) -> float | None:
        """The median step."""
        return median(timing.seconds for timing in self.timings) if self.timings else None

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
            **self.case.to_dict(),
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


Measured = list[list[Measurement]]  # a list for every group


def measure_groups(
    groups: Sequence[Group], plan: Plan, into: Measured, progress: Progress = lambda share, doing: None
) -> None:
    """Measure one group after another; whoever interrupts finds in `into` what there is.

    A model that ran out of memory, or took `max_seconds` for a step, is not tried at larger sizes.
    """
    given_up: dict[tuple[str, Case], str] = {}
    for number, group in enumerate(groups):
        measured = [Measurement(case, group.varied) for case in group.cases]
        into.append(measured)
        for one in measured:
            one.problem = given_up.get(_series(one))
        size = f"B = {group.cases[0].B}, n = {group.cases[0].n}"
        measure_together(
            measured,
            plan,
            lambda doing: progress(number / len(groups), f"{size}, {doing}"),  # noqa: B023
        )
        for one in measured:
            if one.problem == OUT_OF_MEMORY:
                given_up[_series(one)] = f"not tried: out of memory at {one.varied} = {one.size}"
            elif one.seconds is not None and one.seconds >= plan.max_seconds:
                given_up[_series(one)] = f"not tried: {one.seconds:.0f} s at {one.varied} = {one.size}"


def _series(one: Measurement) -> tuple[str, Case]:
    """What all sizes of a case have in common."""
    return one.varied, one.case.with_size(one.varied, 0)


def measure_together(
    measured: Sequence[Measurement], plan: Plan, progress: Doing = lambda doing: None
) -> None:
    """Fill in the peak memory and the times of those that have no problem yet."""
    for one in measured:
        if plan.memory and one.problem is None:
            progress(f"{one.case.model}: memory")
            with noting_lack_of_memory(one):
                one.peak_bytes = peak_memory(one.case, plan.device)
    workloads: dict[int, Workload] = {}
    for i, one in enumerate(measured):
        if one.problem is None:
            progress(f"{one.case.model}: warming up")
            with noting_lack_of_memory(one):
                workloads[i] = _warmed_up(one.case, plan)
    for round_ in range(plan.repeat):
        for i, workload in workloads.items():
            one = measured[i]
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
