"""Several processes have the losses of one, however the examples are divided among them."""

from pathlib import Path
from typing import Any

import pytest
from small_runs import run_in, small_recipe
from two_processes import run_two

from beamtree.files.tensors import load_tensors, save_tensors
from beamtree.training.examples import load_learning_data
from beamtree.training.fit import fit
from beamtree.training.recipe import Recipe
from beamtree.training.run_folder import RunFolder

QUIET = {"input_dropout": 0.0, "dropout": 0.0, "output_dropout": 0.0}

# Runs the command line and checks at the end that gloo has left no thread: one would abort the process if it
# released a tensor while Python is ending.
COMMAND = """
import atexit, os
from pathlib import Path
from beamtree.cli import main

def end_badly_if_threads_are_left():
    names = [task.read_text().strip() for task in Path("/proc/self/task").glob("*/comm")]
    if any("gloo" in name for name in names):
        print(names, flush=True)
        os._exit(9)

atexit.register(end_badly_if_threads_are_left)
main()
"""


def train_with_two_processes(folder: Path, recipe: Recipe, *more: str, status: int = 0) -> str:
    """Return what both wrote to stderr."""
    path = folder.with_suffix(".toml")
    path.write_text(recipe.to_toml(), encoding="utf-8")
    _, said = run_two("-c", COMMAND, "train", path, "--resume", folder, *more, status=status)
    return said


def train_alone(folder: Path, recipe: Recipe) -> list[dict[str, Any]]:
    run = RunFolder(folder)
    run.begin(recipe)
    return fit(recipe, run, load_learning_data(recipe)).history


@pytest.mark.slow
def test_two_processes_have_the_losses_of_one_also_after_a_stop_in_the_middle(tmp_path: Path) -> None:
    # 41 examples by 8: the last step has one example and leaves a process without any. Micro-batches of 3
    # fall to two processes unevenly, and some hold lone digits only.
    recipe = small_recipe(
        task={"sampled": {"train": 41, "dev": 13, "min_length": 1, "max_length": 12, "deep": 2}},
        model={**QUIET, "encoder": "ebt-grc", "options": {"beam_size": 2, "stochastic": False}},
        training={"micro_batch_size": 3, "max_epochs": 3},
    )
    history = train_alone(tmp_path / "alone", recipe)
    train_with_two_processes(tmp_path / "two", recipe, "--max-steps", "8")
    assert len(RunFolder(tmp_path / "two").read_metrics()) == 1
    train_with_two_processes(tmp_path / "two", recipe)
    shared = RunFolder(tmp_path / "two").read_metrics()
    assert len(shared) == 3
    for one, two in zip(history, shared, strict=True):
        assert one["step"] == two["step"]
        for name in ("train_loss", "train_accuracy", "dev_loss", "dev_accuracy"):
            assert two[name] == pytest.approx(one[name], abs=1e-6)


@pytest.mark.slow
def test_a_process_that_never_has_data_changes_nothing(tmp_path: Path) -> None:
    recipe = small_recipe(
        task={"sampled": {"train": 12, "dev": 1, "max_length": 12}},
        model=QUIET,
        training={"batch_size": 1, "micro_batch_size": 0, "max_epochs": 1},
    )
    (alone,) = train_alone(tmp_path / "alone", recipe)
    train_with_two_processes(tmp_path / "two", recipe)
    (shared,) = RunFolder(tmp_path / "two").read_metrics()
    for name in ("train_loss", "train_accuracy", "dev_loss", "dev_accuracy"):
        assert shared[name] == pytest.approx(alone[name], abs=1e-6)


def test_two_processes_that_fail_print_one_message_and_leave_no_threads(tmp_path: Path) -> None:
    folder = tmp_path / "two"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")  # which the first process alone sees
    said = train_with_two_processes(folder, small_recipe(model=QUIET), status=2)
    assert said.count("beamtree: ") == said.count("is not a run folder") == 1
    assert "Traceback" not in said


@pytest.mark.slow
def test_an_error_in_both_processes_is_printed_once(tmp_path: Path) -> None:
    recipe = small_recipe(model=QUIET)
    run_in(tmp_path / "two", recipe, steps=7)
    RunFolder(tmp_path / "two").checkpoint_file.write_bytes(b"damaged")
    said = train_with_two_processes(tmp_path / "two", recipe, status=2)
    assert said.count("beamtree: ") == said.count("state.safetensors") == 1
    assert "Traceback" not in said


def test_a_run_of_two_processes_can_be_continued_by_one(tmp_path: Path) -> None:
    recipe = small_recipe(model=QUIET)
    whole = run_in(tmp_path / "whole", recipe)
    run_in(tmp_path / "cut", recipe, steps=7)
    path = RunFolder(tmp_path / "cut").checkpoint_file
    tensors, notes = load_tensors(path)
    # As two processes would have left it: each with a part of the sums, each with its own random numbers.
    sums = tensors["process.sums"]
    assert sums.shape == (1, 2)
    tensors["process.sums"] = (sums / 4).repeat(2, 1) * sums.new_tensor([[1.0], [3.0]])
    tensors["process.random"] = tensors["process.random"].repeat(2, 1)
    save_tensors(path, tensors, notes)
    history = run_in(tmp_path / "cut", recipe).history
    for one, two in zip(whole.history, history, strict=True):
        assert two["train_loss"] == pytest.approx(one["train_loss"], abs=1e-9)
