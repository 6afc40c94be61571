"""Two processes: one of them killed, shares that are uneven or empty, an error that only one of them meets.

`torchrun` supervises; every run has a time limit, so a hang is a failure.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from beamtree.errors import BeamtreeError
from beamtree.files.tensors import load_tensors
from tools.trust import RECIPE, Tally
from tools.trust.jobs import metrics

SHORT = {"kills": 1, "most": 1}
LIMIT = 240  # seconds
QUIET = ["model.input_dropout=0", "model.dropout=0", "model.output_dropout=0", "model.encoder=recurrent-grc"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--monitor-interval=0.2"]


def run(folder: Path, *, kills: int = 6, most: int | None = None, seed: int = 0) -> list[Tally]:
    """All of it, or at `most` so many uneven shares and errors."""
    runs = Runs(folder)
    tallies = [
        kill_a_rank(runs, kills, random.Random(seed)),
        share_unevenly(runs, most),
        fail_alone(runs, most),
    ]
    print(*tallies, sep="\n", flush=True)
    return tallies


@dataclass(frozen=True)
class Ended:
    status: int
    said: str
    seconds: float

    @property
    def shortly(self) -> str:
        """Its first words, where the cause is, and its last, where the supervisor sums up."""
        return self.said if len(self.said) < 2500 else f"{self.said[:1500]}\n[...]\n{self.said[-900:]}"


class Runs:
    """Training runs in folders of their own."""

    def __init__(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.folder, self.number = folder, 0
        (folder / "recipe.toml").write_text(RECIPE)

    def fresh(self) -> Path:
        self.number += 1
        return self.folder / f"run{self.number}"

    def train(
        self,
        out: Path,
        changes: Sequence[str],
        launcher: Sequence[str] = TORCHRUN,
        meanwhile: Callable[[int], None] = lambda pid: None,
    ) -> Ended:
        """By two processes, or by one without a launcher."""
        settings = [word for change in changes for word in ("--set", change)]
        train = ["-m", "beamtree.cli", "train", f"{self.folder}/recipe.toml", "--resume", str(out), *settings]
        began, log = time.monotonic(), self.folder / "log.txt"
        with log.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, *launcher, *train],
                stdout=file,
                stderr=file,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
            try:
                meanwhile(process.pid)
                status = process.wait(timeout=LIMIT)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                status = process.wait()
        return Ended(status, log.read_text(), time.monotonic() - began)


def kill_a_rank(runs: Runs, kills: int, draw: random.Random) -> Tally:
    """With torchrun's restarts the run resumes by itself and ends as one that nothing happened to."""
    tally = Tally("one of two ranks killed, restarted by torchrun")
    saving = ["training.checkpoint_minutes=0", "training.max_epochs=6"]
    whole = runs.fresh()
    undisturbed = runs.train(whole, saving)
    if undisturbed.status != 0:
        tally.note(False, f"fails undisturbed: {undisturbed.shortly}")
        return tally
    while tally.tried < kills:
        out, victim, steps = runs.fresh(), draw.randrange(2), draw.randint(1, 12)

        def kill(launcher: int, out: Path = out, victim: int = victim, steps: int = steps) -> None:
            until = time.monotonic() + LIMIT / 2
            while time.monotonic() < until and _steps_saved(out) < steps:
                time.sleep(0.005)
            for pid in _children(launcher):
                if f"LOCAL_RANK={victim}\0" in Path(f"/proc/{pid}/environ").read_text():
                    os.kill(pid, signal.SIGKILL)

        ended = runs.train(out, saving, [*TORCHRUN, "--max-restarts=2"], kill)
        begun = ended.said.count("ebt-grc on listops")
        if ended.status == 0 and begun == 1:  # it was over before it was struck
            continue
        right = ended.status == 0 and begun == 2 and metrics(out) == metrics(whole)
        tally.note(right, f"rank {victim} after {steps} steps: exit {ended.status}: {ended.shortly}")
    return tally


def share_unevenly(runs: Runs, most: int | None) -> Tally:
    """Batches that do not divide by two, one-token expressions, more ranks than examples: as one process."""
    tally = Tally("uneven, one-token and empty shares")
    cases = {
        "batches of one, so that rank 1 never has data": "training.batch_size=1 training.micro_batch_size=0",
        "a last batch of one": "task.sampled.train=41 training.batch_size=8 training.micro_batch_size=0",
        "one-token expressions for a rank": "task.sampled.min_length=1 task.sampled.train=30",
        "a dev split of one": "task.sampled.dev=1",
    }
    for name, changes in islice(cases.items(), most):
        one, two = runs.fresh(), runs.fresh()
        settings = [*QUIET, "training.max_epochs=1", *changes.split()]
        alone, together = runs.train(one, settings, launcher=()), runs.train(two, settings)
        if alone.status or together.status:
            tally.note(False, f"{name}: exits {alone.status}, {together.status}: {together.shortly}")
            continue
        pairs = zip(metrics(one), metrics(two), strict=True)
        worst = max(abs(a["train_loss"] - b["train_loss"]) for a, b in pairs)
        tally.note(worst < 1e-5, f"{name}: the losses differ by {worst}")
    return tally


def fail_alone(runs: Runs, most: int | None) -> Tally:
    """What only one rank meets ends both within seconds, with one message."""
    tally = Tally("a user's error in one rank")
    taken, broken = runs.fresh(), runs.fresh()
    taken.mkdir()
    (taken / "thesis.txt").write_text("years of work")
    runs.train(broken, ["training.max_epochs=1"], launcher=())
    (broken / "checkpoint" / "state.safetensors").write_bytes(b"damaged")
    cases = {
        "only rank 0 looks: the folder holds something else": (taken, [], "is not a run folder"),
        "both ranks: a setting that is none": (runs.fresh(), ["training.sead=1"], "no setting"),
        "both ranks: a damaged checkpoint": (broken, ["training.max_epochs=1"], "state.safetensors"),
    }
    for name, (out, changes, wanted) in islice(cases.items(), most):
        ended = runs.train(out, changes)
        lines = [line for line in ended.said.splitlines() if "beamtree: " in line]
        traced = [line for line in ended.said.splitlines() if 'File "' in line and "beamtree/" in line]
        clear = len(lines) == 1 and wanted in lines[0] and not traced  # torchrun's own trace is its own
        tally.note(ended.status != 0 and clear and ended.seconds < 120, f"{name}: {ended.shortly}")
    return tally


def _steps_saved(out: Path) -> int:
    try:
        _, notes = load_tensors(out / "checkpoint" / "state.safetensors")
    except BeamtreeError:
        return 0
    steps: int = notes["position"]["total_steps"]
    return steps


def _children(launcher: int) -> list[int]:
    listed = Path(f"/proc/{launcher}/task/{launcher}/children")
    return list(map(int, listed.read_text().split()))
