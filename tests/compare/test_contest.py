"""The rules of a contest: what is run, in which order, with which settings."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from beamtree.classifier.model import create_model
from beamtree.compare.contest import (
    MODELS,
    TREE_MODEL,
    Entry,
    choose_models,
    find_contest,
    plan,
    recipe_for,
    trials_of,
)
from beamtree.data.task import find_task
from beamtree.errors import BeamtreeError
from beamtree.training.recipe import load_recipe

TASKS = ("filters", "logic", "listops")


def size_of(task: str, model: str) -> int:
    recipe = recipe_for(find_contest(find_task(task)), Entry(model), 1e-3, 100_000)
    with torch.device("meta"):
        made = create_model(recipe.model, find_task(task))
    return sum(weight.numel() for weight in made.parameters())


@pytest.mark.parametrize("task", TASKS)
def test_all_models_of_a_task_have_one_size_within_a_twentieth(task: str) -> None:
    wanted = size_of(task, TREE_MODEL)
    for model in MODELS:
        assert size_of(task, model) == pytest.approx(wanted, rel=0.05), model


@pytest.mark.parametrize("task", TASKS)
def test_embedding_head_and_training_are_the_same_for_all_models(task: str) -> None:
    contest = find_contest(find_task(task))
    recipes = [recipe_for(contest, Entry(model, seed=2), 1e-3, 100_000) for model in MODELS]
    assert len({recipe.training for recipe in recipes}) == 1
    assert len({recipe.task for recipe in recipes}) == 1
    around = [replace(recipe.model, encoder="", options={}) for recipe in recipes]
    assert all(settings == around[0] for settings in around)
    assert [recipe.model.encoder for recipe in recipes] == list(MODELS)
    assert recipes[MODELS.index(TREE_MODEL)].model.options == load_recipe(task).model.options


def test_a_quick_contest_on_a_small_table_ends_in_minutes() -> None:
    contest = find_contest(find_task("filters"), quick=True)
    assert recipe_for(contest, Entry("ebt-grc"), 1e-3, 199).training.max_epochs == 100
    assert recipe_for(contest, Entry("ebt-grc"), 1e-3, 19_200).training.max_epochs == 8


SIZES = [("filters", 100_000), ("logic", 121_977), ("listops", 79_544)]


@pytest.mark.parametrize(("task", "examples"), SIZES)
def test_a_run_has_one_budget_of_steps_and_a_trial_a_fifth_of_it(task: str, examples: int) -> None:
    contest = find_contest(find_task(task))
    entries = Entry("ebt-grc"), Entry("ebt-grc", trial=1e-3)
    run, trial = (recipe_for(contest, entry, 1e-3, examples).training for entry in entries)
    steps = run.max_epochs * -(-examples // run.batch_size)
    assert steps == pytest.approx(contest.steps, rel=0.04)
    assert trial.max_epochs / run.max_epochs == pytest.approx(0.2, abs=0.04)


def test_trials_come_before_seeds_and_every_model_has_as_many() -> None:
    contest = find_contest(find_task("filters"))
    names = [entry.name for entry in plan(contest, ["bilstm", "mamba"], 2)]
    assert names == [
        *("bilstm-rate0.0003", "bilstm-rate0.001", "bilstm-rate0.003"),
        *("mamba-rate0.0003", "mamba-rate0.001", "mamba-rate0.003"),
        *("bilstm-seed0", "mamba-seed0", "bilstm-seed1", "mamba-seed1"),
    ]
    quick = find_contest(find_task("filters"), quick=True)
    assert trials_of(quick, "bilstm") == []
    assert [entry.name for entry in plan(quick, ["bilstm"], 1)] == ["bilstm-seed0"]


@pytest.mark.parametrize("task", TASKS)
def test_no_point_of_the_axis_is_trained_on_and_all_splits_are_the_task_s(task: str) -> None:
    contest = find_contest(find_task(task))
    splits = list(contest.points.values())
    assert set(splits) <= set(find_task(task).splits)
    assert len(set(splits)) == len(splits) > contest.inside > 0
    assert not {"train", "dev"} & set(splits)


def test_files_of_the_user_s_take_the_place_of_test_splits(tmp_path: Path) -> None:
    contest = find_contest(find_task("filters"), ["a.tsv", "b.tsv"])
    assert contest.points == {"a": "a.tsv", "b": "b.tsv"}
    alike = ["x/a.tsv", "y/a.tsv"]
    assert list(find_contest(find_task("filters"), alike).points) == alike
    assert (contest.inside, contest.axis) == (0, "split")
    assert list(find_contest(find_task("sst5")).points) == ["test"]


def test_models_are_all_that_the_task_has_trees_for_or_those_named() -> None:
    assert choose_models(find_task("filters"), [], quick=False) == MODELS
    assert choose_models(find_task("sst5"), [], quick=False) == MODELS[:-1]
    assert choose_models(find_task("filters"), ["om", "om", "s4d"], quick=True) == ("om", "s4d")
    with pytest.raises(BeamtreeError, match=r"no encoder 'lstm' to compare; did you mean 'bilstm'\?"):
        choose_models(find_task("filters"), ["lstm"], quick=False)
    with pytest.raises(BeamtreeError, match="gold-grc follows gold trees, and the task 'sst5' has none"):
        choose_models(find_task("sst5"), ["gold-grc"], quick=False)
