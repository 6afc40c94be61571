"""The shipped recipes: one for every row of the tables, of the published size, and each of them trains."""

from pathlib import Path

import pytest
import torch
from published import brackets
from rich.console import Console
from small_language import TASKS, write_corpora

from beamtree.classifier.model import create_model
from beamtree.classifier.model_folder import load_model
from beamtree.data.filters_draws import generate_filters
from beamtree.data.listops import sample_expressions
from beamtree.data.task import find_task
from beamtree.data.vocabulary import Vocabulary
from beamtree.data.words import Words
from beamtree.paper.published import TABLES
from beamtree.training.display import Display
from beamtree.training.examples import load_learning_data
from beamtree.training.fit import fit
from beamtree.training.recipe import load_recipe
from beamtree.training.recipes import shipped_recipes
from beamtree.training.run_folder import RunFolder
from beamtree.training.schedule import Stopping
from beamtree.zoo.by_name import encoder_names

PAIRS = ("snli", "mnli", "qqp")
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
ROWS = tuple(name for name in shipped_recipes() if not load_recipe(name).task.sampled.train)
BEYOND = ("listops-beyond", "listops-second-cell")  # settings other than the paper's
SIZES = ("model.d_model=16", "model.embedding_size=8", "model.classifier_hidden=8")
BATCHES = ("training.batch_size=4", "training.micro_batch_size=2")


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_shipped_recipe_loads_and_says_in_a_line_what_it_is(name: str) -> None:
    recipe = load_recipe(name)
    about = shipped_recipes()[name].about
    assert find_task(recipe.task.name).splits
    assert 20 <= len(about) <= 130
    assert about.isprintable()
    assert not about.endswith(".")


def test_what_a_task_says_of_one_row_holds_for_that_row_alone() -> None:
    assert load_recipe("imdb-crvnn").training.micro_batch_size == 16
    assert load_recipe("imdb-crvnn").training.patience == 10
    assert load_recipe("imdb-egt-grc").training == load_recipe("imdb").training
    assert load_recipe("listops-om").model.options == {"memory_slots": 21, "memory_dropout": 0.1}
    assert load_recipe("logic-om").model.options == {"memory_slots": 12, "memory_dropout": 0.1}
    assert load_recipe("listops-om").training == load_recipe("listops").training


def test_listops_has_the_settings_of_the_paper() -> None:
    recipe = load_recipe("listops")
    model, training = recipe.model, recipe.training
    assert (model.d_model, model.embedding_size, model.classifier_hidden) == (128, 128, 128)
    assert (model.input_dropout, model.dropout, model.output_dropout) == (0.1, 0.1, 0.1)
    assert model.options == {"beam_size": 5, "slice_size": 64}
    assert (training.batch_size, training.bucket, training.clip) == (128, 5, 1.0)
    assert (training.learning_rate, training.weight_decay) == (1e-3, 1e-2)
    assert (training.max_epochs, training.patience, training.plateau_patience) == (100, 4, 2)
    assert training.selection == "loss"
    assert recipe.task.sampled.train == 0


def test_logic_has_the_settings_of_the_paper() -> None:
    recipe = load_recipe("logic")
    model, training = recipe.model, recipe.training
    assert (model.d_model, model.embedding_size, model.classifier_hidden) == (200, 200, 200)
    assert (model.input_dropout, model.dropout, model.output_dropout) == (0.1, 0.1, 0.1)
    assert (training.batch_size, training.clip, training.patience) == (128, 1.0, 4)
    assert training.selection == "accuracy"


def test_the_recurrent_rival_differs_from_the_quick_recipe_in_its_encoder_alone() -> None:
    quick, rival = load_recipe("listops-quick"), load_recipe("listops-quick-recurrent")
    assert rival.model.encoder == "recurrent-grc"
    assert rival.task == quick.task
    assert rival.training == quick.training
    assert rival.model.d_model == quick.model.d_model
    assert rival.model.classifier_hidden == quick.model.classifier_hidden


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


@pytest.mark.parametrize("name", [name for name in ROWS if name not in BEYOND])
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


def test_the_second_cell_follows_found_trees_and_has_three_other_settings() -> None:
    changes = ["model.trees_from=runs/listops-seed0", "training.learning_rate=3e-3"]
    changes += ["training.averaging=0.999", "training.patience=7"]
    assert load_recipe("listops-second-cell") == load_recipe("listops-gold-grc", changes)


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


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small files of every task under one folder."""
    root = tmp_path_factory.mktemp("data")
    (root / "listops").mkdir()
    (root / "logic").mkdir()
    drawn = sample_expressions(1008, seed=1, min_length=4, max_length=9)
    lines = [f"{one.label}\t{brackets(one.sentences[0])}\n" for one in drawn]
    (root / "listops" / "train_d20s.tsv").write_text("".join(lines))
    generate_filters(root / "filters", seed=0, train=20, dev=8, test=2)
    for index in range(7):
        (root / "logic" / f"train{index}").write_text("#\ta\tb\n^\ta\t( not a )\n>\ta\t( a ( and c ) )\n" * 6)
    return write_corpora(root)


@pytest.mark.parametrize("name", shipped_recipes())
def test_two_steps_by_every_shipped_recipe_move_every_weight(name: str, tmp_path: Path, data: Path) -> None:
    sampled = bool(load_recipe(name).task.sampled.train)
    few = ["task.sampled.train=8", "task.sampled.dev=8"] if sampled else []
    if load_recipe(name).model.trees_from:
        few = ["model.trees_from=listops-ebt-grc"]
    recipe, folder = load_recipe(name, [*SIZES, *BATCHES, *few]), RunFolder(tmp_path)
    learnt = load_learning_data(recipe, data)
    folder.begin(recipe)
    fit(recipe, folder, learnt, stopping=Stopping(steps=2), display=Display(Console(quiet=True)))
    torch.manual_seed(recipe.training.seed)
    fresh = dict(create_model(recipe.model, learnt.task, learnt.words).named_parameters())
    unmoved = {
        key
        for key, value in load_model(folder.last).named_parameters()
        if value.requires_grad and torch.equal(value, fresh[key]) and bool(value.any())
    }
    assert not unmoved
