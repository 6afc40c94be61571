"""What a run folder proves: the recipe it followed, how its training ended, what its evaluations measured.

`recipe.toml`, `metrics.jsonl` and the `eval*.json` of `beamtree eval RUN --save` are enough; weights may be
gone. Where they are still there, an evaluation of other weights is refused. `data.json`, where there is one,
tells how much of a corpus was learnt from, and with which word vectors.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from beamtree.data.folders import is_part
from beamtree.data.task import find_task
from beamtree.errors import BeamtreeError
from beamtree.files.bounded import is_file, read_json, shown
from beamtree.paper.published import PaperTable
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


class Search(NamedTuple):
    """In what the search of a test differed from that of training."""

    beam: int | None = None
    merged: bool = False  # equal trees


AS_TRAINED = Search()


@dataclass(frozen=True)
class Evaluation:
    """One pass over some splits."""

    file: Path
    search: Search
    command: str | None
    splits: dict[str, SplitFigures]
    weights: str | None = None  # SHA-256 of what was measured
    device: str | None = None  # None in files of earlier versions


@dataclass(frozen=True)
class TrainedRun:
    """A run folder; in a row of a table only the evaluations that belong there (none if there are none)."""

    path: Path
    recipe: Recipe
    history: list[dict[str, Any]] = field(repr=False)
    evaluations: list[Evaluation] = field(repr=False)
    diverged: bool = False
    data: dict[str, Any] | None = field(default=None, repr=False)  # what `data.json` says, if it is there
    number: int = 0  # in the list of runs of a report

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

    def figures(self, split: str) -> SplitFigures | None:
        return next((e.splits[split] for e in self.evaluations if split in e.splits), None)

    @property
    def minutes(self) -> float:
        return sum(record["seconds"] for record in self.history) / 60


def find_run_folders(paths: Sequence[Path]) -> list[Path]:
    """The paths that are run folders, and the run folders inside those that are not.

    A folder of several seeds counts as one run for each.
    """
    found: list[Path] = []
    for path in paths:
        inside = sorted(recipe.parent for recipe in path.glob("*/recipe.toml"))
        found += [path] if (path / "recipe.toml").exists() else inside or [path]
    each = [[run.path for run in RunFolder(path).seeds] or [path] for path in found]
    return list(dict.fromkeys(run for runs in each for run in runs))


def read_runs(paths: Sequence[Path], *, skip: bool = False) -> tuple[list[TrainedRun], list[str]]:
    """All runs, numbered, and, if broken ones are to be skipped, a note on each of those."""
    runs: list[TrainedRun] = []
    notes = []
    for path in find_run_folders(paths):
        try:
            runs.append(replace(read_run(path), number=len(runs) + 1))
        except BeamtreeError as error:
            if not skip:
                raise BeamtreeError(f"{error} (--skip leaves out such runs, with a note)") from error
            notes.append(f"Left out: {error}")
    return runs, notes


def read_run(path: Path) -> TrainedRun:
    folder = RunFolder(path)
    if not folder.begun:
        problem = "it has no recipe.toml, nor has a folder in it" if path.is_dir() else "it does not exist"
        raise BeamtreeError(f"{path} is not a run folder: {problem}")
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
        raise BeamtreeError(f"{file}, line {number}: this is epoch {record['epoch']}, not {number}")


def _read_evaluation(file: Path, recipe: Recipe, weights: str | None) -> Evaluation:
    content = read_json(file)
    try:
        of = content["task"], content["encoder"]
        wanted = recipe.task.name, recipe.model.encoder
        if of != wanted:
            raise BeamtreeError(f"{file} is of {' with '.join(of)}, the run is of {' with '.join(wanted)}")
        if weights is not None and content.get("weights") not in (None, weights):
            commands = str(content.get("command") or f"beamtree eval {file.parent}").split("; ")
            again = shown("; ".join(f"{command} --save" for command in commands), most=500)
            raise BeamtreeError(
                f"{file} measured other weights than those now in best/: evaluate again with {again}"
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
                search = Search(beam, bool(merged))
                return Evaluation(file, search, command, splits, measured, device)
        raise ValueError(f"one of {', '.join(names)} has the wrong type")
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
    seen: dict[tuple[Search, str | None, str], Path] = {}
    for evaluation in evaluations:
        for split in evaluation.splits:
            other = seen.setdefault((evaluation.search, evaluation.device, split), evaluation.file)
            if other != evaluation.file:
                raise BeamtreeError(f"{other} and {evaluation.file} both measured {split}: keep one of them")


class Learnt(NamedTuple):
    """What a run of a language task learnt from, beside what the paper's did."""

    examples: int
    published: int | None  # examples in the paper's corpus
    vectors: str | None
    width: int | None

    @property
    def is_subset(self) -> bool:
        return self.published is not None and is_part(self.examples, self.published)

    @property
    def has_paper_vectors(self) -> bool:
        return bool(self.vectors) and "840b" in str(self.vectors).lower() and self.width == 300

    @property
    def marks(self) -> list[str]:
        """What differs, in a word each."""
        marks = ["subset"] if self.is_subset else []
        if not self.has_paper_vectors:
            marks.append("other vectors" if self.vectors else "no vectors")
        return marks

    @property
    def sentence(self) -> str:
        count = f"{self.examples:,}"
        if self.is_subset:
            count = f"a subset: {count} of {self.published:,}"
        vectors = f"{self.vectors}, {self.width} wide"
        if self.has_paper_vectors:
            return f"Ours learn from {count} training examples, with the paper's vectors: {vectors}."
        given = f"with other vectors: {vectors}" if self.vectors else "without word vectors"
        return f"Ours learn from {count} training examples, {given} (the paper: {PAPER_VECTORS})."


def data_note(runs: Sequence[TrainedRun]) -> str:
    """What runs of one task learnt from; nothing on a formal task or runs that left no `data.json`."""
    sentences = list(dict.fromkeys(learnt.sentence for learnt in _learnt(runs)))
    if sentences and runs[0].recipe.task.name == "mnli":
        sentences.append("The stress tests are rebuilt from the dev sets where the release is not at hand.")
    return " ".join(sentences)


def marked_title(table: PaperTable, runs: Sequence[TrainedRun]) -> str:
    """The task, and in what its data differ from the paper's."""
    marks = dict.fromkeys(mark for learnt in _learnt(runs) for mark in learnt.marks)
    return f"{table.title} ({', '.join(marks)})" if marks else table.title


def _learnt(runs: Sequence[TrainedRun]) -> Iterator[Learnt]:
    for run in runs:
        task = find_task(run.recipe.task.name)
        if task.words is not None and run.data is not None:
            words = run.data["words"] or {"vectors": None, "width": None}
            published = task.published.get(run.recipe.task.train)
            yield Learnt(run.data["train"]["examples"], published, words["vectors"], words["width"])
