"""The shipped recipes: one for every row of the tables, of the published size, and each of them trains."""

from pathlib import Path

import pytest
import torch
from rich.console import Console
from small_language import TASKS, find_small, write_corpora
from small_language import examples_of as language_examples

from beamtree.classifier.model import create_model
from beamtree.classifier.model_folder import load_model
from beamtree.data.listops import sample_expressions
from beamtree.data.task import Example, find_task
from beamtree.data.words import Words
from beamtree.training.display import Display
from beamtree.training.examples import LearningData
from beamtree.training.fit import fit
from beamtree.training.recipe import load_recipe, shipped_recipes
from beamtree.training.run_folder import RunFolder
from beamtree.training.schedule import Stopping
from beamtree.zoo.by_name import encoder_names

# models.md §4.5, the last column
LISTOPS_PARAMETERS = {
    "listops": 439_691,
    "listops-egt-grc": 439_691,
    "listops-gt-grc": 431_499,
    "listops-bt-grc": 431_499,
    "listops-bt-grc-os": 431_499,
    "listops-beyond": 439_691 - 2 * 32 * 64,
    "listops-ebt-grc-noslice": 464_395,
    "listops-ebt-grc-noslice-64": 439_691 + 2 * 64 * 64,
    "listops-ebt-grc-512": 6_441_227,
    "listops-ebt-grc-512-noslice": 6_958_219,
    "listops-gold-grc": 431_370,
    "listops-balanced-grc": 431_370,
    "listops-crvnn": 513_803,
    "listops-om": 464_779,
    "listops-recurrent-grc": 431_498,
}
SMALL_FILTERS = [(one, other, colour) for one in (2, 5) for other in (3, 7, 9) for colour in ("red", "blue")]
ROWS = tuple(name for name in shipped_recipes() if not load_recipe(name).task.sampled.train)
SIZES = ("model.d_model=16", "model.embedding_size=8", "model.classifier_hidden=8")
BATCHES = ("training.batch_size=4", "training.micro_batch_size=2")


@pytest.mark.parametrize("task", ["listops", "logic"])
def test_every_sentence_encoder_has_a_recipe_for_either_task(task: str) -> None:
    named = {name: load_recipe(name) for name in shipped_recipes() if name.split("-")[0] == task}
    assert {recipe.task.name for recipe in named.values()} == {task}
    for encoder in encoder_names():
        if encoder == "crvnn-nohalt":  # a row of the speed test: CRvNN's result at a higher cost
            continue
        name = task if encoder == "ebt-grc" else f"{task}-{encoder}"
        assert named[name].model.encoder == encoder


@pytest.mark.parametrize("name", sorted(LISTOPS_PARAMETERS))
def test_a_listops_classifier_has_the_published_number_of_parameters(name: str) -> None:
    recipe = load_recipe(name)
    with torch.device("meta"):
        model = create_model(recipe.model, find_task(recipe.task.name))
    assert sum(parameter.numel() for parameter in model.parameters()) == LISTOPS_PARAMETERS[name]


@pytest.mark.parametrize("task", ["listops", "logic"])
def test_the_bilstm_is_as_large_as_the_model_it_is_compared_with(task: str) -> None:
    sizes = []
    for recipe in (load_recipe(task), load_recipe(f"{task}-bilstm")):
        with torch.device("meta"):
            model = create_model(recipe.model, find_task(task))
        sizes.append(sum(parameter.numel() for parameter in model.parameters()))
    assert sizes[1] == pytest.approx(sizes[0], rel=0.05)


@pytest.mark.parametrize("name", [name for name in ROWS if name != "listops-beyond"])
def test_a_row_changes_nothing_but_its_model_its_patience_and_its_memory(name: str) -> None:
    recipe = load_recipe(name)
    base = load_recipe(recipe.task.name)
    allowed = {"patience": recipe.training.patience, "micro_batch_size": recipe.training.micro_batch_size}
    changes = [f"training.{key}={value}" for key, value in allowed.items()]
    assert load_recipe(recipe.task.name, changes).training == recipe.training
    assert recipe.task == base.task
    for size in ("embedding_size", "classifier_hidden", "input_dropout", "dropout", "output_dropout"):
        assert getattr(recipe.model, size) == getattr(base.model, size)


def test_the_recipe_beyond_the_paper_changes_the_four_settings_that_it_names() -> None:
    changes = ["model.options.slice_size=32", "training.learning_rate=2e-3"]
    changes += ["training.averaging=0.999", "training.patience=7"]
    assert load_recipe("listops-beyond") == load_recipe("listops", changes)


def test_the_settings_that_differ_from_model_to_model_are_the_authors() -> None:
    for task, slots in (("listops", 21), ("logic", 12)):
        memory = load_recipe(f"{task}-om").model.options
        assert (memory["memory_slots"], memory["memory_dropout"]) == (slots, 0.1)
        assert load_recipe(f"{task}-crvnn").training.patience == 10
        assert load_recipe(f"{task}-bt-grc-os").model.options["stochastic"] is True
        assert load_recipe(f"{task}-bt-grc").model.options["beam_size"] == 5
    assert load_recipe("listops-bt-grc-os").training.micro_batch_size == 64
    assert load_recipe("logic-bt-grc-os").training.micro_batch_size == 0


@pytest.mark.parametrize("width", [16, 32, 128])
def test_the_slice_is_swept_by_one_change(width: int) -> None:
    recipe = load_recipe("listops", [f"model.options.slice_size={width}"])
    with torch.device("meta"):
        model = create_model(recipe.model, find_task("listops"))
    assert model.encoder.scorer.hidden.weight.shape == (64, 2 * width)


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpora(tmp_path_factory.mktemp("data"))


def examples_of(task: str, corpora: Path) -> tuple[list[Example], Words | None]:
    """Eight training examples after four of dev."""
    if task in (*TASKS, "own"):
        train, dev, words = language_examples(task, corpora)
        return dev[:4] + train[:8], words
    return formal_examples(task), None


def formal_examples(task: str) -> list[Example]:
    if task == "listops":
        return sample_expressions(12, seed=1, min_length=4, max_length=9)
    if task == "filters":
        read = find_task(task).tokenize
        texts = [
            f"{one} < {other} or not ( red = {colour} and 1 > 0 )" for one, other, colour in SMALL_FILTERS
        ]
        return [Example((read(text),), find_task(task).answer((read(text),))) for text in texts]
    formulas = ("a", "( not b )", "( a ( and b ) )", "( ( not a ) ( or ( b ( and c ) ) ) )")
    relations = find_task(task).labels
    pairs = [(one, other) for one in formulas for other in formulas][:12]
    read = find_task(task).tokenize
    return [
        Example((read(one), read(other)), relations[i % len(relations)])
        for i, (one, other) in enumerate(pairs)
    ]


@pytest.mark.parametrize("name", shipped_recipes())
def test_two_steps_by_every_shipped_recipe_move_every_weight(
    name: str, tmp_path: Path, corpora: Path
) -> None:
    recipe = load_recipe(name, [*SIZES, *BATCHES])
    task, folder = find_small(recipe.task.name, corpora), RunFolder(tmp_path)
    folder.begin(recipe)
    examples, words = examples_of(task.name, corpora)
    outcome = fit(
        recipe,
        folder,
        LearningData(task, examples[4:], examples[:4], words),
        stopping=Stopping(steps=2),
        display=Display(Console(quiet=True)),
    )
    assert [record["step"] for record in outcome.history] == [2]
    torch.manual_seed(recipe.training.seed)
    fresh = dict(create_model(recipe.model, task, words).named_parameters())
    unmoved = {
        key
        for key, value in load_model(folder.best).named_parameters()
        if torch.equal(value, fresh[key]) and bool(value.any())
    }
    assert not unmoved
