"""The language recipes: a row for every model of the paper's Tables 3 and 4, with the authors' settings."""

import pytest
import torch

from beamtree.classifier.model import create_model
from beamtree.data.task import find_task
from beamtree.data.vocabulary import Vocabulary
from beamtree.data.words import Words
from beamtree.paper.published import TABLES
from beamtree.training.recipe import load_recipe

TASKS = ("sst5", "imdb", "snli", "mnli", "qqp")
PAIRS = ("snli", "mnli", "qqp")


def recipe_of(task: str, row: str) -> str:
    return task if row == "ebt-grc" else f"{task}-{row}"


@pytest.mark.parametrize("task", TASKS)
def test_every_row_of_the_papers_table_has_a_recipe(task: str) -> None:
    for row in TABLES[task].rows:
        recipe = load_recipe(recipe_of(task, row))
        assert (recipe.task.name, recipe.model.encoder) == (task, row)
        assert (recipe.task.train, recipe.task.dev) == ("train", "dev")


@pytest.mark.parametrize("task", TASKS)
def test_every_column_of_the_papers_table_is_a_split(task: str) -> None:
    assert set(TABLES[task].columns) <= set(find_task(task).splits)


@pytest.mark.parametrize("task", TASKS)
def test_settings_are_those_of_the_authors(task: str) -> None:
    for row in TABLES[task].rows:
        model, training = (lambda recipe: (recipe.model, recipe.training))(load_recipe(recipe_of(task, row)))
        assert (model.d_model, model.classifier_hidden) == (300, 300)
        assert (model.input_dropout, model.dropout, model.output_dropout) == (
            (0.4, 0.1, 0.1) if task in PAIRS else (0.4, 0.2, 0.4)
        )
        assert (training.batch_size, training.learning_rate, training.weight_decay) == (128, 1e-3, 1e-2)
        assert (training.bucket, training.clip, training.max_epochs) == (
            (10, 5.0, 50) if task in PAIRS else (5, 1.0, 100)
        )
        assert training.selection == "accuracy"
        assert training.patience == (4 if task in PAIRS else 10 if row == "crvnn" else 5)
        assert model.project_tokens == (task == "qqp")
    slots = 12 if task in PAIRS else 15
    memory = load_recipe(f"{task}-om").model.options
    assert memory == {"memory_slots": slots, "memory_dropout": 0.1 if task in PAIRS else 0.2}
    assert load_recipe(f"{task}-bt-grc-os").model.options["stochastic"] is True


@pytest.mark.parametrize(
    ("row", "parameters"), [("gau", 4_449_721), ("egt-gau", 4_241_002), ("ebt-gau", 4_241_002)]
)
def test_an_interaction_model_has_the_published_number_of_parameters(row: str, parameters: int) -> None:
    recipe = load_recipe(f"snli-{row}")
    with torch.device("meta"):
        words = Words(Vocabulary(("a", "b")), torch.zeros(2, 300))
        model = create_model(recipe.model, find_task("snli"), words)
    counts = {name: sum(p.numel() for p in part.parameters()) for name, part in model.named_children()}
    assert counts == {"embedding": 300, "encoder": parameters, "head": 91_203}


def test_vectors_of_another_width_change_the_first_layer_alone() -> None:
    settings = load_recipe("snli-ebt-gau").model
    shapes = []
    for width in (300, 100):
        with torch.device("meta"):
            words = Words(Vocabulary(("a", "b")), torch.zeros(2, width))
            model = create_model(settings, find_task("snli"), words)
        shapes.append({name: p.shape for name, p in model.encoder.named_parameters()})
    changed = {name for name in shapes[0] if shapes[0][name] != shapes[1][name]}
    assert changed == {"contextualizer.source.leaf.linear.weight"}
    with torch.device("meta"):
        projected = create_model(load_recipe("qqp").model, find_task("qqp"), words)
    assert projected.embedding.projection.weight.shape == (300, 100)
