"""Kills one of two processes: torchrun restarts them, and the run must end like an undisturbed one.

Every run has a time limit, so a hang is a failure. Other tests of several processes are in tests/processes.
"""

import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from beamtree.errors import BeamtreeError
from beamtree.files.tensors import load_tensors
from tools.trust import RECIPE, Tally
from tools.trust.jobs import metrics

SHORT = {"kills": 1}
LIMIT = 240  # seconds


def run(folder: Path, *, kills: int = 6, seed: int = 0) -> list[Tally]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text(RECIPE)
    tally, draw = Tally("one of two ranks killed, restarted by torchrun"), random.Random(seed)
    whole = folder / "whole"
    status, said = train(whole)
    if status != 0:
        tally.note(False, f"fails without a kill: {said[-2500:]}")
        return [tally]
    for number in itertools.count():
        out, victim, steps = folder / f"run{number}", draw.randrange(2), draw.randint(1, 12)
        status, said = train(out, partial(kill_rank, victim=victim, out=out, steps=steps))
        begun = said.count("ebt-grc on listops")
        if status == 0 and begun == 1:  # it finished before it was killed
            continue
        right = status == 0 and begun == 2 and metrics(out) == metrics(whole)
        tally.note(right, f"rank {victim} after {steps} steps: exit {status}: {said[-2500:]}")
        if tally.tried == kills:
            break
    print(tally, flush=True)
    return [tally]


def train(out: Path, meanwhile: Callable[[int], None] = lambda pid: None) -> tuple[int, str]:
    """Train with two processes; returns the exit status of their launcher and the output of all of them."""
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=2"]
    command = ["beamtree.cli", "train", str(out.with_name("recipe.toml")), "--resume", str(out)]
    command += ["--set", "training.checkpoint_minutes=0", "--set", "training.max_epochs=6"]
    log = out.with_suffix(".log")
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", *launcher, "--monitor-interval=0.2", "-m", *command],
            stdout=file,
            stderr=file,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        try:
            meanwhile(process.pid)
            process.wait(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
    return process.wait(), log.read_text()


def kill_rank(launcher: int, victim: int, out: Path, steps: int) -> None:
    """Kill one of the launcher's processes once this many steps are saved."""
    until = time.monotonic() + LIMIT / 2
    while time.monotonic() < until and _steps_saved(out) < steps:
        time.sleep(0.005)
    for pid in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        if f"LOCAL_RANK={victim}\0" in Path(f"/proc/{pid}/environ").read_text():
            os.kill(int(pid), signal.SIGKILL)


def _steps_saved(out: Path) -> int:
    try:
        _, notes = load_tensors(out / "checkpoint" / "state.safetensors")
    except BeamtreeError:
        return 0
    steps: int = notes["position"]["total_steps"]
    return steps
