"""Hostile files: whatever a model folder, recipe, checkpoint or run folder holds, the answer is one line.

Every case must either load or raise a BeamtreeError that names the file; nothing may hang, run code or take
more than a bounded amount of memory.
"""

import os
import random
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tools.trust import Tally
from tools.trust.kinds import BlockFolders, Checkpoints, Kind, ModelFolders, Recipes, RunFolders
from tools.trust.spoil import replant

SHORT = {"cases": 40}
SECONDS = 10  # that one case may take
MEMORY = 300 << 20  # bytes that the whole check may add


class _Late(BaseException):
    """A case that does not come to an end."""


def run(folder: Path, *, cases: int = 600, seed: int = 0) -> list[Tally]:
    os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] = "64"
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    draw = random.Random(seed)
    kinds = [kind(folder) for kind in (ModelFolders, BlockFolders, Checkpoints, Recipes, RunFolders)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    tallies = []
    with _bounded_memory():
        for kind in kinds:
            tallies.append(_fuzz(kind, draw, cases))
            print(f"{tallies[-1]}; {kind.loaded:,} loaded, {kind.refused:,} refused", flush=True)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    memory = Tally(f"peak memory added, {grown / 2**20:.0f} MiB")
    memory.note(grown < MEMORY, f"{grown:,} bytes")
    code = Tally("code in files was not run")
    code.note(not (folder / "executed").exists(), "a file named executed was made")
    print(memory, code, sep="\n", flush=True)
    return [*tallies, memory, code]


def _fuzz(kind: Kind, draw: random.Random, cases: int) -> Tally:
    from beamtree.errors import BeamtreeError
    from beamtree.printable import printable

    tally = Tally(f"fuzzed {kind.name}")
    replant(kind.good, kind.place)
    kind.load()
    for _ in range(cases):
        replant(kind.good, kind.place)
        what = kind.spoil(draw)
        problem = None
        try:
            with _limited_time():
                kind.load()
            kind.loaded += 1
        except BeamtreeError as error:
            kind.refused += 1
            text = str(error)
            if not any(name in text for name in (kind.place.name, *kind.good)):
                problem = f"names no file: {text[:300]}"
            elif printable(text) != text or len(text) > 1200:
                problem = f"is no one line that can be printed: {text[:300]!r}"
        except (Exception, _Late) as error:
            problem = f"{type(error).__name__}: {str(error)[:300]}"
        tally.note(problem is None, f"{what}: {problem}")
    return tally


@contextmanager
def _limited_time() -> Iterator[None]:
    def late(*_: object) -> None:
        raise _Late(f"no end after {SECONDS} s")

    before: Callable[..., Any] | Any = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _bounded_memory() -> Iterator[None]:
    """So that an absurd size fails here and does not bring the machine down."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
