"""Carries out a contest, in one process or in as many as one starts with the same command.

Each takes the next run that has not ended and that no other process trains. A run that was interrupted goes
on from its checkpoint; of one that has ended only recipe, metrics and outcome stay.
"""

import gc
import hashlib
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from rich.console import Console

from beamtree.classifier.classifier import Classifier
from beamtree.classifier.model_folder import load_model
from beamtree.compare.contest import TRAINING, Contest, Entry, plan, recipe_for, trials_of
from beamtree.compare.outcome import Measured, Outcome, choose_rate, read_outcome
from beamtree.data.task import Example
from beamtree.errors import BeamtreeError, nearest
from beamtree.paper.speed.measure import peak_resident
from beamtree.training.display import Display
from beamtree.training.evaluate import Source, evaluate
from beamtree.training.examples import LearningData
from beamtree.training.fit import fit
from beamtree.training.recipe import Recipe, load_recipe
from beamtree.training.run_folder import RunFolder, TakenError
from beamtree.training.schedule import Stopping

if TYPE_CHECKING:
    from accelerate import Accelerator

_LOOK_SECONDS = 2.0  # between looks at what other processes have ended
DIVERGED = "diverged"


class _Bar(Display):
    """The live line of a terminal without a line for every epoch."""

    def say(self, text: str) -> None:
        pass


class Work:
    """A contest in a folder, in this process."""

    def __init__(
        self,
        contest: Contest,
        models: Sequence[str],
        seeds: int,
        out: Path,
        data: LearningData,
        tests: Sequence[Source],
        accelerator: "Accelerator",
        say: Callable[[str], None],
    ) -> None:
        self.contest, self.out, self.say, self.accelerator = contest, out, say, accelerator
        self.entries = plan(contest, models, seeds)
        train, dev = draw_some(data.train, contest.most_train), draw_some(data.dev, contest.most_dev)
        self.data = replace(data, train=train, dev=dev)
        self.tests = tests
        self._read: dict[str, list[Example]] = {}

    def run(self, stopping: Stopping, only: Sequence[str] = ()) -> bool:
        """Do all that is left, or the runs named; whether all of it has ended."""
        names = [entry.name for entry in self.entries]
        for name in only:
            if name not in names:
                raise BeamtreeError(f"the plan has no run {name!r}{nearest(name, names)}")
        entries = [entry for entry in self.entries if not only or entry.name in only]
        self._check(entries)
        while left := [entry for entry in entries if read_outcome(self.out / entry.name) is None]:
            if stopping.reason is not None:
                return False
            if not any(self._take(entry, stopping) for entry in left):
                self._check_trials(left, entries)
                time.sleep(_LOOK_SECONDS)  # others are at work on what is left, or on what that waits for
        return True

    def _check(self, entries: Sequence[Entry]) -> None:
        """Refuse a folder in which a run was begun by other rules."""
        for entry in entries:
            folder = RunFolder(self.out / entry.name)
            if folder.begun:
                begun = load_recipe(folder.recipe_file)
                wanted = self._recipe(entry, begun.training.learning_rate)
                if begun != wanted or (entry.trial or begun.training.learning_rate) not in self.contest.rates:
                    raise BeamtreeError(
                        f"{folder.path} was begun with other settings: name another folder with --out"
                    )

    def _check_trials(self, left: Sequence[Entry], entries: Sequence[Entry]) -> None:
        """Refuse to wait for trials that nobody has begun."""
        for entry in left:
            for trial in () if entry.trial is not None else trials_of(self.contest, entry.model):
                if trial not in entries and not RunFolder(self.out / trial.name).begun:
                    raise BeamtreeError(
                        f"{entry.name} needs its learning rate: do the run {trial.name} before"
                    )

    def _take(self, entry: Entry, stopping: Stopping) -> bool:
        """Do a run if it can be done now; whether it was."""
        rate = self._rate(entry)
        if rate is None:
            return False
        folder = RunFolder(self.out / entry.name)
        with suppress(TakenError), folder.held():
            if read_outcome(folder.path) is None:
                self._do(entry, rate, folder, stopping)
            return True
        return False

    def _rate(self, entry: Entry) -> float | None:
        """The learning rate of a run; None while trials that decide about it have not ended."""
        if entry.trial is not None:
            return entry.trial
        trials = [read_outcome(self.out / trial.name) for trial in trials_of(self.contest, entry.model)]
        ended = [trial for trial in trials if trial is not None]
        if len(ended) < len(trials):
            return None
        return choose_rate(ended) if ended else self.contest.rates[0]

    def _recipe(self, entry: Entry, rate: float) -> Recipe:
        return recipe_for(self.contest, entry, rate, len(self.data.train))

    def _do(self, entry: Entry, rate: float, folder: RunFolder, stopping: Stopping) -> None:
        recipe = self._recipe(entry, rate)
        if not folder.begun:
            folder.begin(recipe)
        peak = _Peak(self.accelerator.device)
        try:
            outcome = fit(
                recipe,
                folder,
                self.data,
                accelerator=self.accelerator,
                stopping=stopping,
                display=_Bar(Console()),
            )
            finished, end, history = outcome.finished, outcome.reason, outcome.history
        except BeamtreeError:
            if not folder.failure_file.is_file():  # of a loss that is not finite
                raise
            finished, end, history = True, DIVERGED, folder.read_metrics()
        finally:
            self.accelerator.free_memory()
        if not finished:
            return
        peak_bytes = peak.bytes()
        best = next((record for record in reversed(history) if record["best"]), None)
        parameters, splits = 0, {}
        if best is not None:
            model = load_model(folder.best, device=self.accelerator.device)
            parameters = sum(weight.numel() for weight in model.parameters())
            splits = {} if entry.trial is not None else self._measure(model)
        found = Outcome(
            task=self.contest.task,
            model=entry.model,
            seed=entry.seed,
            trial=entry.trial is not None,
            learning_rate=rate,
            options=dict(recipe.model.options),
            parameters=parameters,
            epochs=len(history),
            steps=history[-1]["step"] if history else 0,
            best_epoch=best["epoch"] if best else 0,
            end=end,
            train_accuracy=best["train_accuracy"] if best else 0.0,
            dev_accuracy=best["dev_accuracy"] if best else 0.0,
            minutes=sum(record["seconds"] for record in history) / 60,
            peak_bytes=peak_bytes,
            device=peak.device_name,
            splits=splits,
        )
        found.write(folder.path)
        for part in (folder.best, folder.last, folder.checkpoint_file.parent, folder.tensorboard):
            shutil.rmtree(part, ignore_errors=True)
        self.say(
            f"{entry.name}: dev accuracy {found.dev_accuracy:.1%} after {found.epochs} epochs, "
            f"{found.minutes:.1f} minutes"
        )

    def _measure(self, model: Classifier) -> dict[str, Measured]:
        if not self._read:
            most = self.contest.most_test
            self._read = {source.name: list(islice(source.read(), most)) for source in self.tests}
            self._read[TRAINING] = draw_some(self.data.train, self.contest.measured_of_train)
        return {name: Measured.of(evaluate(model, name, examples)) for name, examples in self._read.items()}


def draw_some(examples: Sequence[Example], most: int | None) -> list[Example]:
    """So many of them as if by chance, the same everywhere: files may have short ones first."""
    if most is None or len(examples) <= most:
        return list(examples)

    def digest(example: Example) -> bytes:
        text = "\n".join(" ".join(sentence) for sentence in example.sentences)
        return hashlib.blake2b(text.encode(), digest_size=16).digest()

    return sorted(examples, key=digest)[:most]


class _Peak:
    """Bytes at the highest point of a run: allocated by PyTorch on a GPU, held by the process on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self.device, self._before = device, 0
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
            self._before = torch.cuda.memory_allocated(device)
        else:
            with suppress(OSError):  # Linux can forget a peak; elsewhere it is that of all runs so far
                Path("/proc/self/clear_refs").write_text("5")

    @property
    def device_name(self) -> str:
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "CPU"

    def bytes(self) -> int:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) - self._before
        return peak_resident()
