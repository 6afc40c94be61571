"""Crash safety: SIGKILL at random moments and at every write, flush and rename; full and read-only disks.

The points around writes, flushes and renames are numbered in the order in which a process reaches them, so
that the process can be killed at each in turn. Then the same command is run again and must end as if nothing
had happened.
"""

import io
import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from beamtree.classifier.model_folder import PRETRAINED
from tools.trust import RECIPE, Tally
from tools.trust.jobs import Child, training_outcome, warm_up

SHORT = {"moments": 1, "every": 100}
_EXPRESSIONS = ["[MAX 2 9 [MIN 4 7 ] 0 ]", "7", "[SM 1 2 ]", "not an expression", "[MED 1 2 3 4 5 ]"]


def run(folder: Path, *, moments: int = 50, every: int = 1, seed: int = 0) -> list[Tally]:
    """Run all trials; with `every` = n the process is killed only at every n-th point."""
    warm_up()
    workshop = Workshop(folder)
    tallies = []
    for job in workshop.jobs.values():
        tallies.append(kill_at_points(workshop, job, every))
        print(tallies[-1], flush=True)
    # With a checkpoint after every step, training spends most of its time writing files.
    saving_often = workshop.jobs["train"].with_options("--set", "training.checkpoint_minutes=0")
    tallies.append(kill_at_random_moments(workshop, saving_often, moments, seed))
    print(tallies[-1], flush=True)
    if may_mount(folder):
        free = [0, 4, 8, 16, 24, 32, 48, 64, 96, 128] if every == 1 else [0]
        tallies += [fill_the_disk(workshop, free), write_protect(workshop)]
        print(tallies[-2], tallies[-1], sep="\n", flush=True)
    else:
        print("full and read-only disks left out: this user may not mount a tmpfs", flush=True)
    return tallies


def file_contents(folder: Path) -> Any:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@dataclass(frozen=True)
class Job:
    """A command for a fresh folder; after a crash the same command finishes the work."""

    name: str
    arguments: tuple[str, ...]  # paths are relative to the folder
    outcome: Callable[[Path], Any] = file_contents  # equal if everything that matters is equal
    reads_run: bool = False

    def with_options(self, *options: str) -> "Job":
        return replace(self, arguments=(*self.arguments, *options))


def all_jobs(stage: Path) -> list[Job]:
    """All jobs; writes their input files to `stage`."""
    stage.mkdir(parents=True)
    recipe, lines = stage / "recipe.toml", stage / "lines.txt"
    recipe.write_text(RECIPE)
    lines.write_text("".join(f"{_EXPRESSIONS[i % 5]}\n" for i in range(40)))
    parse = ("parse", "listops-ebt-grc", "--file", str(lines), "--out", "out.jsonl", "--resume")
    return [
        Job("train", ("train", str(recipe), "--resume", "run"), training_outcome),
        Job("parse", parse),
        Job("data", ("data", "logic", "--pairs", "2500", "--out", "data", "--overwrite")),
        Job("eval --save", ("eval", "run", "--data", "test.tsv", "--save"), reads_run=True),
        Job("report", ("report", "run", "--out", "out"), reads_run=True),
    ]


def make_run(folder: Path) -> None:
    """Make a finished run from the package's trained model, and a file to evaluate it on."""
    shutil.copytree(PRETRAINED / "listops-ebt-grc", folder / "run" / "best")
    (folder / "run" / "recipe.toml").write_text("")
    record = {"epoch": 1, "step": 1, "train_loss": 1.0, "train_accuracy": 0.5, "dev_loss": 1.0}
    record |= {"dev_accuracy": 0.5, "learning_rate": 0.1, "best": True, "tokens_per_second": 1, "seconds": 1}
    (folder / "run" / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    (folder / "test.tsv").write_text("9\t[MAX 2 9 ]\n3\t[SM 1 2 ]\n4\t[MIN 4 7 ]\n")


class Points:
    """Counts the points that this process reaches and kills it at one of them."""

    def __init__(self, strike_at: int | None = None, log: Path | None = None) -> None:
        self.strike_at, self.reached = strike_at, 0
        self.log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND) if log is not None else None

    def reach(self, what: str) -> None:
        if self.log is not None:
            os.write(self.log, f"{what}\n".encode())
        if self.reached == self.strike_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.reached += 1

    def install(self) -> None:
        """Put points around the functions that beamtree's writers call."""
        for name in ("fsync", "replace"):
            setattr(os, name, self._around(name, getattr(os, name)))
        io.open = self._watching(io.open)  # os.fdopen and pathlib call it

    def _around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def struck(*arguments: Any) -> Any:
            self.reach(f"before {name}")
            result = function(*arguments)
            self.reach(f"after {name}")
            return result

        return struck

    def _watching(self, opener: Callable[..., Any]) -> Callable[..., Any]:
        def watched(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            opened = opener(file, mode, *arguments, **options)
            return WatchedFile(opened, self) if mode in ("wb", "a") else opened

        return watched


class WatchedFile:
    """A file with points around and inside each write."""

    def __init__(self, file: Any, points: Points) -> None:
        self._file, self._points = file, points

    def write(self, data: Any) -> int:
        half = len(data) // 2
        for what, part in (("before", data[:half]), ("inside", data[half:])):
            self._points.reach(f"{what} write")
            self._file.write(part)
            self._file.flush()
        self._points.reach("after write")
        return len(data)

    def writelines(self, lines: Iterable[Any]) -> None:
        pieces = list(lines)
        if pieces:
            self.write(type(pieces[0])().join(pieces))

    def __enter__(self) -> "WatchedFile":
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class Workshop:
    """Makes folders for trials, and the uninterrupted outcome of each job for comparison."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        self.jobs = {job.name: job for job in all_jobs(folder / "stage")}
        self._trials = 0

    def start(self, job: Job, place: Path, prepare: Callable[[], None] = lambda: None) -> Child:
        def begin() -> None:
            os.chdir(place)
            prepare()

        return Child(job.arguments, self.folder / "log.txt", begin)

    def fresh_place(self, job: Job, under: Path | None = None) -> Path:
        self._trials += 1
        place = (under or self.folder) / f"trial{self._trials}"
        place.mkdir()
        if job.reads_run:
            make_run(place)
        return place

    def uninterrupted(self, job: Job) -> tuple[Any, float, list[str]]:
        """Run a job undisturbed; returns its outcome, its seconds and the names of its points."""
        began = time.monotonic()
        outcome = self._run_whole(job)
        seconds = time.monotonic() - began
        log = self.folder / "points.txt"
        log.unlink(missing_ok=True)
        if self._run_whole(job, lambda: Points(log=log).install()) != outcome:
            raise RuntimeError(f"{job.name} gives two different outcomes in uninterrupted runs")
        return outcome, seconds, log.read_text().splitlines()

    def _run_whole(self, job: Job, prepare: Callable[[], None] = lambda: None) -> Any:
        place = self.fresh_place(job)
        child = self.start(job, place, prepare)
        if child.wait() != 0:
            raise RuntimeError(f"{job.name} fails without an interruption: {child.said()}")
        outcome = job.outcome(place)
        shutil.rmtree(place)
        return outcome

    def finish(self, job: Job, place: Path, outcome: Any) -> str | None:
        """Run the job again in its folder; returns what is wrong with the outcome, or None."""
        child = self.start(job, place)
        status = child.wait()
        if status != 0:
            return f"exit {status}: {child.said()[-500:]}"
        wrong = None if job.outcome(place) == outcome else "a different outcome"
        shutil.rmtree(place)
        return wrong


def kill_at_random_moments(workshop: Workshop, job: Job, times: int, seed: int) -> Tally:
    outcome, seconds, _ = workshop.uninterrupted(job)
    tally, draw = Tally(f"{job.name}, SIGKILL at a random moment"), random.Random(seed)
    while tally.tried < times:
        place, moment = workshop.fresh_place(job), draw.uniform(0, seconds)
        child = workshop.start(job, place)
        time.sleep(moment)
        child.kill()
        if child.wait() == 0:  # it finished before it was killed
            shutil.rmtree(place)
            continue
        wrong = workshop.finish(job, place, outcome)
        tally.note(wrong is None, f"after {moment:.3f} s: {wrong}")
    return tally


def kill_at_points(workshop: Workshop, job: Job, every: int) -> Tally:
    outcome, _, points = workshop.uninterrupted(job)
    tally = Tally(f"{job.name}, SIGKILL at one of {len(points)} points around write, flush and rename")
    for point in range(0, len(points), every):
        place, strike = workshop.fresh_place(job), Points(strike_at=point).install
        status = workshop.start(job, place, strike).wait()
        if status != -signal.SIGKILL:
            tally.note(False, f"point {point} ({points[point]}) was not reached: exit {status}")
            continue
        wrong = workshop.finish(job, place, outcome)
        tally.note(wrong is None, f"point {point} ({points[point]}): {wrong}")
    return tally


def fill_the_disk(workshop: Workshop, free_kib: list[int]) -> Tally:
    """Resume a run on a nearly full disk: it must say so in one line, and finish once there is room."""
    job = workshop.jobs["train"]
    outcome = workshop.uninterrupted(job)[0]
    tally = Tally("train on a full disk (tmpfs)")
    disk = workshop.folder / "disk"
    for free in free_kib:
        with temporary_disk(disk, "size=4m"):
            place = workshop.fresh_place(job, disk)
            begun = workshop.start(job.with_options("--max-steps", "7"), place).wait()
            filler, found = disk / "filler", os.statvfs(disk)
            filler.write_bytes(bytes(max(0, found.f_bavail * found.f_frsize - free * 1024)))
            child = workshop.start(job, place)
            status, said = child.wait(), child.said()
            filler.unlink()
            lines = [line for line in said.splitlines() if line.startswith("beamtree: ")]
            told = len(lines) == 1 and "No space left on device" in lines[0] and "Trace" not in said
            clear = status == 0 or (status == 2 and told)  # if only a little is missing, a run may succeed
            tally.note(begun == 0 and clear, f"{free} KiB free: exit {status}: {said[-900:]}")
            wrong = workshop.finish(job, place, outcome)
            tally.note(wrong is None, f"{free} KiB free, then enough room: {wrong}")
    return tally


def write_protect(workshop: Workshop) -> Tally:
    """Run every command on a disk that is now read-only: it must print one line and change nothing."""
    tally = Tally("commands on a read-only disk (tmpfs)")
    disk = workshop.folder / "disk"
    for job in workshop.jobs.values():
        with temporary_disk(disk, "size=16m"):
            place = workshop.fresh_place(job, disk)
            if job.name == "train":
                workshop.start(job.with_options("--max-steps", "7"), place).wait()
            before = file_contents(disk)
            subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
            child = workshop.start(job, place)
            status, said = child.wait(), child.said()
            clear = status == 2 and "ead-only" in said and "Traceback" not in said
            tally.note(clear and before == file_contents(disk), f"{job.name}: exit {status}: {said[-600:]}")
    return tally


@contextmanager
def temporary_disk(path: Path, options: str) -> Iterator[None]:
    path.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(path)], check=True)


def may_mount(folder: Path) -> bool:
    """Return True if this user may mount a small disk for the trials with full and read-only disks."""
    try:
        with temporary_disk(folder / "probe", "size=1m"):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False
