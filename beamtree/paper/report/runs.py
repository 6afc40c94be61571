"""What a run folder proves: the recipe it followed, how its training ended, what its evaluations measured.

`recipe.toml`, `metrics.jsonl` and the `eval*.json` of `beamtree eval RUN --save` are enough; weights may be
gone. Where they are still there, an evaluation of other weights is refused. `data.json`, where there is one,
tells how much of a corpus was learnt from, and with which word vectors.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from beamtree.data.folders import is_part
from beamtree.data.task import find_task
from beamtree.errors import BeamtreeError
from beamtree.files.bounded import is_file, read_json, shown
from beamtree.saving.folder import WEIGHTS, hash_weights
from beamtree.training.recipe import Recipe, load_recipe
from beamtree.training.run_folder import RunFolder

PAPER_VECTORS = "GloVe 840B, 300 wide"
EARLY, LIMIT, UNFINISHED, DIVERGED = "early stopping", "limit of epochs", "unfinished", "diverged"


@dataclass(frozen=True)
class SplitFigures:
    examples: int
    accuracy: float
    interval: tuple[float, float]
    f1: float | None  # None: no trees of its own
    exact: float | None


@dataclass(frozen=True)
class Evaluation:
    """One pass over some splits; `beam` and `merged` if it was searched in another way than in training."""

    file: Path
    beam: int | None
    merged: bool
    command: str | None
    splits: dict[str, SplitFigures]
    weights: str | None = None  # SHA-256 of what was measured
    device: str | None = None  # None in files of earlier versions

    @property
    def search(self) -> tuple[int | None, bool]:
        return self.beam, self.merged


@dataclass(frozen=True)
class TrainedRun:
    path: Path
    recipe: Recipe
    history: list[dict[str, Any]] = field(repr=False)
    evaluations: list[Evaluation] = field(repr=False)
    diverged: bool = False
    data: dict[str, Any] | None = field(default=None, repr=False)  # what `data.json` says, if it is there

    @property
    def seed(self) -> int:
        return self.recipe.training.seed

    @property
    def own_data(self) -> str | None:
        """The user's own files that were learnt from, as they were named."""
        return (self.data or {}).get("path")

    @property
    def epochs(self) -> int:
        return len(self.history)

    @cached_property
    def best(self) -> dict[str, Any] | None:
        """The record of the epoch whose weights are kept."""
        return next((record for record in reversed(self.history) if record["best"]), None)

    @property
    def end(self) -> str:
        """Why the run ended, from its records alone."""
        waited = self.epochs - self.best["epoch"] if self.best else 0
        if waited > self.recipe.training.patience:
            return EARLY
        if self.epochs >= self.recipe.training.max_epochs:
            return LIMIT
        return DIVERGED if self.diverged else UNFINISHED

    @property
    def minutes(self) -> float:
        return sum(record["seconds"] for record in self.history) / 60


def find_run_folders(paths: Sequence[Path]) -> list[Path]:
    """The paths that are run folders, and the run folders inside those that are not.

    A run with several seeds stands for the runs of each.
    """
    found: list[Path] = []
    for path in paths:
        if not (path / "recipe.toml").exists():
            inside = sorted(recipe.parent for recipe in path.glob("*/recipe.toml"))
            found += inside or [path]
        else:
            found.append(path)
    each = [[run.path for run in RunFolder(path).seeds] or [path] for path in found]
    return list(dict.fromkeys(run for runs in each for run in runs))


def read_runs(paths: Sequence[Path], *, skip: bool = False) -> tuple[list[TrainedRun], list[str]]:
    """All runs and, if broken ones are to be skipped, a note on each of those."""
    runs, notes = [], []
    for path in find_run_folders(paths):
        try:
            runs.append(read_run(path))
        except BeamtreeError as error:
            if not skip:
                raise BeamtreeError(f"{error} (--skip leaves such runs out with a note)") from error
            notes.append(f"Left out: {error}")
    return runs, notes


def read_run(path: Path) -> TrainedRun:
    folder = RunFolder(path)
    if not folder.begun:
        problem = "has no recipe.toml, nor has a folder in it" if path.is_dir() else "is not there"
        raise BeamtreeError(f"{path} is no run folder: it {problem}")
    recipe = load_recipe(folder.recipe_file.absolute())
    history = folder.read_metrics()
    for number, record in enumerate(history, start=1):
        _check_record(folder.metrics_file, number, record)
    digest = hash_weights(folder.best) if is_file(folder.best / WEIGHTS) else None
    evaluations = [_read_evaluation(file, recipe, digest) for file in sorted(path.glob("eval*.json"))]
    # A check on the CPU does not replace the first figure.
    evaluations.sort(key=lambda one: one.device == "cpu")
    _refuse_contradictions(evaluations)
    diverged = folder.failure_file.exists()
    return TrainedRun(path, recipe, history, evaluations, diverged, folder.read_data_facts())


def _check_record(file: Path, number: int, record: Any) -> None:
    kinds = {"epoch": int, "dev_loss": float, "dev_accuracy": float, "best": bool, "seconds": float}
    for key, kind in kinds.items():
        value = record.get(key) if isinstance(record, dict) else None
        if kind is float and type(value) is int and abs(value) < 2**63:
            continue
        if type(value) is not kind or (isinstance(value, float) and not math.isfinite(value)):
            raise BeamtreeError(f"{file}, line {number}: {key} must be {kind.__name__}, got {shown(value)}")
    if record["epoch"] != number:
        raise BeamtreeError(f"{file}, line {number}: this is epoch {record['epoch']}; others are missing")


def _read_evaluation(file: Path, recipe: Recipe, weights: str | None) -> Evaluation:
    content = read_json(file)
    try:
        of = content["task"], content["encoder"]
        wanted = recipe.task.name, recipe.model.encoder
        if of != wanted:
            raise BeamtreeError(f"{file} is of {' with '.join(of)}, but the run of {' with '.join(wanted)}")
        if weights is not None and content.get("weights") not in (None, weights):
            commands = str(content.get("command") or f"beamtree eval {file.parent}").split("; ")
            again = shown("; ".join(f"{command} --save" for command in commands), most=500)
            raise BeamtreeError(
                f"{file} measured other weights than the run's best/ has now: evaluate again with {again}"
            )
        splits = {entry["split"]: _figures(entry) for entry in content["splits"]}
        names = ("beam", "merge_equal_trees", "command", "weights", "device")
        match [content.get(name) for name in names]:
            case (
                None | int() as beam,
                None | bool() as merged,
                None | str() as command,
                None | str() as measured,
                None | str() as device,
            ):
                return Evaluation(file, beam, bool(merged), command, splits, measured, device)
        raise ValueError(f"one of {', '.join(names)} is of another type")
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        if isinstance(error, BeamtreeError):
            raise
        raise BeamtreeError(f"{file} is not what `beamtree eval --json` writes: {shown(error)}") from error


def _figures(entry: dict[str, Any]) -> SplitFigures:
    low, high = entry["accuracy_95"]
    figures = SplitFigures(
        int(entry["examples"]),
        float(entry["accuracy"]),
        (float(low), float(high)),
        entry["bracketing_f1"],
        entry["exact_match"],
    )
    if not isinstance(entry["split"], str) or figures.examples < 1:
        raise ValueError(f"split {shown(entry['split'])} of {figures.examples} examples")
    shares = [figures.accuracy, *figures.interval, figures.f1 or 0, figures.exact or 0]
    if not all(0 <= share <= 1 for share in shares):
        raise ValueError(f"a share of split {entry['split']} is not between 0 and 1")
    return figures


def _refuse_contradictions(evaluations: Iterable[Evaluation]) -> None:
    seen: dict[tuple[tuple[int | None, bool], str | None, str], Path] = {}
    for evaluation in evaluations:
        for split in evaluation.splits:
            other = seen.setdefault((evaluation.search, evaluation.device, split), evaluation.file)
            if other != evaluation.file:
                raise BeamtreeError(f"{other} and {evaluation.file} both measured {split}: keep one of them")


def data_note(task_name: str, runs: Sequence[TrainedRun]) -> str:
    """One or more sentences, none for a formal task or runs that left no `data.json`."""
    sentences = dict.fromkeys(_sentence(facts, published) for facts, published in _facts(task_name, runs))
    if sentences and task_name == "mnli":
        sentences["The stress tests are rebuilt from the dev sets where the release is not at hand."] = None
    return " ".join(sentences)


def data_marks(task_name: str, runs: Sequence[TrainedRun]) -> list[str]:
    """What differs from the paper's data, in a word each, for the title of a table."""
    marks: dict[str, None] = {}
    for facts, published in _facts(task_name, runs):
        marks |= {"subset": None} if _is_subset(facts, published) else {}
        if not _has_paper_vectors(facts):
            marks |= {"other vectors" if facts["words"] and facts["words"]["vectors"] else "no vectors": None}
    return list(marks)


def _facts(task_name: str, runs: Sequence[TrainedRun]) -> list[tuple[dict[str, Any], int | None]]:
    """What each run of a language task learnt from, beside the number of examples in the paper's corpus."""
    task = find_task(task_name)
    if task.words is None:
        return []
    return [(run.data, task.published.get(run.recipe.task.train)) for run in runs if run.data is not None]


def _is_subset(facts: dict[str, Any], published: int | None) -> bool:
    return published is not None and is_part(facts["train"]["examples"], published)


def _has_paper_vectors(facts: dict[str, Any]) -> bool:
    words = facts["words"]
    return bool(words and words["vectors"] and "840b" in words["vectors"].lower() and words["width"] == 300)


def _sentence(facts: dict[str, Any], published: int | None) -> str:
    count, words = facts["train"]["examples"], facts["words"]
    learnt = f"{count:,} training examples"
    if _is_subset(facts, published):
        learnt = f"a subset: {count:,} of {published:,} training examples"
    if words is None or words["vectors"] is None:
        return f"Ours learn from {learnt}, without word vectors (the paper: {PAPER_VECTORS})."
    vectors = f"{words['vectors']}, {words['width']} wide"
    if _has_paper_vectors(facts):
        return f"Ours learn from {learnt}, with the paper's vectors: {vectors}."
    return f"Ours learn from {learnt}, with other vectors: {vectors} (the paper: {PAPER_VECTORS})."
