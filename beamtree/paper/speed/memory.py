"""Peak memory: what PyTorch allocated on a GPU, what a fresh process came to hold on a CPU.

A process's peak never falls, so on a CPU every figure needs a process of its own. It counts from the peak
after one step on 8 tokens, when libraries are loaded and weights and the optimiser's state exist.
"""

import gc
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from beamtree.paper.speed.workload import Case, Workload, wait_for
from beamtree.processes.fresh import call_alone

FIRST_LENGTH = 8
_STATUS = Path("/proc/self/status")


class PeakMemory:
    """Bytes at the highest point since a beginning: on a GPU its making, on a CPU the call of `warmed_up`."""

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
        if self.device.type == "cpu":
            self._before = peak_resident()

    def bytes(self) -> int:
        if self.device.type == "cpu":
            return peak_resident() - self._before
        wait_for(self.device)
        return torch.cuda.max_memory_allocated(self.device) - self._before


def peak_resident() -> int:
    """The most bytes of physical memory that this process has held."""
    if _STATUS.exists():
        # Not getrusage: its figure begins at what the parent process held.
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def measure_peak(case: dict[str, Any], device: str = "cpu") -> int:
    """Peak bytes of a case, in this process."""
    sizes, place = Case(**case), torch.device(device)
    peak = PeakMemory(place)
    # A GPU's count begins before the weights, and buffers for a second length would only add to it.
    first = min(FIRST_LENGTH, sizes.n) if place.type == "cpu" else sizes.n
    workload = Workload(replace(sizes, n=first), place)
    workload.step()
    peak.warmed_up()
    workload.feed(sizes.n)
    workload.step()
    return peak.bytes()


def peak_memory(case: Case, device: torch.device) -> int:
    """Peak bytes of a case; MemoryError where there is not enough."""
    if device.type == "cpu":
        return int(call_alone(measure_peak, case=case.to_dict()))
    return measure_peak(case.to_dict(), str(device))


def peak_growth(
    n: int,
    B: int = 1,
    *,
    model: str = "ebt-grc",
    d: int = 128,
    K: int = 5,
    slice_size: int | None = None,
    inference: bool = False,
) -> int:
    """Bytes by which the peak of a fresh process grows from one step on 8 tokens to one on n, on a CPU."""
    return peak_memory(Case(model, B, n, d, K, slice_size, inference), torch.device("cpu"))
