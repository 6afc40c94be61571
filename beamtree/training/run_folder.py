"""A run folder: `recipe.toml`, `data.json`, `metrics.jsonl`, `tensorboard/`, `best/`, `last/`, `checkpoint/`.

The folder of several seeds has a run folder for each, and `config.json` once all are trained (seeds.py).
Every file is replaced as a whole, and the checkpoint is a single file, so a run that is killed at any moment
can be resumed; `metrics.jsonl` is rewritten from the history in the checkpoint.
"""

import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from beamtree.errors import BeamtreeError
from beamtree.files.atomic import make_folder, replace_file
from beamtree.files.bounded import machine_memory, opened, parse_json, read_json, read_text, shown
from beamtree.printable import write_json
from beamtree.saving.folder import CONFIG
from beamtree.training.recipe import RESUMABLE, Recipe, by_seed, changed_settings, load_recipe
from beamtree.training.seen_rows import SeenRows

_SETTINGS_SHOWN = 5  # of those that an error names


def best_epoch(history: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The record of the epoch whose weights are kept; None before there is one."""
    return next((record for record in reversed(history) if record["best"]), None)


class TakenError(BeamtreeError):
    """Another process is training in the folder."""


class RunFolder:
    """The files of a run; the folder need not exist."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe_file = path / "recipe.toml"
        self.data_file = path / "data.json"  # how many examples, and how many words had which vectors
        self.rows_file = path / "learnt-rows.bin"  # of a user's own data: hashes of train and dev rows
        self.metrics_file = path / "metrics.jsonl"
        self.failure_file = path / "failure.json"  # the batch whose loss was not finite, if there was one
        self.tensorboard = path / "tensorboard"
        self.best = path / "best"
        self.last = path / "last"
        self.checkpoint_file = path / "checkpoint" / "state.safetensors"
        self.data_place_file = path / "checkpoint" / "data_place.json"  # on this machine; used to resume
        self.begun_file = path / "checkpoint" / "recipe.toml"  # to notice if the other one is edited
        self.ensemble_file = path / CONFIG  # of several seeds, once all are trained
        # For a user's own data: how the model learnt, and which label is taken for which.
        self.pictures = path / "learning-curve.png", path / "confusion.png"

    @property
    def has_all_seeds(self) -> bool:
        """Whether all of several seeds are trained, also without the tree if that has begun."""
        twin = self.without_tree
        return self.ensemble_file.is_file() and (twin.ensemble_file.is_file() or not twin.begun)

    @property
    def begun(self) -> bool:
        return self.recipe_file.is_file()

    @property
    def seeds(self) -> "list[RunFolder]":
        """The runs of the single seeds, begun or not; none for a single seed or an unreadable recipe."""
        with suppress(BeamtreeError):
            return [RunFolder(self.path / name) for name in by_seed(self.read_recipe())]
        return []

    @property
    def without_tree(self) -> "RunFolder":
        """The same model without its tree, for a run on a user's own data or for one of its seeds."""
        among_seeds = self.path.parent / "without-tree" / self.path.name
        return RunFolder(among_seeds if among_seeds.is_dir() else self.path / "without-tree")

    @property
    def seconds(self) -> float:
        """How long the epochs of all seeds took; 0 if none is recorded."""
        runs = [run for run in (self, *self.seeds) if run.metrics_file.is_file()]
        return sum(float(record["seconds"]) for run in runs for record in run.read_metrics())

    @property
    def has_checkpoint(self) -> bool:
        return any(run.checkpoint_file.is_file() for run in (self, *self.seeds))

    def refuse_if_taken(self, overwrite: bool) -> None:
        """Raise if the folder holds anything but a run that the user allows to overwrite."""
        if self.path.is_dir() and all(entry.name.startswith(".") for entry in self.path.iterdir()):
            return  # empty, or left by a run that was killed before it had begun
        if self.begun and not overwrite:
            raise BeamtreeError(
                f"{self.path} already holds a run: --resume {self.path} continues it, "
                "--overwrite replaces it, --out names another folder"
            )
        if self.path.exists() and not self.begun:
            raise BeamtreeError(f"{self.path} exists and is not a run folder: name another one with --out")

    def refuse_if_records_alone(self) -> None:
        """Raise if there are epochs in metrics.jsonl but no checkpoint, so that training would begin anew."""
        epochs = len(self.read_metrics()) if self.metrics_file.is_file() else 0
        if epochs:
            raise BeamtreeError(
                f"{self.path} cannot be resumed: it has no checkpoint, and training again would replace the "
                f"records of {epochs} epochs; --out names another folder, --overwrite replaces the run"
            )

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make the folder and, where there are locks, keep other processes from training in it."""
        make_folder(self.path)
        if os.name != "posix":
            yield
            return
        import fcntl

        handle = os.open(self.path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                told = f"another process is training in {self.path}: let it finish, or stop it"
                raise TakenError(told) from None
            except OSError:
                pass  # some network file systems have no locks
            yield
        finally:
            os.close(handle)

    def begin(self, recipe: Recipe) -> None:
        """Make the folder, or empty it, and write the recipe."""
        make_folder(self.path)
        try:
            self.ensemble_file.unlink(missing_ok=True)  # first, as what it names is deleted next
            inner = [run.path for run in (*self.seeds, RunFolder(self.path / "without-tree")) if run.begun]
            for folder in (self.checkpoint_file.parent, self.best, self.last, self.tensorboard, *inner):
                if folder.exists():
                    shutil.rmtree(folder)
            files = (self.metrics_file, self.data_file, self.rows_file, self.failure_file)
            for file in (*files, *self.pictures):
                file.unlink(missing_ok=True)
        except OSError as error:
            raise BeamtreeError(f"cannot empty {self.path}: {error.strerror or error}") from error
        self.write_recipe(recipe)

    def write_recipe(self, recipe: Recipe) -> None:
        replace_file(self.recipe_file, recipe.to_toml())

    def keep_recipe(self, recipe: Recipe) -> None:
        """Write the recipe with which the run trains from now on."""
        make_folder(self.begun_file.parent)
        replace_file(self.begun_file, recipe.to_toml())
        self.write_recipe(recipe)

    def read_recipe(self) -> Recipe:
        return load_recipe(self.recipe_file.absolute())

    def write_data_facts(self, facts: Mapping[str, Any], rows: bytes = b"") -> None:
        """Write data.json and the hashes of rows, if there are any, unless the run is resumed: its data must
        not change, so the old facts hold."""
        if not (self.has_checkpoint and self.data_file.is_file()):
            if rows:
                replace_file(self.rows_file, rows)
            replace_file(self.data_file, write_json(facts, indent=2) + "\n")

    def seen_rows(self) -> SeenRows | None:
        """Which rows the run has learnt from, if that is recorded."""
        with suppress(BeamtreeError):
            facts = self.read_data_facts()
            if facts is not None and self.rows_file.is_file():
                with opened(self.rows_file, machine_memory()) as file:
                    return SeenRows.of(file.read(), facts["train"]["examples"])
        return None

    def read_data_facts(self) -> dict[str, Any] | None:
        """The content of `data.json`, if it exists."""
        if not self.data_file.is_file():
            return None
        facts = read_json(self.data_file)
        match facts:
            case {
                "train": {"examples": int()},
                "words": None | {"vectors": None | str(), "width": None | int()},
            } if isinstance(facts.get("path", ""), str):
                return facts
        raise BeamtreeError(f"{self.data_file} does not say which data the run learnt from")

    def write_data_place(self, place: Path | None) -> None:
        if place is not None:
            make_folder(self.data_place_file.parent)
            replace_file(self.data_place_file, write_json(str(place.absolute())) + "\n")

    def read_data_place(self) -> Path | None:
        """Where the data of this run were when it was last trained, if that is recorded."""
        place = read_json(self.data_place_file) if self.data_place_file.is_file() else None
        return Path(place) if isinstance(place, str) else None

    def continue_with(self, recipe: str | Path | None, changes: Sequence[str]) -> Recipe:
        """The recipe of this run with changes; those that would invalidate what was learnt are refused."""
        if not self.begun:
            raise BeamtreeError(f"there is no run to resume in {self.path}: it has no recipe.toml")
        if recipe is None and (changed := self._changed(self.read_recipe())):
            before, after = _listed(changed)
            it = "it" if len(changed) == 1 else "them"
            raise BeamtreeError(
                f"{self.path} was begun with {before}, {self.recipe_file.name} now says {after}: put {it} "
                "back, or start a new run"
            )
        wanted = self._as_begun(load_recipe(recipe or self.recipe_file, changes))
        self.refuse_other_settings(wanted)
        return wanted

    def began_with(self, recipe: Recipe) -> bool:
        """Whether the folder holds a run that may continue with this recipe."""
        return self.begun and not self._changed(recipe)

    def refuse_other_settings(self, recipe: Recipe) -> None:
        if changed := self._changed(recipe):
            before, after = _listed(changed)
            raise BeamtreeError(
                f"{self.path} was begun with {before}, not {after}; a resumed run may only change "
                f"{', '.join('training.' + name for name in RESUMABLE)}"
            )

    def _changed(self, recipe: Recipe) -> dict[str, tuple[object, object]]:
        """The settings of a recipe with which this run cannot continue, with those that it began with."""
        there = self.begun_file.is_file()  # older versions did not write it
        begun = load_recipe(self.begun_file.absolute()) if there else self.read_recipe()
        return changed_settings(self._as_begun(begun), self._as_begun(recipe))

    def write_metrics(self, history: Sequence[Mapping[str, Any]]) -> None:
        replace_file(self.metrics_file, "".join(write_json(record) + "\n" for record in history))

    def read_metrics(self) -> list[dict[str, Any]]:
        """The records, one per epoch."""
        lines = enumerate(read_text(self.metrics_file).split("\n"), start=1)
        found = [parse_json(line, f"{self.metrics_file}, line {number},") for number, line in lines if line]
        for number, record in enumerate(found, start=1):
            _check_record(self.metrics_file, number, record)
        return found

    def _as_begun(self, recipe: Recipe) -> Recipe:
        """In a run that found no vectors before some came with beamtree, `auto` still means none."""
        words = (self.read_data_facts() or {}).get("words")
        if words is None or words["vectors"] is not None or recipe.words.vectors != "auto":
            return recipe
        return replace(recipe, words=replace(recipe.words, vectors="none"))


def _listed(changed: Mapping[str, tuple[object, object]]) -> tuple[str, str]:
    """The first changed settings as they were, with their names, and as they are."""
    first = list(changed.items())[:_SETTINGS_SHOWN]
    more = [f"{len(changed) - len(first)} more"] if len(changed) > len(first) else []
    before = [f"{name} = {_spelt(was)}" for name, (was, _) in first]
    return " and ".join(before + more), " and ".join([*(_spelt(now) for _, (_, now) in first), *more])


def _spelt(value: object) -> str:
    """A setting as recipe.toml has it."""
    return "nothing" if value is None else write_json(value, ensure_ascii=False)


def _check_record(file: Path, number: int, record: Any) -> None:
    kinds = {"epoch": int, "dev_loss": float, "dev_accuracy": float, "best": bool, "seconds": float}
    for key, kind in kinds.items():
        value = record.get(key) if isinstance(record, dict) else None
        if kind is float and type(value) is int and abs(value) < 2**63:
            continue
        if type(value) is not kind or (isinstance(value, float) and not math.isfinite(value)):
            raise BeamtreeError(f"{file}, line {number}: {key} must be {kind.__name__}, got {shown(value)}")
    if record["epoch"] != number:
        raise BeamtreeError(f"{file}, line {number}: this is epoch {record['epoch']}, not {number}")
