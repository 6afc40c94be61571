"""Crash safety: SIGKILL at random moments and at every write, flush and rename; full and read-only disks.

Points around writes, flushes and renames are numbered in the order in which a process reaches them, so that
each can be struck in turn.
"""

import io
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tools.trust import Tally
from tools.trust.jobs import Child, Job, all_jobs, import_everything

SHORT = {"moments": 1, "every": 100}


class Points:
    """Counts the points of this process and strikes at one of them."""

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
        """Put points around what the writers of beamtree call."""
        for name in ("fsync", "replace"):
            setattr(os, name, self._around(name, getattr(os, name)))
        io.open = self._watching(io.open)  # which os.fdopen and pathlib call

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
    """A file whose writes are points."""

    def __init__(self, file: Any, points: Points) -> None:
        self._file, self._points = file, points

    def write(self, data: Any) -> int:
        half = len(data) // 2
        self._points.reach("before write")
        self._file.write(data[:half])
        self._file.flush()
        self._points.reach("inside write")
        self._file.write(data[half:])
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
    """Folders for trials, and the uninterrupted outcome of each job to compare with."""

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
        job.prepare(place)
        return place

    def uninterrupted(self, job: Job) -> tuple[Any, float, int, list[str]]:
        """The outcome, how long it took, how many points it has and what they are."""
        place = self.fresh_place(job)
        began = time.monotonic()
        child = self.start(job, place)
        if child.wait() != 0:
            raise RuntimeError(f"{job.name} fails uninterrupted: {child.said()}")
        seconds = time.monotonic() - began
        outcome = job.outcome(place)
        shutil.rmtree(place)
        place, log = self.fresh_place(job), self.folder / "points.txt"
        log.unlink(missing_ok=True)
        if self.start(job, place, lambda: Points(log=log).install()).wait() != 0:
            raise RuntimeError(f"{job.name} fails when watched")
        same = job.outcome(place) == outcome
        shutil.rmtree(place)
        if not same:
            raise RuntimeError(f"{job.name} does not give the same twice, uninterrupted")
        points = log.read_text().splitlines()
        return outcome, seconds, len(points), points

    def finish(self, job: Job, place: Path, outcome: Any) -> str | None:
        """Run the job again in its folder; what is wrong with the outcome, or None."""
        child = self.start(job, place)
        status = child.wait()
        if status != 0:
            return f"exit {status}: {child.said()[-500:]}"
        wrong = None if job.outcome(place) == outcome else "another outcome"
        shutil.rmtree(place)
        return wrong


def kill_at_random_moments(workshop: Workshop, job: Job, times: int, seed: int) -> Tally:
    outcome, seconds, _, _ = workshop.uninterrupted(job)
    tally, draw = Tally(f"{job.name}, SIGKILL at a random moment"), random.Random(seed)
    while tally.tried < times:
        place, moment = workshop.fresh_place(job), draw.uniform(0, seconds)
        child = workshop.start(job, place)
        time.sleep(moment)
        child.kill()
        if child.wait() == 0:  # it was quicker this time
            shutil.rmtree(place)
            continue
        wrong = workshop.finish(job, place, outcome)
        tally.note(wrong is None, f"after {moment:.3f} s: {wrong}")
    return tally


def kill_at_points(workshop: Workshop, job: Job, every: int) -> Tally:
    outcome, _, count, points = workshop.uninterrupted(job)
    tally = Tally(f"{job.name}, SIGKILL at one of {count} points around write, flush and rename")
    for point in range(0, count, every):
        place = workshop.fresh_place(job)

        def strike(point: int = point) -> None:
            Points(strike_at=point).install()

        status = workshop.start(job, place, strike).wait()
        if status != -9:
            tally.note(False, f"point {point} ({points[point]}) was not reached: exit {status}")
            continue
        wrong = workshop.finish(job, place, outcome)
        tally.note(wrong is None, f"point {point} ({points[point]}): {wrong}")
    return tally


def fill_the_disk(workshop: Workshop, free_kib: list[int]) -> Tally:
    """A run goes on with so much room left; it says so in one line, and finishes when there is room again."""
    job = workshop.jobs["train"]
    outcome = workshop.uninterrupted(job)[0]
    tally = Tally("train on a full disk (tmpfs)")
    disk = workshop.folder / "disk"
    for free in free_kib:
        with _TemporaryDisk(disk, "size=4m"):
            place = workshop.fresh_place(job, disk)
            begun = workshop.start(_limited(job, 7), place).wait()
            filler = disk / "filler"
            _fill(filler, disk, free)
            child = workshop.start(job, place)
            status, said = child.wait(), child.said()
            filler.unlink()
            lines = [line for line in said.splitlines() if line.startswith("beamtree: ")]
            # With little missing a run may well come through.
            clear = status == 0 or (
                status == 2
                and len(lines) == 1
                and "No space left on device" in lines[0]
                and "Trace" not in said
            )
            tally.note(begun == 0 and clear, f"{free} KiB free: exit {status}: {said[-900:]}")
            wrong = workshop.finish(job, place, outcome)
            tally.note(wrong is None, f"{free} KiB free, then room: {wrong}")
    return tally


def write_protect(workshop: Workshop) -> Tally:
    """Every writing command in a folder that has become read-only: one line, nothing changed."""
    tally = Tally("commands on a read-only disk (tmpfs)")
    disk = workshop.folder / "disk"
    for job in workshop.jobs.values():
        with _TemporaryDisk(disk, "size=16m"):
            place = workshop.fresh_place(job, disk)
            if job.name == "train":
                workshop.start(_limited(job, 7), place).wait()
            before = {path: path.read_bytes() for path in disk.rglob("*") if path.is_file()}
            subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
            child = workshop.start(job, place)
            status, said = child.wait(), child.said()
            after = {path: path.read_bytes() for path in disk.rglob("*") if path.is_file()}
            clear = status == 2 and "ead-only" in said and "Traceback" not in said
            tally.note(clear and before == after, f"{job.name}: exit {status}: {said[-600:]}")
    return tally


def _saving_often(job: Job) -> Job:
    """With a checkpoint after every step: most of its time goes into files."""
    arguments = (*job.arguments, "--set", "training.checkpoint_minutes=0")
    return Job(job.name, arguments, job.outcome, job.prepare)


def _limited(job: Job, steps: int) -> Job:
    return Job(job.name, (*job.arguments, "--max-steps", str(steps)), job.outcome, job.prepare)


def _fill(filler: Path, disk: Path, free_kib: int) -> None:
    found = os.statvfs(disk)
    with filler.open("wb") as file:
        file.write(bytes(max(0, found.f_bavail * found.f_frsize - free_kib * 1024)))


class _TemporaryDisk:
    def __init__(self, path: Path, options: str) -> None:
        self.path, self.options = path, options

    def __enter__(self) -> None:
        self.path.mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", self.options, "tmpfs", str(self.path)], check=True)

    def __exit__(self, *exception: object) -> None:
        subprocess.run(["umount", str(self.path)], check=True)


def may_mount(folder: Path) -> bool:
    """Whether this user may make a small disk for the tests of full and read-only ones."""
    try:
        with _TemporaryDisk(folder / "probe", "size=1m"):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


def run(folder: Path, *, moments: int = 50, every: int = 1, seed: int = 0) -> list[Tally]:
    """All of it; `every` strikes at every so-manyth point only."""
    import_everything()
    workshop = Workshop(folder)
    tallies = []
    for job in workshop.jobs.values():
        tallies.append(kill_at_points(workshop, job, every))
        print(tallies[-1], flush=True)
    tallies.append(kill_at_random_moments(workshop, _saving_often(workshop.jobs["train"]), moments, seed))
    print(tallies[-1], flush=True)
    if may_mount(folder):
        free = [0, 4, 8, 16, 24, 32, 48, 64, 96, 128] if every == 1 else [0]
        tallies += [fill_the_disk(workshop, free), write_protect(workshop)]
        print(tallies[-2], tallies[-1], sep="\n", flush=True)
    else:
        print("full and read-only disks left out: this user may not mount a tmpfs", flush=True)
    return tallies
