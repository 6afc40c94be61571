"""`beamtree train --seeds N`: an ensemble that is one model to every command, and survives interruptions."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from command_line import attempt, call
from published import brackets
from small_runs import SMALL

from beamtree import Ensemble, load_model
from beamtree.data.listops import sample_expressions
from beamtree.files.settings import from_table, merge_tables
from beamtree.files.tensors import load_tensors
from beamtree.paper.runs import find_run_folders
from beamtree.training.recipe import Recipe, load_recipe
from beamtree.training.run_folder import RunFolder

STEPS = 15  # of one seed: five batches, three epochs
OUT = Path("several")
NAMES = ("seed0", "seed1", "seed2", "median", "worst", "together")


@pytest.fixture(autouse=True)
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    table = merge_tables(SMALL, {"training": {"patience": 9}})
    Path("small.toml").write_text(from_table(Recipe, table, source="test").to_toml(), encoding="utf-8")
    return Path("small.toml")


def train(*more: object, rc: int = 0) -> str:
    result = attempt("train", "small.toml", *more)
    assert result.exit_code == rc, result.output
    return " ".join(result.output.split())


def weights(run: Path) -> dict[str, Any]:
    tensors, _ = load_tensors(run / "best" / "model.safetensors")
    return {name: tensor.tolist() for name, tensor in tensors.items()}


def test_every_member_is_the_model_that_its_seed_alone_would_be() -> None:
    said = train("--seed", 5, "--seeds", 2)
    assert "seed 5, 1 of 2, in runs/small-seeds5-6/seed5" in said
    assert "seed 6, 2 of 2" in said
    assert "the ensemble of 2 is in runs/small-seeds5-6" in said
    train("--seed", 6, "--out", "alone")
    assert weights(Path("runs/small-seeds5-6/seed6")) == weights(Path("alone"))
    assert weights(Path("runs/small-seeds5-6/seed5")) != weights(Path("alone"))
    assert load_recipe(Path("runs/small-seeds5-6/seed6/recipe.toml").resolve()).training.seeds == 1
    found = load_model("runs/small-seeds5-6")
    assert isinstance(found, Ensemble)
    assert found.names == ("seed5", "seed6")


# In the first seed, at its end, in the second, just after the beginning of it.
@pytest.mark.parametrize("steps", [3, STEPS, STEPS + 1, STEPS + 7])
def test_the_same_command_goes_on_where_it_was_stopped_and_loses_nothing(steps: int) -> None:
    train("--seeds", 2, "--out", "whole")
    command = ("--seeds", 2, "--out", OUT)
    said = train(*command, "--max-steps", steps)
    assert f"continue with: beamtree train --resume {OUT}" in said
    assert "the ensemble" not in said
    refused = attempt("parse", OUT, "[MAX 1 2 ]")
    assert (
        f"not all seeds of {OUT} are trained: continue with beamtree train --resume {OUT}" in refused.output
    )
    train(*command)
    for name in ("seed0", "seed1"):
        assert weights(OUT / name) == weights(Path("whole") / name)
    assert load_model(OUT).predict(["[MAX 1 2 ]"]) == load_model("whole").predict(["[MAX 1 2 ]"])


def test_resume_goes_on_too_and_with_more_epochs_if_asked() -> None:
    train("--seeds", 2, "--out", OUT, "--max-steps", 17)
    assert attempt("train", "--resume", OUT, "--set", "training.max_epochs=4").exit_code == 0
    assert [len(run.read_metrics()) for run in RunFolder(OUT).seeds] == [4, 4]
    assert load_recipe(RunFolder(OUT).recipe_file.resolve()).training.max_epochs == 4


def test_nothing_that_is_trained_is_lost_unless_asked() -> None:
    train("--seeds", 2, "--out", OUT, "--max-steps", 17)
    before = {path: path.read_bytes() for path in OUT.rglob("*") if path.is_file()}
    for other in (["--seeds", 3], ["--seeds", 2, "--seed", 1], []):
        assert "already holds a run" in train(*other, "--out", OUT, rc=2)
    assert (
        "was begun with training.seeds = 2, not 3" in attempt("train", "--resume", OUT, "--seeds", 3).output
    )
    assert {path: path.read_bytes() for path in OUT.rglob("*") if path.is_file()} == before
    train("--seeds", 2, "--out", OUT)
    assert "already holds a run" in train("--seeds", 2, "--out", OUT, rc=2)
    train("--out", OUT, "--overwrite")
    assert not any(OUT.glob("seed*"))
    assert not isinstance(load_model(OUT), Ensemble)


def test_overwriting_leaves_what_is_no_seed_of_the_run() -> None:
    train("--out", "runs/seed0")
    train("--out", "runs", rc=2)  # no run folder
    (RunFolder(Path("runs"))).write_recipe(load_recipe("small.toml"))
    before = weights(Path("runs/seed0"))
    train("--out", "runs", "--overwrite")
    assert weights(Path("runs/seed0")) == before


def test_a_member_that_was_begun_otherwise_is_not_gone_on_with() -> None:
    train("--seeds", 2, "--out", OUT, "--max-steps", 17)
    changed = load_recipe("small.toml", ["training.seed=1", "training.learning_rate=0.5"])
    RunFolder(OUT / "seed1").keep_recipe(changed)
    assert "seed1 was begun with training.learning_rate = 0.5, not 0.01" in train(
        "--seeds", 2, "--out", OUT, rc=2
    )


def test_evaluation_shows_each_seed_and_all_together_and_keeps_all_for_reports() -> None:
    train("--seeds", 3, "--out", OUT)
    drawn = sample_expressions(40, seed=9, min_length=4, max_length=12)
    Path("some.tsv").write_text("".join(f"{one.label}\t{brackets(one.sentences[0])}\n" for one in drawn))
    shown = call("eval", OUT, "some.tsv", "--save").output
    rows = [line.split() for line in shown.splitlines()]
    accuracy = {row[0]: float(row[1]) for row in rows if row and row[0] in NAMES}
    each = [accuracy[name] for name in ("seed0", "seed1", "seed2")]
    assert accuracy["median"] == sorted(each)[1]
    assert accuracy["worst"] == min(each)
    kept = json.loads((OUT / "eval.json").read_text())
    assert 100 * kept["splits"][0]["accuracy"] == pytest.approx(accuracy["together"], abs=0.06)
    member = json.loads((OUT / "seed1" / "eval.json").read_text())
    assert 100 * member["splits"][0]["accuracy"] == pytest.approx(accuracy["seed1"], abs=0.06)
    assert shlex.split(member["command"])[:3] == ["beamtree", "eval", str(OUT / "seed1")]
    alone = json.loads(call("eval", OUT / "seed1", "some.tsv", "--json").stdout)
    assert alone["splits"] == member["splits"]
    assert alone["weights"] == member["weights"] != kept["weights"]
    assert find_run_folders([OUT]) == [OUT / f"seed{i}" for i in range(3)]
    assert "| 2 |" in call("report", OUT).output


def test_an_ensemble_labels_files_and_draws_trees() -> None:
    train("--seeds", 2, "--out", OUT)
    Path("texts.txt").write_text("[MAX 1 2 ]\n[MIN 4 [MAX 2 3 ] ]\n")
    call("predict", OUT, "texts.txt", "--out", "labels.csv", "--trees")
    assert len(Path("labels.csv").read_text().splitlines()) == 3
    assert "→" in call("parse", OUT, "[MAX 1 2 ]").output
