"""Carries out a contest, in one process or in as many as one starts with the same command.

Each takes the next run that has not ended and that no other process trains. A run that was interrupted goes
on from its checkpoint; of one that has ended recipe, metrics, outcome and the best model stay, which is
tested again where test files were added or changed.
"""

import hashlib
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console

from beamtree.classifier.classifier import Classifier
from beamtree.classifier.model import check_model, parameters_of
from beamtree.classifier.model_folder import load_model
from beamtree.compare.contest import TRAINING, Contest, Entry, plan, recipe_for, trials_of
from beamtree.compare.outcome import Measured, Outcome, choose_rate, read_outcome
from beamtree.data.task import Example
from beamtree.errors import BeamtreeError, nearest
from beamtree.paper.speed.measure import PeakMemory, forget_peak
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
    """As in training, with the run's name and without a line for every epoch."""

    def __init__(self, name: str) -> None:
        super().__init__(Console())
        self.name = name

    def begin_epoch(self, epoch: int, max_epochs: int, steps: int, done: int) -> None:
        super().begin_epoch(epoch, max_epochs, steps, done)
        if self._task is not None:
            self._bar.update(self._task, description=f"{self.name}, epoch {epoch}/{max_epochs}")

    def end_epoch(self, record: Mapping[str, Any], max_epochs: int) -> None:
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

    def run(self, stopping: Stopping, only: Sequence[str] = ()) -> bool:
        """Do all that is left, or the runs named; whether all of it has ended."""
        names = [entry.name for entry in self.entries]
        for name in only:
            if name not in names:
                raise BeamtreeError(f"the plan has no run {name!r}{nearest(name, names)}")
        entries = [entry for entry in self.entries if not only or entry.name in only]
        self._check(entries)
        # Before anything is learnt: a row that cannot be read is said now.
        most = self.contest.most_test
        self._read = {source.name: list(islice(source.read(), most)) for source in self.tests}
        self._read[TRAINING] = draw_some(self.data.train, self.contest.measured_of_train)
        while left := [entry for entry in entries if read_outcome(self.out / entry.name) is None]:
            if stopping.reason is not None:
                return False
            place = f"run {len(entries) - len(left) + 1} of {len(entries)}"
            if not any(self._take(entry, stopping, place) for entry in left):
                self._check_trials(left, entries)
                time.sleep(_LOOK_SECONDS)  # others are at work on what is left, or on what that waits for
        for entry in entries:
            self._test_again(entry)
        return True

    def _check(self, entries: Sequence[Entry]) -> None:
        """Refuse encoders that cannot be trained, and a folder in which a run was begun by other rules."""
        sizes = {}
        for entry in {entry.model: entry for entry in entries}.values():
            settings = self._recipe(entry, self.contest.rates[0]).model
            check_model(settings, self.data.task, self.data.words)
            sizes[entry.model] = parameters_of(settings, self.data.task, self.data.words)
        for entry in entries:
            folder = RunFolder(self.out / entry.name)
            if folder.begun:
                begun = load_recipe(folder.recipe_file)
                wanted = self._recipe(entry, begun.training.learning_rate)
                if begun != wanted or (entry.trial or begun.training.learning_rate) not in self.contest.rates:
                    raise BeamtreeError(
                        f"{folder.path} was begun with other settings: name another folder with --out"
                    )
                ended = read_outcome(folder.path)
                if ended is not None and ended.parameters not in (0, sizes[entry.model]):
                    raise BeamtreeError(
                        f"{folder.path} is of a {entry.model} with {ended.parameters:,} parameters, and now "
                        f"it has {sizes[entry.model]:,}: give it another name, or another folder with --out"
                    )

    def _check_trials(self, left: Sequence[Entry], entries: Sequence[Entry]) -> None:
        """Refuse to wait for trials that nobody has begun."""
        for entry in left:
            for trial in () if entry.trial is not None else trials_of(self.contest, entry.model):
                if trial not in entries and not RunFolder(self.out / trial.name).begun:
                    raise BeamtreeError(
                        f"{entry.name} needs its learning rate: do the run {trial.name} before"
                    )

    def _take(self, entry: Entry, stopping: Stopping, place: str) -> bool:
        """Do a run if it can be done now; whether it was."""
        rate = self._rate(entry)
        if rate is None:
            return False
        folder = RunFolder(self.out / entry.name)
        with suppress(TakenError), folder.held():
            if read_outcome(folder.path) is None:
                self.say(f"{place}: {entry.name}")
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
        device = self.accelerator.device
        forget_peak()
        peak = PeakMemory(device)
        try:
            outcome = fit(
                recipe,
                folder,
                self.data,
                accelerator=self.accelerator,
                stopping=stopping,
                display=_Bar(entry.name),
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
            model = load_model(folder.best, device=device)
            parameters = sum(weight.numel() for weight in model.parameters())
            splits = {} if entry.trial is not None else self._measure(model, self._read)
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
            device=torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
            splits=splits,
        )
        found.write(folder.path)
        gone = [folder.last, folder.checkpoint_file.parent, folder.tensorboard]
        for part in gone if entry.trial is None else [*gone, folder.best]:
            shutil.rmtree(part, ignore_errors=True)
        self.say(
            f"{entry.name}: dev accuracy {found.dev_accuracy:.1%} after {found.epochs} epochs, "
            f"{found.minutes:.1f} minutes"
        )

    def _measure(self, model: Classifier, wanted: Mapping[str, Sequence[Example]]) -> dict[str, Measured]:
        return {
            name: Measured.of(evaluate(model, name, examples), digest(examples))
            for name, examples in wanted.items()
        }

    def _test_again(self, entry: Entry) -> None:
        """Test an ended run on files that were named or changed since."""
        folder = RunFolder(self.out / entry.name)
        ended = read_outcome(folder.path)
        if ended is None or not ended.splits:  # a trial, or it diverged
            return
        tested = {name: split.digest for name, split in ended.splits.items()}
        wanted = {
            name: examples
            for name, examples in self._read.items()
            if tested.get(name, "never") not in ("", digest(examples))
        }
        if not wanted:
            return
        if not folder.best.is_dir():
            raise BeamtreeError(
                f"{entry.name} was not tested on {', '.join(wanted)} as it is now, and its weights are gone: "
                f"delete {folder.path} to do it again, or name another folder with --out"
            )
        with suppress(TakenError), folder.held():
            model = load_model(folder.best, device=self.accelerator.device)
            replace(ended, splits=ended.splits | self._measure(model, wanted)).write(folder.path)


def digest(examples: Sequence[Example]) -> str:
    """Of their texts and labels, in their order."""
    made = hashlib.blake2b(digest_size=16)
    for example in examples:
        made.update(repr((example.sentences, example.label)).encode())
    return made.hexdigest()


def draw_some(examples: Sequence[Example], most: int | None) -> list[Example]:
    """So many of them as if by chance, the same everywhere: files may have short ones first."""
    if most is None or len(examples) <= most:
        return list(examples)

    def digest(example: Example) -> bytes:
        text = "\n".join(" ".join(sentence) for sentence in example.sentences)
        return hashlib.blake2b(text.encode(), digest_size=16).digest()

    return sorted(examples, key=digest)[:most]
