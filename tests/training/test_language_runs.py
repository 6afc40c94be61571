"""The language tasks from end to end: train, resume, eval, parse, report and check, on small corpora."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import attempt, call, refusal
from small_language import PAIRS, WIDTH, write_corpora

from beamtree.classifier.model import ModelSettings, create_model
from beamtree.classifier.model_folder import load_model
from beamtree.data.task import find_task
from beamtree.data.vocabulary import Vocabulary
from beamtree.data.words import Words
from beamtree.errors import BeamtreeError

SMALL = (
    "--set=model.d_model=16",
    "--set=model.classifier_hidden=8",
    "--set=model.embedding_size=6",
    "--set=training.batch_size=8",
)


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpora(tmp_path_factory.mktemp("data"))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BEAMTREE_DATA", raising=False)


def said(*words: object) -> str:
    return call(*words).output


def train(recipe: str, data: Path, out: str = "run", epochs: int = 1, *changes: str) -> str:
    settings = (*SMALL, f"--set=training.max_epochs={epochs}", *(f"--set={change}" for change in changes))
    return said("train", recipe, "--data", data, "--out", out, *settings)


@pytest.mark.parametrize(
    ("recipe", "splits"),
    [
        ("sst5", {"dev", "test"}),
        ("imdb-om", {"dev", "test", "contrast", "counterfactual", "test-long"}),
        ("snli", {"dev", "test", "hard", "break", "counterfactual"}),
        ("snli-ebt-gau", {"dev", "test", "hard", "break", "counterfactual"}),
        ("qqp-gau", {"dev", "test", "paws-qqp", "paws-wiki"}),
        (
            "mnli-egt-gau",
            {"dev", "matched", "mismatched", "conjnli"}
            | {f"{kind}-{genres}" for kind in ("negation", "length") for genres in ("matched", "mismatched")},
        ),
    ],
)
def test_a_model_is_trained_evaluated_on_every_split_and_reported(
    recipe: str, splits: set[str], corpora: Path
) -> None:
    output = train(recipe, corpora)
    kept = "6 seen in training are tuned, 0 fixed" if recipe == "sst5" else "fixed"
    assert f"with vectors of small ({WIDTH} wide, {kept})" in output
    assert "learn theirs; unknown:" in output
    said("eval", "run", "--data", corpora, "--save")
    measured = json.loads(Path("run/eval.json").read_text())
    assert {entry["split"] for entry in measured["splits"]} == splits
    report = said("report", "run")
    assert "Ours learn from " in report
    assert f"other vectors: small, {WIDTH} wide (the paper: GloVe 840B, 300 wide)" in report
    assert ("a subset: " in report) == (not recipe.startswith("imdb"))
    assert ("stress tests are not at hand" in report) == recipe.startswith("mnli")


def test_the_model_folder_keeps_the_vectors_as_they_were(corpora: Path) -> None:
    train("snli-ebt-gau", corpora)
    model = load_model("run")
    table = model.embedding.table
    assert table.dtype == torch.float16
    stored = torch.from_numpy(np.load(corpora / "vectors" / "small.npy"))
    place = (corpora / "vectors" / "small_words.txt").read_text().split().index("man")
    (man,) = model.vocabulary.encode(["man"])
    assert torch.equal(table[man], stored[place])
    predictions = model.predict([(first, second) for _, first, second in PAIRS])
    assert {prediction.label for prediction in predictions} <= {"entailment", "neutral", "contradiction"}
    config = json.loads(Path("run/best/config.json").read_text())
    assert config["vectors"]["source"] == "small"


def test_trees_of_both_sentences_are_drawn_and_beams_changed(corpora: Path) -> None:
    train("snli-ebt-gau", corpora)
    output = said("parse", "run", "A man sleeps.", "He doesn't", "--format", "json", "--beam", 2, "--beams")
    record = json.loads(output)
    tokens = [sentence["tokens"] for sentence in record["sentences"]]
    assert tokens == [["a", "man", "sleeps", "."], ["he", "does", "n't"]]
    assert all(len(sentence["trees"]) <= 2 for sentence in record["sentences"])
    train("snli-gau", corpora, "gau")
    assert json.loads(said("parse", "gau", "A man.", "He", "--format", "json"))["sentences"] == []
    assert "has no beams" in refusal("eval", "gau", "--data", corpora, "--beam", 2)


def test_without_vectors_a_run_says_so_and_learns_all_words(tmp_path: Path) -> None:
    data = write_corpora(tmp_path / "data", vectors=False)
    output = train("sst5", data, "run", 1, "words.vectors=none")
    assert "no word vectors: every word learns its own 6 features" in output
    assert load_model("run").embedding.table.weight.shape[1] == 6
    assert "without word vectors (the paper: " in said("report", "run")
    assert json.loads(Path("run/data.json").read_text())["words"]["vectors"] is None


def test_where_the_data_have_no_vectors_those_of_the_package_are_used_and_not_copied(tmp_path: Path) -> None:
    data = write_corpora(tmp_path / "data", vectors=False)
    output = train("sst5", data)
    assert "with vectors of glove-6b-100d (100 wide, 9 seen in training are tuned" in output
    assert json.loads(Path("run/data.json").read_text())["words"]["vectors"] == "glove-6b-100d"
    assert sum(file.stat().st_size for file in Path("run/best").iterdir()) < 200_000
    model = load_model("run")
    ids = torch.tensor([model.vocabulary.encode(["film", "photosynthesis", "zqzqz"])])
    film, never_seen, unknown = model.embedding(ids)[0]
    assert unknown.equal(model.embedding.learnt.weight[0])
    assert not never_seen.equal(unknown)
    assert not never_seen.equal(film)
    assert "other vectors: glove-6b-100d, 100 wide (the paper: " in said("report", "run")


def test_a_run_that_found_no_vectors_before_there_were_some_in_the_package_goes_on_without(
    tmp_path: Path,
) -> None:
    """As runs of 0.1.0 are: `auto` in the recipe, no vectors in data.json."""
    data = write_corpora(tmp_path / "data", vectors=False)
    none = "--set=words.vectors=none"
    said("train", "sst5", "--data", data, *SMALL, none, "--out", "run", "--max-steps", 2)
    recipe = Path("run/recipe.toml")
    recipe.write_text(recipe.read_text().replace('vectors = "none"', 'vectors = "auto"'))
    output = said("train", "--resume", "run", "--set", "training.max_epochs=1")
    assert "no word vectors: every word learns its own 6 features" in output
    assert 'vectors = "none"' in recipe.read_text()


def test_vectors_can_be_named_and_refused(corpora: Path, tmp_path: Path) -> None:
    glove = tmp_path / "glove.txt"
    glove.write_text("a 1 2 3\ni 4 5 6\nfilm 7 8 9\n")
    assert "of glove (3 wide, 2 seen in training are tuned" in train(
        "sst5", corpora, "a", 1, f"words.vectors={glove}"
    )
    assert "every word learns its own" in train("sst5", corpora, "b", 1, "words.vectors=none")
    empty = tmp_path / "empty"
    empty.mkdir()
    message = refusal("train", "sst5", "--data", corpora, "--set", f"words.vectors={empty}")
    assert "holds no word vectors" in message


def test_an_interrupted_run_goes_on_to_the_same_end(corpora: Path) -> None:
    command = ("train", "snli-gau", "--data", corpora, *SMALL, "--set=training.max_epochs=2")
    said(*command, "--out", "whole")
    said(*command, "--out", "parts", "--max-steps", 2)
    said(*command, "--resume", "parts")
    whole, parts = (load_model(name).state_dict() for name in ("whole", "parts"))
    assert all(torch.equal(whole[key], parts[key]) for key in whole)


def test_a_run_goes_on_from_any_folder_with_the_data_and_vectors_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_corpora(tmp_path / "data")
    (data / "vectors").rename(tmp_path / "vectors")  # beside what --data names
    monkeypatch.chdir(tmp_path)
    told = said("train", "snli-gau", "--data", "data", *SMALL, "--out", "run", "--max-steps", 1)
    assert "continue with: beamtree train --resume run\n" in told
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert f"data: {data}, as before" in said("train", "--resume", "../run", "--max-steps", 1)
    moved = data.rename(tmp_path / "moved")
    (tmp_path / "vectors").rename(tmp_path / "moved" / "vectors")
    refused = attempt("train", "--resume", "../run")
    assert f"the data of this run were in {data}, which no longer exists" in refused.output
    assert "or name their folder with --data" in refused.output
    said("train", "--resume", "../run", "--data", moved, "--max-steps", 1)
    assert f"data: {moved}, as before" in said("train", "--resume", "../run")


def test_a_run_that_cannot_go_on_with_other_data_keeps_its_facts(tmp_path: Path) -> None:
    data = write_corpora(tmp_path / "data")
    train("snli-gau", data)
    facts = Path("run/data.json").read_bytes()
    file = data / "snli" / "train.tsv"
    file.write_text(file.read_text() + "neutral\tA man.\tA dog.\n")
    recipe, changes = Path("run/recipe.toml").read_bytes(), ("--set", "training.max_epochs=99")
    assert "its data have changed" in refusal("train", "--resume", "run", *changes)
    file.write_text(file.read_text() + "neutral\tNew words.\tNew words.\n")  # whose weights do not fit
    assert "its data have changed" in refusal("train", "--resume", "run", "--data", data, *changes)
    assert Path("run/data.json").read_bytes() == facts
    assert Path("run/recipe.toml").read_bytes() == recipe


def test_bad_rows_stop_a_run_with_file_and_line_or_are_skipped_and_told(tmp_path: Path) -> None:
    data = write_corpora(tmp_path / "data")
    file = data / "snli" / "train.tsv"
    file.write_text(file.read_text() + "maybe\tA man.\tA dog.\n")
    command = ("train", "snli-gau", "--data", data, *SMALL, "--set=training.max_epochs=1", "--out", "run")
    message = refusal(*command)
    assert f"{file}, line 26: the label is 'maybe'" in message
    assert not Path("run").exists()
    output = said(*command, "--set=task.bad_rows=skip")
    assert "1 bad row was skipped" in " ".join(output.split())
    test = data / "snli" / "test.tsv"
    test.write_text(test.read_text() + "neutral\tA man.\n")
    assert "test.tsv: 1 bad row was skipped" in said("eval", "run", "--data", data, "--split", "test")
    message = refusal("eval", "run", "--data", data, "--split", "test", "--bad-rows", "refuse")
    assert "test.tsv, line 26: the column 'hypothesis' is missing" in message
    test.write_bytes("label\tpremise\thypothesis\n".encode("utf-16") + b"neutral\t\xff\t\xfe\n")
    assert "is UTF-16 text: save it as UTF-8" in refusal("eval", "run", "--data", data, "--split", "test")
    assert "refuse or skip" in refusal("eval", "run", "--data", data, "--bad-rows", "ignore")


def test_data_that_are_not_there_are_answered_with_how_to_find_out(corpora: Path, tmp_path: Path) -> None:
    message = refusal("train", "sst5", "--data", tmp_path / "nowhere")
    assert "there are no sst5 data in" in message
    assert "`beamtree data check" in message
    (tmp_path / "nowhere" / "sst5").mkdir(parents=True)
    assert "says where to get them" in refusal("train", "sst5", "--data", tmp_path / "nowhere")
    train("sst5", corpora)
    assert "see what is there: beamtree data check" in refusal("eval", "run", "--data", tmp_path / "lost")


def test_check_says_what_is_there_what_is_missing_and_where_to_get_it(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    data = write_corpora(tmp_path / "data")
    (data / "mnli" / "dev_conjnli.tsv").unlink()
    for file in (data / "qqp").iterdir():
        file.unlink()
    (data / "qqp").rmdir()
    file = data / "imdb" / "test.tsv"
    file.write_text(file.read_text() + "5\tGood.\n")
    (data / "snli" / "dev.tsv").write_text("label\tpremise\n")
    lines = [line.split() for line in said("data", "check", data).splitlines()]
    assert any(line[:6] == ["sst5", "train", "52", "0%", "of", "318,582"] for line in lines)
    assert any(line[:4] == ["conjnli", "missing", "ConjNLI", "dev"] for line in lines)
    assert any(line[:5] == ["qqp", "train,", "dev,", "test", "missing"] for line in lines)
    assert any(line[:5] == ["test", "12", "1", "bad", "row"] for line in lines)
    assert any(line[:4] == ["dev", "cannot", "be", "read"] for line in lines)
    assert any("no column 'hypothesis' or 'sentence2'" in " ".join(line) for line in lines)
    assert ["vectors", "small.npy"] in lines
    absent = attempt("data", "check", data / "absent")
    assert absent.exit_code == 2
    assert "there is no folder" in absent.stderr
    assert "Stanford Sentiment Treebank" in " ".join(absent.stdout.split())  # where to get it
    (data / "vectors" / "more.txt").write_text("the 1 2\n")
    assert "has several vector files" in " ".join(said("data", "check", data).split())
    monkeypatch.setenv("BEAMTREE_DATA", str(data))
    assert "refuse" not in said("data", "check", "--bad-rows", "skip")


def test_an_encoder_of_pairs_needs_pairs_and_a_language_its_words() -> None:
    with pytest.raises(BeamtreeError, match="the encoder 'gau' reads pairs, but the task 'listops' has none"):
        create_model(ModelSettings("gau", d_model=8), find_task("listops"))
    with pytest.raises(
        BeamtreeError, match="the encoder 'gold-grc' follows gold trees, but the task 'sst5' has none"
    ):
        create_model(ModelSettings("gold-grc", d_model=8), find_task("sst5"), Words(Vocabulary(("a",))))
    with pytest.raises(BeamtreeError, match="task 'snli' has no fixed vocabulary"):
        create_model(ModelSettings("gau", d_model=8), find_task("snli"))


@pytest.mark.parametrize("recipe", ["snli-gau", "qqp"])
def test_pairs_are_told_apart_after_a_few_epochs(recipe: str, corpora: Path) -> None:
    changes = [f"model.{name}=0.0" for name in ("input_dropout", "dropout", "output_dropout")]
    # Sorted by length together, the few pairs there are would make batches of one label each.
    changes += ["training.bucket=1", "training.learning_rate=0.01", "training.patience=20"]
    changes += ["training.plateau_patience=20", "model.d_model=32", "model.classifier_hidden=64"]
    assert "with dev accuracy 100.00%" in train(recipe, corpora, "run", 20, *changes)
