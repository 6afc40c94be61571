"""Reads run folders for a report: the recipe, how the training ended, what the evaluations measured.

`recipe.toml`, `metrics.jsonl` and the saved evaluations are enough; the weights may be gone. `data.json`, if
there is one, says how much of a corpus was used, and which word vectors.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from beamtree.data.folders import is_part
from beamtree.data.task import find_task
from beamtree.errors import BeamtreeError
from beamtree.paper.evaluations import Evaluation, SplitFigures, read_evaluations
from beamtree.paper.published import PaperTable
from beamtree.training.recipe import Recipe
from beamtree.training.run_folder import RunFolder, best_epoch

PAPER_VECTORS = "GloVe 840B, 300 wide"
EARLY, LIMIT, UNFINISHED, DIVERGED = "early stopping", "limit of epochs", "unfinished", "diverged"


@dataclass(frozen=True)
class TrainedRun:
    """A run folder; as part of a table's row, with only the evaluations that belong to the row."""

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
        """The user's own files that the run learnt from, under the name they were given."""
        return (self.data or {}).get("path")

    @property
    def epochs(self) -> int:
        return len(self.history)

    @cached_property
    def best(self) -> Mapping[str, Any] | None:
        return best_epoch(self.history)

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
    """All runs, numbered, and with `skip` a note on each broken one that was left out."""
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
        problem = "there is no recipe.toml in it or its folders" if path.is_dir() else "it does not exist"
        raise BeamtreeError(f"{path} is not a run folder: {problem}")
    recipe = folder.read_recipe()
    history, evaluations = folder.read_metrics(), read_evaluations(folder, recipe)
    diverged = folder.failure_file.exists()
    return TrainedRun(path, recipe, history, evaluations, diverged, folder.read_data_facts())


class Learnt(NamedTuple):
    """The data that a run of a language task learnt from, compared with the paper's."""

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
        """The differences, in a word or two each."""
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
    """The data that runs of one task learnt from; empty for a formal task or without `data.json`."""
    names: dict[tuple[Learnt, tuple[str, ...]], dict[str, None]] = {}
    for learnt in _learnt(runs):
        same_but_for_the_file = learnt._replace(vectors=None), tuple(learnt.marks)
        names.setdefault(same_but_for_the_file, {})[learnt.vectors or ""] = None
    sentences = [learnt._replace(vectors=" or ".join(found)).sentence for (learnt, _), found in names.items()]
    if sentences and runs[0].recipe.task.name == "mnli":
        sentences.append("If the published stress tests are not at hand, they are rebuilt from the dev sets.")
    return " ".join(sentences)


def is_learnt_from_subset(runs: Sequence[TrainedRun]) -> bool:
    """Whether some of these runs had only a part of the paper's training data."""
    return any(learnt.is_subset for learnt in _learnt(runs))


def marked_title(table: PaperTable, runs: Sequence[TrainedRun]) -> str:
    """The task's title, and how its data differ from the paper's."""
    marks = dict.fromkeys(mark for learnt in _learnt(runs) for mark in learnt.marks)
    return f"{table.title} ({', '.join(marks)})" if marks else table.title


def _learnt(runs: Sequence[TrainedRun]) -> Iterator[Learnt]:
    for run in runs:
        task = find_task(run.recipe.task.name)
        if task.words is not None and run.data is not None:
            words = run.data["words"] or {"vectors": None, "width": None}
            published = task.published.get(run.recipe.task.train)
            yield Learnt(run.data["train"]["examples"], published, words["vectors"], words["width"])
