"""Runs of a second: a tiny model on a few short expressions, for the tests of training."""

from pathlib import Path
from typing import Any

from rich.console import Console

from beamtree.data.listops import sample_expressions
from beamtree.data.task import Example, find_task
from beamtree.files.settings import from_table, merge_tables
from beamtree.training.display import Display
from beamtree.training.examples import LearningData
from beamtree.training.fit import TrainingEnd, fit
from beamtree.training.recipe import Recipe
from beamtree.training.run_folder import RunFolder
from beamtree.training.schedule import Stopping

SMALL = {
    "task": {"sampled": {"train": 40, "dev": 12, "max_length": 12}},
    "model": {
        "encoder": "recurrent-grc",
        "d_model": 8,
        "embedding_size": 6,
        "classifier_hidden": 8,
    },
    "training": {"batch_size": 8, "max_epochs": 3, "learning_rate": 0.01},
}

# These figures differ from run to run.
TIMES = ("seconds", "tokens_per_second")


def small_recipe(**sections: dict[str, Any]) -> Recipe:
    return from_table(Recipe, merge_tables(SMALL, sections), source="test")


def small_examples(recipe: Recipe) -> tuple[list[Example], list[Example]]:
    sampled = recipe.task.sampled
    drawn = sample_expressions(
        sampled.train + sampled.dev, seed=1, min_length=4, max_length=sampled.max_length
    )
    return drawn[sampled.dev :], drawn[: sampled.dev]


def run_in(folder: Path, recipe: Recipe, *, steps: int | None = None, **options: Any) -> TrainingEnd:
    """Begin a run, or continue the one in the folder, for at most so many steps."""
    run = RunFolder(folder)
    if not run.begun:
        run.begin(recipe)
    return fit(
        recipe,
        run,
        LearningData(find_task("listops"), *small_examples(recipe)),
        stopping=Stopping(steps=steps),
        display=Display(Console(quiet=True)),
        **options,
    )


def without_times(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in record.items() if key not in TIMES} for record in history]
