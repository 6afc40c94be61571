"""A function in a fresh Python process of bounded memory: running out of it ends that process only."""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch

from beamtree.errors import BeamtreeError

OUT_OF_MEMORY = "out of memory"
_MEMORY = Path("/proc/meminfo")
_SHARE_OF_FREE = 0.8  # others may want some before this process ends
_KILLED = -9  # what Linux does when memory runs out
_SIGNS = ("not enough memory", "can't allocate memory", "out of memory", "std::bad_alloc", "memoryerror")


def call_alone(function: Callable[..., Any], **arguments: Any) -> Any:
    """function(**arguments) in a process of its own, with this one's threads and precision.

    Arguments and result are what JSON can carry. MemoryError where the machine's free memory did not do.
    """
    order = {
        "module": function.__module__,
        "name": function.__name__,
        "arguments": arguments,
        "threads": torch.get_num_threads(),
        "matmul_precision": torch.get_float32_matmul_precision(),
    }
    command = [sys.executable, "-c", "from beamtree.processes.fresh import main; main()"]
    # The same beamtree there as here, installed or not.
    paths = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run(command, input=json.dumps(order), capture_output=True, text=True, env=environment)
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    if done.returncode == _KILLED or any(sign in done.stderr.lower() for sign in _SIGNS):
        raise MemoryError(f"not enough memory for {function.__name__}")
    reason = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
    raise BeamtreeError(f"measuring in a fresh process failed: {reason}")


class Result(Protocol):
    problem: str | None


@contextmanager
def noting_lack_of_memory(result: Result) -> Iterator[None]:
    """Running out of memory, as CUDA, the CPU's allocator or Python say it, is a result like others."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not any(sign in str(error).lower() for sign in _SIGNS):
            raise
        result.problem = OUT_OF_MEMORY


def bound_memory() -> None:
    """Let this process ask for most of what the machine has free and no more, where the system can tell."""
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
