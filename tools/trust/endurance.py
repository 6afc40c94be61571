"""Endurance: thousands of training steps over random lengths, watched from another process.

`beamtree train` must need no more memory, file handles and threads at the end than after the first fifth.
"""

import shutil
import time
from pathlib import Path
from statistics import median_low
from typing import NamedTuple

from tools.trust import Tally
from tools.trust.jobs import Child, warm_up

SHORT = {"steps": 400, "growth": 64 << 20}
GROWTH = 8 << 20  # bytes; less growth than this counts as none

RECIPE = """
[task]
sampled = { train = 4000, dev = 40, max_length = 60 }
[model]
encoder = "ebt-grc"
d_model = 16
embedding_size = 16
classifier_hidden = 16
options = { beam_size = 3 }
[training]
batch_size = 4
max_epochs = 1000
patience = 1000
checkpoint_minutes = 0.2
"""


class Sample(NamedTuple):
    """The resources of a process at one moment."""

    memory: int  # bytes resident
    handles: int
    threads: int


def run(folder: Path, *, steps: int = 20_000, growth: int = GROWTH, seed: int = 0) -> list[Tally]:
    warm_up()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text(RECIPE)
    arguments = ("train", f"{folder}/recipe.toml", "--out", f"{folder}/run", "--max-steps", str(steps))
    child = Child((*arguments, "--set", f"training.seed={seed}"), folder / "log.txt")
    samples = []
    while (found := look(child.pid)) is not None:
        samples.append(found)
        time.sleep(0.25)
    status = child.wait()
    ended = Tally(f"training, {steps:,} steps")
    ended.note(status == 0, f"exit {status}: {child.said()[-400:]}")
    tallies = [ended, *judge(samples, growth)]
    print(*tallies, sep="\n", flush=True)
    return tallies


def look(pid: int) -> Sample | None:
    process = Path(f"/proc/{pid}")
    try:
        state = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
        if "VmRSS" not in state:  # a zombie: it has ended, but its parent has not waited for it yet
            return None
        handles = len(list((process / "fd").iterdir()))
    except OSError:
        return None
    return Sample(int(state["VmRSS"].split()[0]) * 1024, handles, int(state["Threads"]))


def judge(samples: list[Sample], growth: int) -> list[Tally]:
    settled = samples[len(samples) // 5 :]
    halves = settled[: len(settled) // 2], settled[len(settled) // 2 :]
    early, late = (max(sample.memory for sample in half) for half in halves)
    tallies = [
        Tally(f"memory, peak of the first half {early / 2**20:.1f} MiB, of the second {late / 2**20:.1f}")
    ]
    tallies[0].note(late - early <= growth, f"grew by {(late - early) / 2**20:.1f} MiB")
    for name in ("handles", "threads"):
        # The median, because files are briefly open now and then.
        early, late = (median_low([getattr(sample, name) for sample in half]) for half in halves)
        tallies.append(Tally(f"{name}, {early} in the first half, {late} in the second"))
        tallies[-1].note(late <= early, f"grew from {early} to {late}")
    return tallies
