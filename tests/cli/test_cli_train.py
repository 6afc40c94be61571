"""`beamtree train` and `beamtree data`: what they say, what they refuse, what they leave behind."""

import json
from functools import partial
from pathlib import Path

import pytest
from command_line import attempt, refusal
from small_runs import SMALL

from beamtree.classifier.model_folder import load_model
from beamtree.data.filters_draws import generate_filters
from beamtree.data.listops.splits import TASK
from beamtree.errors import BeamtreeError
from beamtree.files.settings import from_table, merge_tables
from beamtree.training.recipe import Recipe, load_recipe
from beamtree.training.recipes import shipped_recipes
from beamtree.training.run_folder import RunFolder


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BEAMTREE_DATA", raising=False)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    table = merge_tables(SMALL, {"task": {"sampled": {"max_length": 16}}})
    path = tmp_path / "small.toml"
    path.write_text(from_table(Recipe, table, source="test").to_toml(), encoding="utf-8")
    return path


def test_train_makes_a_run_folder_says_one_line_an_epoch_and_where_the_best_is(recipe: Path) -> None:
    result = attempt("train", recipe, "--set", "training.seed=5")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    folder = Path("runs/small-seed5")
    assert lines[0] == (f"recurrent-grc on listops: 40 training and 12 dev examples, cpu × 1, in {folder}")
    assert "dev accuracy" in lines[1]
    assert "tokens/s" in lines[1]
    assert [line.split()[0] for line in lines[2:5]] == ["1/3", "2/3", "3/3"]
    assert lines[2].endswith("best")
    assert lines[5].startswith("finished: all 3 epochs are done; best epoch ")
    assert len(RunFolder(folder).read_metrics()) == 3
    assert load_model(folder).predict(["[MAX 1 2 ]"])[0].label in TASK.labels


def test_a_run_is_stopped_refused_resumed_and_replaced(recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    stopped = attempt("train", recipe, "--out", out, "--max-steps", 3)
    assert stopped.exit_code == 0
    assert f"stopped after 3 steps, as asked; continue with: beamtree train --resume {out}" in stopped.output
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert "already holds a run: --resume" in refusal("train", recipe, "--out", out)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    resumed = attempt("train", "--resume", out)
    assert resumed.exit_code == 0
    assert len(RunFolder(out).read_metrics()) == 3
    replaced = attempt("train", recipe, "--out", out, "--overwrite", "--max-minutes", 0)
    assert replaced.exit_code == 0
    assert RunFolder(out).read_metrics() == []


def test_recipes_are_shown_and_nothing_is_trained(recipe: Path, tmp_path: Path) -> None:
    listed = attempt("train", "--show").output.splitlines()
    assert [line.split()[0] for line in listed] == list(shipped_recipes())
    assert any(line.startswith("listops  ") and "with the paper's settings" in line for line in listed)
    shown = attempt("train", recipe, "--set", "training.seed=5", "--show")
    assert shown.exit_code == 0
    assert "seed = 5  # determines initial weights" in shown.output
    (tmp_path / "full.toml").write_text(shown.output)
    assert load_recipe(tmp_path / "full.toml") == load_recipe(recipe, ["training.seed=5"])
    assert not Path("runs").exists()


def test_the_same_command_begins_and_continues(recipe: Path, tmp_path: Path) -> None:
    for _ in range(2):
        result = attempt("train", recipe, "--resume", tmp_path / "run", "--max-steps", 6)
        assert result.exit_code == 0, result.output
    assert len(RunFolder(tmp_path / "run").read_metrics()) == 2
    message = refusal("train", recipe, "--resume", tmp_path / "run", "--set", "training.seed=1")
    assert "was begun with training.seed = 0, not 1" in message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a RECIPE (--show lists them), or a run folder with --resume"),
        (["--resume", "x", "--out", "y"], "--resume continues a run in its own folder: leave out --out"),
        (["--resume", "x", "--overwrite"], "--resume continues a run in its own folder"),
        (["--resume", "x"], "there is no run to resume in x: it has no recipe.toml"),
        (["listop"], "there is no recipe 'listop', neither shipped nor a file; did you mean 'listops'?"),
        (
            ["listops"],
            "data/listops: `beamtree data listops --out data/listops` makes them, or name their folder with",
        ),
        (
            ["logic", "--data", "here"],
            "there are no logic data in here: `beamtree data logic --out here` makes them",
        ),
        (["listops", "--set", "training.batch_size=many"], "training.batch_size must be a whole number"),
        (["listops-quick", "--set", "task.name=chess"], "there is no task 'chess'"),
        (["listops-quick", "--set", "task.name=logic"], "task.sampled draws ListOps only"),
        (["listops-quick", "--set", "task.sampled.dev=0"], "task.sampled.dev must be at least 1"),
        (["listops-minute", "--set", "model.encoder=ebt"], "there is no encoder 'ebt'"),
        (["listops-minute", "--set", "model.options.beams=3"], "has no option 'beams'"),
        (
            ["listops-minute", "--set", "training.micro_batch_size=99999"],
            "micro_batch_size 99999 is larger than batch_size",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused_in_one_sentence(arguments: list[str], message: str) -> None:
    assert message in refusal("train", *arguments)


def test_a_folder_that_cannot_be_made_is_refused_in_one_sentence(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    message = refusal("train", recipe, "--out", tmp_path / "file" / "run")
    assert message == f"cannot make the folder {tmp_path / 'file' / 'run'}: Not a directory"


def test_debug_shows_the_trace(recipe: Path) -> None:
    result = attempt("--debug", "train", "listop")
    assert isinstance(result.exception, BeamtreeError)


def test_listops_files_are_made_and_train_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from beamtree.data.listops import draws as listops_draws
    from beamtree.data.listops.draws import Draw

    draws = [Draw({"train_d20s.tsv": 1100, "test_d20s.tsv": 20}, listops_draws.DRAWS[0].process)]
    monkeypatch.setattr(listops_draws, "DRAWS", draws)
    made = attempt("data", "listops", "--split", "train", "--split", "dev", "--split", "near-iid")
    assert made.exit_code == 0, made.output
    assert made.output.strip().endswith("3 splits of ListOps in data/listops: train, dev, near-iid")
    assert len((tmp_path / "data/listops/train_d20s.tsv").read_text().splitlines()) == 1100
    assert "already has train_d20s.tsv" in refusal("data", "listops", "--split", "dev")
    one = attempt("data", "listops", "--split", "dev", "--out", "other").output
    assert one.strip().endswith("1 split of ListOps in other: dev")
    assert attempt("data", "listops", "--split", "dev", "--overwrite").exit_code == 0
    trained = attempt(
        "train", "listops", "--max-steps", 1, "--set", "model.d_model=8", "--out", tmp_path / "run"
    )
    assert trained.exit_code == 0, trained.output
    assert "1,000 dev examples" in trained.output
    assert "no split" in refusal("data", "listops", "--split", "tran")


def test_filters_are_made_and_train_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEAMTREE_DATA", str(tmp_path / "sets"))
    few = partial(generate_filters, train=20, dev=8, test=2)
    monkeypatch.setattr("beamtree.data.filters_draws.generate_filters", few)
    made = attempt("data", "filters", "--seed", 3)
    assert made.exit_code == 0, made.output
    assert f"12 splits of filters in {tmp_path / 'sets/filters'}: train, dev, depth1" in made.output
    assert "already has train.tsv" in refusal("data", "filters")
    assert attempt("data", "filters", "--overwrite").exit_code == 0
    tiny = ["--set", "model.d_model=8", "--set", "training.batch_size=8", "--set", "training.max_epochs=1"]
    trained = attempt("train", "filters", *tiny, "--out", tmp_path / "run")
    assert trained.exit_code == 0, trained.output
    measured = attempt("eval", tmp_path / "run", "--split", "depth2", "--split", "depth10", "--json")
    assert [split["by_depth"][0]["depth"] for split in json.loads(measured.stdout)["splits"]] == [2, 10]


def test_logic_files_are_made_and_train_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEAMTREE_DATA", str(tmp_path / "sets"))
    made = attempt("data", "logic", "--pairs", 20_000, "--seed", 3)
    assert made.exit_code == 0, made.output
    assert made.output.strip().endswith(f"26 files of logical inference in {tmp_path / 'sets/logic'}")
    assert "already has train0" in refusal("data", "logic")
    assert "leave" in refusal("data", "logic", "--pairs", 5, "--out", tmp_path / "few")
    assert not (tmp_path / "few").exists()
    tiny = ["--set", "model.d_model=8", "--set", "training.batch_size=4", "--max-steps", 1]
    trained = attempt("train", "logic", *tiny, "--out", tmp_path / "run")
    assert trained.exit_code == 0, trained.output


def test_a_model_that_cannot_be_made_leaves_no_folder(recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    wrong = ("--set", "model.encoder=ebt-grc", "--set", "model.options.beam_size=0")
    assert "beam_size must be a whole number of at least 1, got 0" in refusal(
        "train", recipe, "--out", out, *wrong
    )
    assert not out.exists()
