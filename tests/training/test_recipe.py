"""Recipes: every shipped one loads, files may extend others, changes are checked like files."""

from pathlib import Path

import pytest

from beamtree.data.task import find_task
from beamtree.errors import BeamtreeError
from beamtree.training.recipe import (
    RESUMABLE,
    SHIPPED,
    Recipe,
    load_recipe,
    same_but_for_stopping,
    shipped_recipes,
)


def test_there_are_recipes_for_both_tasks_and_for_a_quick_look() -> None:
    assert {
        "listops",
        "logic",
        "listops-quick",
        "listops-quick-recurrent",
        "listops-minute",
    } <= set(shipped_recipes())
    assert list(shipped_recipes()) == sorted(shipped_recipes())


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_shipped_recipe_loads_is_commented_and_fits_a_screen(name: str) -> None:
    recipe = load_recipe(name)
    text = (SHIPPED / f"{name}.toml").read_text(encoding="utf-8")
    assert find_task(recipe.task.name).splits
    assert text.startswith("# ")
    assert len(text.splitlines()) <= 50


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


def test_a_written_recipe_is_read_back_equal(tmp_path: Path) -> None:
    recipe = load_recipe("logic", ["training.seed=7", "model.options.beam_size=2"])
    path = tmp_path / "recipe.toml"
    path.write_text(recipe.to_toml(), encoding="utf-8")
    assert load_recipe(path) == recipe


def test_changes_come_on_top_in_order() -> None:
    recipe = load_recipe("listops", ["training.seed=1", "model.encoder=om", "training.seed=2"])
    assert recipe.training.seed == 2
    assert recipe.model.encoder == "om"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "training.sed=1",
            "there is no setting 'training.sed'; did you mean 'training.seed'?",
        ),
        (
            "training.epochs=3",
            "there is no setting 'training.epochs'; did you mean 'training.max_epochs'?",
        ),
        ("trainig.seed=1", "there is no setting 'trainig'; did you mean 'training'?"),
        ("training.seed=x", "training.seed must be a whole number, got 'x'"),
        ("training=5", "training must be a section [training], got 5"),
        (
            "training.selection=f1",
            "training.selection must be one of loss, accuracy, macro_f1, auto, got 'f1'",
        ),
        ("model.d_model=0", "model.d_model must be at least 1, got 0"),
    ],
)
def test_a_wrong_change_is_refused_with_the_change_itself(change: str, message: str) -> None:
    with pytest.raises(BeamtreeError) as caught:
        load_recipe("listops", [change])
    assert str(caught.value) == f"--set {change}: {message}"


def test_a_recipe_may_extend_a_shipped_one_or_a_file_beside_it(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text('extends = "logic"\n[training]\nseed = 5\nclip = 2.0\n')
    (tmp_path / "row.toml").write_text(
        'extends = "base.toml"\n[model]\nencoder = "om"\n[training]\nclip = 3.0\n'
    )
    recipe = load_recipe(tmp_path / "row.toml")
    assert recipe.task.name == "logic"
    assert recipe.model.encoder == "om"
    assert (recipe.training.seed, recipe.training.clip) == (5, 3.0)


def test_another_encoder_does_not_inherit_the_options_of_the_one_it_replaces(tmp_path: Path) -> None:
    assert load_recipe("listops", ["model.encoder=om"]).model.options == {}
    path = tmp_path / "row.toml"
    path.write_text('extends = "listops"\n[model]\nencoder = "om"\n[model.options]\nmemory_slots = 12\n')
    assert load_recipe(path).model.options == {"memory_slots": 12}
    path.write_text('extends = "listops"\n[model]\nencoder = "ebt-grc"\n[model.options]\nbeam_size = 2\n')
    assert load_recipe(path).model.options == {"beam_size": 2, "slice_size": 64}


def test_recipes_that_extend_each_other_in_a_circle_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('extends = "b.toml"\n')
    (tmp_path / "b.toml").write_text('extends = "a.toml"\n')
    with pytest.raises(BeamtreeError, match=r"in a circle: .*a\.toml extends .*b\.toml extends .*a\.toml"):
        load_recipe(tmp_path / "a.toml")


def test_a_wrong_extends_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("extends = 5\n")
    with pytest.raises(BeamtreeError, match=r"a\.toml: extends must be .* got 5"):
        load_recipe(path)
    path.write_text('extends = "listop"\n')
    with pytest.raises(BeamtreeError, match=r"there is no recipe 'listop'.*did you mean 'listops'"):
        load_recipe(path)


def test_an_unknown_recipe_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(BeamtreeError) as caught:
        load_recipe("listops-quik")
    assert str(caught.value) == (
        "there is no recipe 'listops-quik', neither shipped nor a file; did you mean 'listops-quick'?"
    )


@pytest.mark.parametrize("name", ["reviews.tsv", "reviews.csv.gz", "reviews.json"])
def test_a_table_in_place_of_a_recipe_is_answered_with_the_command_that_trains_on_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text("label\ttext\ngood\tfine\n")
    with pytest.raises(BeamtreeError, match=f"to train on a table, beamtree train own --data {name}"):
        load_recipe(name)


def test_a_recipe_file_with_a_wrong_type_is_refused_with_key_and_value(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text('[training]\nbatch_size = "many"\n')
    with pytest.raises(BeamtreeError) as caught:
        load_recipe(path)
    assert str(caught.value) == f"recipe {path}: training.batch_size must be a whole number, got 'many'"


def test_only_what_decides_when_to_stop_and_save_may_change_between_runs() -> None:
    begun = load_recipe("listops")
    for name in RESUMABLE:
        assert same_but_for_stopping(begun, load_recipe("listops", [f"training.{name}=7"]))
    for change in ("training.seed=7", "training.learning_rate=7", "model.encoder=om", "task.dev=test"):
        assert not same_but_for_stopping(begun, load_recipe("listops", [change]))


def test_defaults_are_the_listops_recipe_but_for_the_encoders_options() -> None:
    assert load_recipe("listops", ["model.options={}"]).training == Recipe().training
