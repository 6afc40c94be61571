"""Which row a run belongs to, and the command that repeats it."""

import shlex
from pathlib import Path

import pytest
from reported import cell_of, make_run, table_of

from beamtree.errors import BeamtreeError
from beamtree.paper.published import LABELS, TABLES
from beamtree.paper.report import build_report
from beamtree.paper.runs import read_run
from beamtree.paper.table_rows import row_of, training_command
from beamtree.training.recipe import load_recipe
from beamtree.training.recipes import shipped_recipes
from beamtree.training.run_folder import RunFolder


def test_changed_settings_get_a_row_of_their_own_that_names_them(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / "plain", accuracy={"near-iid": 0.9}),
        make_run(tmp_path / "wide", "listops", ["model.options.beam_size=10"], accuracy={"near-iid": 0.8}),
        make_run(tmp_path / "long", "listops", ["training.patience=9"], accuracy={"near-iid": 0.7}),
        make_run(tmp_path / "512", "listops", ["model.d_model=512"], accuracy={"near-iid": 0.6}),
        make_run(tmp_path / "off", "listops", ["model.options.stochastic=false"], accuracy={"near-iid": 0.4}),
        make_run(tmp_path / "quick", "listops-quick", accuracy={"near-iid": 0.5}),
    ]
    make_run(runs[0], beam=20, accuracy={"near-iid": 0.95})
    table = table_of(runs, "listops")
    for label, text in (
        ("EBT-GRC", "90.00"),
        ("EBT-GRC, beam_size 10", "80.00"),
        ("EBT-GRC, patience 9", "70.00"),
        ("EBT-GRC (512)", "60.00"),
        ("listops-quick", "50.00"),
        ("EBT-GRC, stochastic false", "40.00"),
        ("EBT-GRC, tested with 20 beams", "95.00"),
    ):
        assert cell_of(table, label, "near-IID").text == text
    assert sum(row[1].startswith("paper") for row in table.texts) == len(TABLES["listops"].rows)


def test_what_changes_no_figure_changes_no_row(tmp_path: Path) -> None:
    same = ["training.seed=3", "training.micro_batch_size=8", "training.deterministic=true"]
    make_run(tmp_path, "listops", [*same, "training.max_epochs=50"], epochs=8, best=3)
    assert row_of(read_run(tmp_path)).label == "EBT-GRC"  # it stopped by itself before either limit
    make_run(tmp_path / "short", "listops", ["training.max_epochs=6"], epochs=6, best=6)
    assert row_of(read_run(tmp_path / "short")).label == "EBT-GRC, max_epochs 6"
    limit = load_recipe("listops").training.max_epochs
    for epochs, label in ((limit, "EBT-GRC"), (limit + 1, "EBT-GRC, max_epochs 999")):
        path = make_run(
            tmp_path / label, "listops", ["training.max_epochs=999"], epochs=epochs, best=epochs - 5
        )
        assert row_of(read_run(path)).label == label


def test_products_in_tf32_change_no_row_but_are_told(tmp_path: Path) -> None:
    make_run(tmp_path / "a", accuracy={"near-iid": 0.9})
    make_run(
        tmp_path / "b", "listops", ["training.seed=1", "training.precision=tf32"], accuracy={"near-iid": 1}
    )
    make_run(tmp_path / "c", "listops", ["training.precision=bf16"], accuracy={"near-iid": 0.7})
    table = table_of([tmp_path], "listops")
    assert cell_of(table, "EBT-GRC", "near-IID").text == "95.00 ±5.00"
    assert cell_of(table, "EBT-GRC, precision bf16", "near-IID").text == "70.00"
    assert table.remarks[0] == "Trained with matrix products in tf32 instead of float32: runs 2."


def test_the_recipe_beyond_the_paper_is_an_option_and_no_base_of_others(tmp_path: Path) -> None:
    make_run(tmp_path / "a", accuracy={"near-iid": 0.9})
    make_run(tmp_path / "b", "listops-crvnn", accuracy={"near-iid": 0.8})
    make_run(tmp_path / "c", "listops-beyond", ["training.precision=tf32"], accuracy={"near-iid": 1})
    near = ["model.options.slice_size=64", "training.seed=1"]
    make_run(tmp_path / "d", "listops-beyond", near, accuracy={"near-iid": 0.95})
    table = table_of([tmp_path], "listops")
    sources = {row[0]: row[1] for row in table.texts}
    assert sources["EBT-GRC, beyond the paper"].startswith("ours, option")
    assert sources["EBT-GRC, learning_rate 0.002, patience 7, averaging 0.999"].startswith("ours, option")
    assert cell_of(table, "EBT-GRC", "near-IID").best
    assert not cell_of(table, "EBT-GRC, beyond the paper", "near-IID").best


def test_second_cells_are_one_row_whatever_trees_each_seed_follows(tmp_path: Path) -> None:
    for seed in (0, 1):
        changes = [f"training.seed={seed}", f"model.trees_from=runs/listops-seed{seed}"]
        make_run(tmp_path / str(seed), "listops-second-cell", changes, accuracy={"near-iid": 0.8 + seed / 10})
        assert training_command(load_recipe("listops-second-cell", changes)) is not None
    changes = ["model.trees_from=listops-ebt-grc", "training.max_epochs=12"]
    make_run(
        tmp_path / "short", "listops-second-cell", changes, accuracy={"near-iid": 0.7}, epochs=12, best=12
    )
    table = table_of([tmp_path], "listops")
    row = "EBT-GRC, a second cell along its trees"
    assert cell_of(table, row, "near-IID").text == "85.00 ±5.00"
    assert cell_of(table, f"{row}, max_epochs 12", "near-IID").text == "70.00"  # and not one of GoldTreeGRC


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_shipped_recipe_is_a_row_of_its_own_and_its_command_repeats_it(
    name: str, tmp_path: Path
) -> None:
    recipe = load_recipe(name, ["training.seed=2"])
    assert training_command(recipe) == f"beamtree train {name} --set training.seed=2"
    row = row_of(read_run(make_run(tmp_path, name)))
    assert row.plain
    assert row.label == LABELS.get(row.name, name)


def test_a_command_repeats_the_recipe_whatever_was_changed(tmp_path: Path) -> None:
    changes = ["model.options.slice_size=16", "task.dev=a split's", "training.learning_rate=0.0005"]
    recipe = load_recipe("logic", changes)
    words = shlex.split(training_command(recipe) or "")
    assert words[:3] == ["beamtree", "train", "logic"]
    assert load_recipe(words[2], words[4::2]) == recipe
    # An option that the shipped recipe sets cannot be taken away again by a change.
    odd = load_recipe("listops-om", ["model.encoder=ebt-grc"])
    assert training_command(odd) is None
    path = tmp_path / "dotted.toml"
    path.write_text('extends = "listops"\n[model.options]\n"a.b" = 1\n')
    assert training_command(load_recipe(path)) is None
    path = make_run(tmp_path / "odd", "listops-om", ["model.encoder=ebt-grc"])
    assert table_of([path], "runs").texts[0][3] == f"beamtree train {path / 'recipe.toml'}"
    assert "beam_size left at its default" in row_of(read_run(path)).label


def test_an_evaluation_without_its_command_leaves_that_of_the_training(tmp_path: Path) -> None:
    file = make_run(tmp_path, accuracy={"near-iid": 0.9}) / "eval.json"
    file.write_text(file.read_text().replace(f'"beamtree eval {tmp_path}"', "null"))
    assert table_of([tmp_path], "runs").texts[0][3] == "beamtree train listops"


def test_a_model_without_a_recipe_of_the_task_is_called_by_its_name(tmp_path: Path) -> None:
    changes = ["model.encoder=gt-grc", "training.seed=1", "model.d_model=48"]
    run = make_run(tmp_path / "a", "own", changes, epochs=12)
    assert row_of(read_run(run)).label == "GT-GRC, d_model 48"
    words = shlex.split(training_command(read_run(run).recipe) or "")
    assert load_recipe(words[2], words[4::2]) == load_recipe("own", changes)
    odd = make_run(tmp_path / "b", "listops", ["model.encoder=crvnn-nohalt"])
    assert row_of(read_run(odd)).label == "listops-crvnn-nohalt"


def test_runs_of_ones_own_are_told_apart_by_the_files_they_learnt_from(tmp_path: Path) -> None:
    for name, file, seed in (("a", "spam.tsv", 0), ("b", "films.tsv", 0), ("c", "films.tsv", 1)):
        folder = make_run(
            tmp_path / name, "own", [f"training.seed={seed}"], accuracy={"test": 0.75}, epochs=12
        )
        facts = {"train": {"examples": 9}, "words": None, "path": file}
        RunFolder(folder).write_data_facts(facts)
    splits, runs = build_report([tmp_path]).tables
    assert [row[0] for row in splits.texts] == [
        "EBT-GRC, data films.tsv",
        "EBT-GRC, data films.tsv",
        "EBT-GRC, data spam.tsv",
    ]
    assert runs.texts[0][3].startswith("beamtree train own --data spam.tsv --out")
    RunFolder(folder).write_data_facts({**facts, "path": 3})
    with pytest.raises(BeamtreeError, match="does not say which data the run learnt from"):
        build_report([tmp_path])
