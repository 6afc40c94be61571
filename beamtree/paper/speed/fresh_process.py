"""Calls a function in a fresh Python process of bounded memory: running out of it ends only that process."""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from beamtree.errors import BeamtreeError

OUT_OF_MEMORY = "out of memory"
_MEMORY = Path("/proc/meminfo")
_SHARE_OF_FREE = 0.8  # other processes may need some meanwhile
_KILLED = -9  # Linux kills a process when memory runs out
_SIGNS = ("not enough memory", "can't allocate memory", "out of memory", "std::bad_alloc", "memoryerror")


def call_alone(function: Callable[..., Any], **arguments: Any) -> Any:
    """function(**arguments) in a separate process, with this process's number of threads and precision.

    Arguments and result must be JSON. Raises MemoryError if the machine's free memory was not enough.
    """
    order = {
        "module": function.__module__,
        "name": function.__name__,
        "arguments": arguments,
        "threads": torch.get_num_threads(),
        "matmul_precision": torch.get_float32_matmul_precision(),
    }
    command = [sys.executable, "-c", "from beamtree.paper.speed.fresh_process import main; main()"]
    # Makes the new process import this same beamtree, installed or not.
    paths = [str(Path(__file__).resolve().parents[3]), os.environ.get("PYTHONPATH")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run(command, input=json.dumps(order), capture_output=True, text=True, env=environment)
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    if done.returncode == _KILLED or any(sign in done.stderr.lower() for sign in _SIGNS):
        raise MemoryError(f"not enough memory for {function.__name__}")
    reason = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
    raise BeamtreeError(f"measuring in a fresh process failed: {reason}")


def call_on(device: torch.device, function: Callable[..., Any], **arguments: Any) -> Any:
    """function(device=…, **arguments); on a CPU in a separate process, whose peak is that of the function and
    which may run out of memory."""
    arguments["device"] = str(device)
    return call_alone(function, **arguments) if device.type == "cpu" else function(**arguments)


@dataclass(kw_only=True)
class Result:
    """Peak memory, and the reason why a measurement failed."""

    peak_bytes: int | None = None
    problem: str | None = None

    @property
    def megabytes(self) -> float | None:
        return self.peak_bytes and 1e-6 * self.peak_bytes


@contextmanager
def noting_lack_of_memory(result: Result) -> Iterator[None]:
    """Note in the result if CUDA, the CPU's allocator or Python runs out of memory, instead of raising."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not any(sign in str(error).lower() for sign in _SIGNS):
            raise
        result.problem = OUT_OF_MEMORY


def bound_memory() -> None:
    """Limit this process to most of the machine's free memory, if the system reports how much that is."""
    if not _MEMORY.exists():
        return
    import resource

    free = next(line for line in _MEMORY.read_text().splitlines() if line.startswith("MemAvailable:"))
    bound = int(_SHARE_OF_FREE * int(free.split()[1]) * 1024)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        bound = min(bound, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (bound, hard))


def main() -> None:
    order = json.loads(sys.stdin.read())
    bound_memory()
    torch.set_num_threads(order["threads"])
    torch.set_float32_matmul_precision(order["matmul_precision"])
    function = getattr(importlib.import_module(order["module"]), order["name"])
    print(json.dumps(function(**order["arguments"])))
