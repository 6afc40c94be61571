"""Carries out a contest, in one process or in several that were started with the same command.

Each process takes the next run that is unfinished and not being trained by another. An interrupted run
continues from its checkpoint. A finished run keeps recipe, metrics, outcome and, except in trials, the best
model, which is tested again if test files are added or changed.
"""

import hashlib
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from beamtree.classifier.classifier import Classifier
from beamtree.classifier.model import check_model, parameters_of
from beamtree.classifier.model_folder import load_model
from beamtree.compare.contest import TRAINING, Contest, Entry, choose_rate, recipe_for, trials_of
from beamtree.compare.outcome import Measured, Outcome, read_outcome
from beamtree.data.task import Example
from beamtree.errors import BeamtreeError, nearest
from beamtree.paper.speed.measure import PeakMemory, forget_peak
from beamtree.training.display import Display
from beamtree.training.evaluate import evaluate
from beamtree.training.examples import LearningData, Source
from beamtree.training.fit import TrainingEnd, fit
from beamtree.training.recipe import Recipe, load_recipe
from beamtree.training.run_folder import RunFolder, TakenError, best_epoch
from beamtree.training.schedule import Stopping

if TYPE_CHECKING:
    from accelerate import Accelerator

_LOOK_SECONDS = 2.0  # between checks of what other processes have finished
DIVERGED = "diverged"


class Work:
    """A contest in a folder, in this process."""

    def __init__(
        self,
        contest: Contest,
        entries: Sequence[Entry],
        out: Path,
        data: LearningData,
        tests: Sequence[Source],
        accelerator: "Accelerator",
        say: Callable[[str], None],
    ) -> None:
        self.contest, self.entries, self.out = contest, entries, out
        self.say, self.accelerator = say, accelerator
        train, dev = draw_some(data.train, contest.most_train), draw_some(data.dev, contest.most_dev)
        self.data = replace(data, train=train, dev=dev)
        self.tests = tests

    def run(self, stopping: Stopping, only: Sequence[str] = ()) -> bool:
        """Do all unfinished runs, or those named in `only`; return True if all of them are finished."""
        names = [entry.name for entry in self.entries]
        for name in only:
            if name not in names:
                raise BeamtreeError(f"the plan has no run {name!r}{nearest(name, names)}")
        entries = [entry for entry in self.entries if not only or entry.name in only]
        self._check(entries)
        # Before any training, so that an unreadable row is reported now.
        most = self.contest.most_test
        self._read = {source.name: list(islice(source.read(), most)) for source in self.tests}
        self._read[TRAINING] = draw_some(self.data.train, self.contest.measured_of_train)
        while left := [entry for entry in entries if read_outcome(self.out / entry.name) is None]:
            if stopping.reason is not None:
                return False
            place = f"run {len(entries) - len(left) + 1} of {len(entries)}"
            if not any(self._take(entry, stopping, place) for entry in left):
                self._check_trials(left, entries)
                time.sleep(_LOOK_SECONDS)  # other processes do what is left, or the trials it waits for
        for entry in entries:
            self._test_again(entry)
        return True

    def _check(self, entries: Sequence[Entry]) -> None:
        """Refuse encoders that cannot be trained, and a folder with a run begun under other rules."""
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
                        f"{folder.path} is of a {entry.model} with {ended.parameters:,} parameters, but it "
                        f"has {sizes[entry.model]:,} now: give it another name, or another folder with --out"
                    )

    def _check_trials(self, left: Sequence[Entry], entries: Sequence[Entry]) -> None:
        """Refuse to wait for trials that nobody has begun."""
        for entry in left:
            for trial in () if entry.trial is not None else trials_of(self.contest, entry.model):
                if trial not in entries and not RunFolder(self.out / trial.name).begun:
                    raise BeamtreeError(
                        f"{entry.name} still needs a learning rate: do the run {trial.name} first"
                    )

    def _take(self, entry: Entry, stopping: Stopping, place: str) -> bool:
        """Do a run if it can be done now; return whether it was done."""
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
        """The learning rate of a run; None until the trials that decide it are finished."""
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
        ended = self._train(recipe, folder, entry.name, stopping)
        if not ended.finished:
            return
        peak_bytes = peak.bytes()
        history, best = ended.history, best_epoch(ended.history)
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
            end=ended.reason,
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

    def _train(self, recipe: Recipe, folder: RunFolder, name: str, stopping: Stopping) -> TrainingEnd:
        """Train a run; a loss that is not finite also ends it."""
        display = Display(run=name)
        try:
            return fit(
                recipe, folder, self.data, accelerator=self.accelerator, stopping=stopping, display=display
            )
        except BeamtreeError:
            if not folder.failure_file.is_file():
                raise
            return TrainingEnd(True, DIVERGED, folder.read_metrics())
        finally:
            self.accelerator.free_memory()

    def _measure(self, model: Classifier, wanted: Mapping[str, Sequence[Example]]) -> dict[str, Measured]:
        return {
            name: Measured.of(evaluate(model, name, examples), digest(examples))
            for name, examples in wanted.items()
        }

    def _test_again(self, entry: Entry) -> None:
        """Test a finished run on files that were added or changed since."""
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
                f"{entry.name} was not tested on the present {', '.join(wanted)}, and its weights are gone: "
                f"delete {folder.path} to repeat it, or name another folder with --out"
            )
        with suppress(TakenError), folder.held():
            model = load_model(folder.best, device=self.accelerator.device)
            replace(ended, splits=ended.splits | self._measure(model, wanted)).write(folder.path)


def digest(examples: Sequence[Example]) -> str:
    """A checksum of the examples' texts and labels, in their order."""
    made = hashlib.blake2b(digest_size=16)
    for example in examples:
        made.update(repr((example.sentences, example.label)).encode())
    return made.hexdigest()


def draw_some(examples: Sequence[Example], most: int | None) -> list[Example]:
    """At most `most` examples, chosen by hash and so the same everywhere; files may begin with short ones."""
    if most is None or len(examples) <= most:
        return list(examples)

    def by_chance(example: Example) -> bytes:
        text = "\n".join(" ".join(sentence) for sentence in example.sentences)
        return hashlib.blake2b(text.encode(), digest_size=16).digest()

    return sorted(examples, key=by_chance)[:most]
