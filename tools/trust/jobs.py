"""Commands under trial: each in a process of its own that may be killed, forked so that torch is imported
once; and those that write, small enough to be interrupted hundreds of times.
"""

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RECIPE = """
[task]
sampled = { train = 40, dev = 12, max_length = 12 }
[model]
encoder = "ebt-grc"
d_model = 8
embedding_size = 6
classifier_hidden = 8
options = { beam_size = 2 }
[training]
batch_size = 8
micro_batch_size = 4
max_epochs = 3
patience = 10
plateau_patience = 0
learning_rate = 0.2
selection = "accuracy"
"""
_EXPRESSIONS = ["[MAX 2 9 [MIN 4 7 ] 0 ]", "7", "[SM 1 2 ]", "not an expression", "[MED 1 2 3 4 5 ]"]


@dataclass(frozen=True)
class Job:
    """A command for an empty folder, which repeated as it stands finishes what a crash interrupted."""

    name: str
    arguments: tuple[str, ...]  # paths are relative to the folder
    outcome: Callable[[Path], Any]  # equal where everything that matters is equal
    prepare: Callable[[Path], None]


def all_jobs(stage: Path) -> list[Job]:
    """The jobs; `stage` gets what they read."""
    stage.mkdir(parents=True, exist_ok=True)
    (stage / "recipe.toml").write_text(RECIPE)
    (stage / "lines.txt").write_text("".join(f"{_EXPRESSIONS[i % 5]}\n" for i in range(40)))
    return [
        Job("train", ("train", f"{stage}/recipe.toml", "--resume", "run"), training_outcome, _no),
        Job(
            "parse",
            ("parse", "listops-ebt-grc", "--file", f"{stage}/lines.txt", "--out", "out.jsonl", "--resume"),
            file_contents,
            _no,
        ),
        Job("data", ("data", "logic", "--pairs", "2500", "--out", "data", "--overwrite"), file_contents, _no),
        Job("eval --save", ("eval", "run", "--data", "test.tsv", "--save"), file_contents, _copy_run),
        Job("report", ("report", "run", "--out", "out"), file_contents, _copy_run),
    ]


def _no(folder: Path) -> None:
    """Nothing has to be there."""


def _copy_run(folder: Path) -> None:
    """A finished run: that of the trained model which ships with the package."""
    from beamtree.classifier.model_folder import PRETRAINED

    shipped = PRETRAINED / "listops-ebt-grc"
    shutil.copytree(shipped, folder / "run" / "best")
    (folder / "run" / "recipe.toml").write_text("")
    record = {"epoch": 1, "step": 1, "train_loss": 1.0, "train_accuracy": 0.5, "dev_loss": 1.0}
    record |= {"dev_accuracy": 0.5, "learning_rate": 0.1, "best": True, "tokens_per_second": 1, "seconds": 1}
    (folder / "run" / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    (folder / "test.tsv").write_text("9\t[MAX 2 9 ]\n3\t[SM 1 2 ]\n4\t[MIN 4 7 ]\n")


def training_outcome(folder: Path) -> Any:
    """Metrics without what a clock decides, and every weight of best/ and last/, bit for bit."""
    from beamtree.files.tensors import load_tensors

    records = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    for record in records:
        del record["seconds"], record["tokens_per_second"]
    weights = {}
    for name in ("best", "last"):
        tensors, _ = load_tensors(folder / "run" / name / "model.safetensors")
        weights[name] = {key: tensor.numpy().tobytes() for key, tensor in tensors.items()}
    return records, weights, leftovers(folder)


def file_contents(folder: Path) -> Any:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def leftovers(folder: Path) -> list[str]:
    """Part files that should be gone."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob(".*.part"))


class Child:
    """`beamtree ARGUMENTS` under way; `prepare` runs in the new process first."""

    def __init__(
        self, arguments: Sequence[str], log: Path, prepare: Callable[[], None] = lambda: None
    ) -> None:
        sys.stdout.flush()
        self.log = log
        self.pid = os.fork()
        if self.pid == 0:
            _run(arguments, log, prepare)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float = 120.0) -> int:
        """The exit status, minus the signal's number if one ended it."""
        for _ in range(int(timeout / 0.002)):
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.002)
        self.kill()
        os.waitpid(self.pid, 0)
        raise TimeoutError(f"still running after {timeout:.0f} s: {self.log}")

    def said(self) -> str:
        return self.log.read_text(errors="replace")


def _run(arguments: Sequence[str], log: Path, prepare: Callable[[], None]) -> None:
    status = 70
    try:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        prepare()
        from beamtree.cli import main

        sys.argv = ["beamtree", *arguments]
        main()
        status = 0
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def import_everything() -> None:
    """Once, before the first fork, so that no child pays for it."""
    import torch
    import torch.utils.tensorboard
    from accelerate import Accelerator

    import beamtree.cli
    import beamtree.paper.report
    import beamtree.training.evaluate
    import beamtree.training.fit  # noqa: F401

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(False)  # imports torch's compiler
    Accelerator(cpu=True)
