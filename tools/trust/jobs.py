"""Runs commands in processes that may be killed; they are forked, so torch is imported only once."""

import json
import os
import sys
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.utils.tensorboard
from accelerate import Accelerator

import beamtree.paper.report
import beamtree.training.evaluate
import beamtree.training.fit  # noqa: F401
from beamtree.cli import main
from beamtree.files.tensors import load_tensors


class Child:
    """A running `beamtree ARGUMENTS`; `prepare` runs first in the new process."""

    def __init__(
        self, arguments: Sequence[str], log: Path, prepare: Callable[[], None] = lambda: None
    ) -> None:
        self.log = log
        self._process = get_context("fork").Process(target=_run, args=(arguments, log, prepare))
        self._process.start()
        self.pid = self._process.pid or 0

    def kill(self) -> None:
        self._process.kill()

    def wait(self, timeout: float = 120.0) -> int:
        """Wait for the exit status, the negative signal number if a signal ended the process."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            self.kill()
            raise TimeoutError(f"still running after {timeout:.0f} s: {self.log}")
        return self._process.exitcode

    def said(self) -> str:
        return self.log.read_text(errors="replace")


def _run(arguments: Sequence[str], log: Path, prepare: Callable[[], None]) -> None:
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    prepare()
    sys.argv = ["beamtree", *arguments]
    main()


def warm_up() -> None:
    """Do slow imports before the first fork, so that no child repeats them."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(False)  # imports torch's compiler
    Accelerator(cpu=True)


def metrics(run: Path) -> list[dict[str, Any]]:
    """Metrics of a run, without those that depend on time."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        {k: v for k, v in record.items() if k not in ("seconds", "tokens_per_second")} for record in records
    ]


def training_outcome(folder: Path) -> Any:
    """Metrics, every weight of best/ and last/ as bytes, and partial files, of which there should be none."""
    weights = {}
    for name in ("best", "last"):
        tensors, _ = load_tensors(folder / "run" / name / "model.safetensors")
        weights[name] = {key: tensor.numpy().tobytes() for key, tensor in tensors.items()}
    return metrics(folder / "run"), weights, sorted(map(str, folder.rglob(".*.part")))
