"""A long run: thousands of training steps over random lengths, watched from outside.

Memory, file handles and threads of `beamtree train` must be as many at the end as after the first fifth.
"""

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from tools.trust import Tally
from tools.trust.jobs import Child, import_everything

SHORT = {"steps": 400, "growth": 64 << 20}
GROWTH = 8 << 20  # bytes that count as flat

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


@dataclass(frozen=True)
class Sample:
    """What the system says of a process at one moment."""

    seconds: float
    steps: int
    memory: int  # bytes resident
    handles: int
    threads: int

    def __str__(self) -> str:
        return (
            f"{self.seconds:6.0f} s  step {self.steps:6,}  {self.memory / 2**20:7.1f} MiB  "
            f"{self.handles} handles  {self.threads} threads"
        )


def run(folder: Path, *, steps: int = 20_000, growth: int = GROWTH, seed: int = 0) -> list[Tally]:
    import_everything()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text(RECIPE)
    arguments = ("train", f"{folder}/recipe.toml", "--out", f"{folder}/run", "--max-steps", str(steps))
    child = Child((*arguments, "--set", f"training.seed={seed}"), folder / "log.txt")
    samples = _watch(child.pid, folder / "run")
    status = child.wait()
    ended = Tally(f"training, {steps:,} steps")
    ended.note(status == 0, f"exit {status}: {child.said()[-400:]}")
    tallies = [ended, *_judge(samples, growth)]
    print(*tallies, sep="\n", flush=True)
    return tallies


def _watch(pid: int, run: Path) -> list[Sample]:
    """Samples until the process ends."""
    began, samples, shown = time.monotonic(), [], 0.0
    while (found := _look(pid, time.monotonic() - began, run)) is not None:
        samples.append(found)
        if found.seconds >= shown:
            print(found, flush=True)
            shown = found.seconds + 30
        time.sleep(0.25)
    if samples:
        print(samples[-1], flush=True)
    return samples


def _look(pid: int, seconds: float, run: Path) -> Sample | None:
    process = Path(f"/proc/{pid}")
    try:
        state = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
        if "VmRSS" not in state:  # it has ended and waits to be noticed
            return None
        memory = int(state["VmRSS"].split()[0]) * 1024
        handles = len(list((process / "fd").iterdir()))
        metrics = run / "metrics.jsonl"
        epochs = metrics.read_text().count("\n") if metrics.exists() else 0
    except OSError:
        return None
    return Sample(seconds, epochs * 1000, memory, handles, int(state["Threads"]))


def _judge(samples: list[Sample], growth: int) -> list[Tally]:
    settled = samples[len(samples) // 5 :]
    half = len(settled) // 2
    early, late = settled[:half], settled[half:]
    memory = [max(sample.memory for sample in part) for part in (early, late)]
    grown = Tally(
        f"memory, peak of the first half {memory[0] / 2**20:.1f} MiB, of the second {memory[1] / 2**20:.1f}"
    )
    grown.note(memory[1] - memory[0] <= growth, f"grew by {(memory[1] - memory[0]) / 2**20:.1f} MiB")
    counts = []
    for name in ("handles", "threads"):
        # The median, because a file is open for a moment now and then.
        usual = [sorted(getattr(sample, name) for sample in part)[len(part) // 2] for part in (early, late)]
        counts.append(Tally(f"{name}, {usual[0]} in the first half, {usual[1]} in the second"))
        counts[-1].note(usual[1] <= usual[0], f"grew from {usual[0]} to {usual[1]}")
    return [grown, *counts]
