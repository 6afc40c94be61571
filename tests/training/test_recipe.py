"""Recipes: files may extend others, changes are checked like files; data are drawn or read as they say."""

import shutil
from pathlib import Path

import pytest

from beamtree.data.formal import nesting
from beamtree.errors import BeamtreeError
from beamtree.training import recipes
from beamtree.training.examples import load_examples
from beamtree.training.recipe import RESUMABLE, Recipe, changed_settings, load_recipe


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


def test_a_copy_of_a_shipped_file_is_the_same_recipe(tmp_path: Path) -> None:
    files = {path.stem: path for path in Path(recipes.__file__).parent.glob("*.toml")}
    del files["models"]
    assert len(files) > 9
    for name, path in files.items():
        assert load_recipe(shutil.copy(path, tmp_path)) == load_recipe(name)


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
        assert not changed_settings(begun, load_recipe("listops", [f"training.{name}=7"]))
    for change in ("training.seed=7", "training.learning_rate=7.0", "model.encoder=om", "task.dev=test"):
        name, _, value = change.partition("=")
        found = changed_settings(begun, load_recipe("listops", [change]))
        assert name in found
        assert str(found[name][1]) == value
    assert changed_settings(begun, load_recipe("listops", ["model.options.new=7"])) == {
        "model.options.new": (None, 7)
    }


def test_defaults_are_the_listops_recipe_but_for_the_encoders_options() -> None:
    assert load_recipe("listops", ["model.options={}"]).training == Recipe().training


def test_the_quick_recipe_has_short_expressions_half_of_them_deep_and_none_in_both_sets() -> None:
    settings = load_recipe("listops-quick", ["task.sampled.train=401", "task.sampled.dev=100"]).task
    task, train, dev = load_examples(settings)
    assert task.name == "listops"
    assert (len(train), len(dev)) == (401, 100)
    for examples in (train, dev):
        lengths = [len(example.sentences[0]) for example in examples]
        assert min(lengths) >= 4
        assert 30 < max(lengths) <= 50
        deep = sum(nesting(example.sentences[0]) >= 3 for example in examples)
        assert deep == (len(examples) + 1) // 2 or deep == len(examples) // 2
    assert len({example.sentences for example in train + dev}) == 501


def test_a_draw_is_the_same_from_run_to_run_and_another_with_another_seed() -> None:
    def draw(seed: int) -> object:
        changes = ["task.sampled.train=20", "task.sampled.dev=5", f"task.sampled.seed={seed}"]
        return load_examples(load_recipe("listops-quick", changes).task)[1:]

    assert draw(3) == draw(3)
    assert draw(3) != draw(4)


def test_files_are_read_from_the_folder_given(tmp_path: Path) -> None:
    lines = [f"{i % 10}\t[MAX {i % 10} 0 ]\n" for i in range(1010)]
    (tmp_path / "train_d20s.tsv").write_text("".join(lines))
    _, train, dev = load_examples(load_recipe("listops").task, tmp_path)
    assert (len(train), len(dev)) == (10, 1000)
    with pytest.raises(BeamtreeError, match=r"has no split 'tran'; did you mean 'train'"):
        load_examples(load_recipe("listops", ["task.train=tran"]).task, tmp_path)
    (tmp_path / "train_d20s.tsv").unlink()
    with pytest.raises(
        BeamtreeError, match=r"has no train_d20s\.tsv .*; `beamtree data listops --out .*` makes them"
    ):
        load_examples(load_recipe("listops").task, tmp_path)


def test_a_split_without_examples_is_named(tmp_path: Path) -> None:
    for split in ("train", "dev"):
        (tmp_path / f"{split}.tsv").write_text("label\tpremise\thypothesis\n")
    with pytest.raises(BeamtreeError, match=r"the split 'train' of snli in .* has no examples"):
        load_examples(load_recipe("snli").task, tmp_path)
    (tmp_path / "train.tsv").write_text("label\tpremise\thypothesis\nneutral\tA man.\tA dog.\n")
    with pytest.raises(BeamtreeError, match=r"the split 'dev' of snli in .* has no examples"):
        load_examples(load_recipe("snli").task, tmp_path)
