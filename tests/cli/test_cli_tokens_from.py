"""`beamtree train own --tokens-from FOLDER`, and all that can be done with the model afterwards."""

import csv
import json
import random
import shutil
from pathlib import Path

import pytest
from command_line import call
from hugging_face import save_bert

from beamtree import load_model
from beamtree.data.hugging_face import find_encoder
from beamtree.explorer.answer import run_model
from beamtree.files.tensors import load_tensors
from beamtree.training.recipe import load_recipe

GOOD, BAD = ("good", "fine", "lovely", "Great"), ("bad", "dull", "poor", "Awful")
SMALL = ("--set=model.d_model=16", "--set=training.batch_size=16", "--set=model.dropout=0.1")
LONG = "the film was not good " * 20  # more subwords than the encoder reads at once


def write_table(path: Path, rows: int, *, pair: bool = False, seed: int = 0) -> Path:
    """A text is good or bad by one of its words; of a pair the texts agree or not."""
    chance = random.Random(seed)

    def draw() -> tuple[bool, str]:
        good = chance.random() < 0.5
        return good, f"the film was {chance.choice(GOOD if good else BAD)} {LONG[: chance.randrange(30)]}"

    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["label", "text1", "text2"] if pair else ["label", "text"])
        for _ in range(rows):
            (one, text), (other, beside) = draw(), draw()
            label = ("same" if one == other else "other") if pair else ("pos" if one else "neg")
            table.writerow([label, text, beside] if pair else [label, text])
    return path


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_bert(tmp_path_factory.mktemp("encoders") / "bert")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_table(tmp_path_factory.mktemp("tables") / "reviews.csv", 300)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, encoder: Path, table: Path) -> Path:
    out = tmp_path_factory.mktemp("runs") / "own"
    epochs = ("--set", "training.max_epochs=12", "--set", "training.learning_rate=5e-3")
    easy = ("--set", "model.input_dropout=0", "--set", "model.word_dropout=0")
    words = ("--data", table, "--tokens-from", encoder, *SMALL, *epochs, *easy)
    said = call("train", "own", *words, "--out", out).output.replace("\n", "")
    assert f"token vectors by the encoder in {encoder} (16 wide)" in said
    assert said.count(" texts once") == 1  # also for the twin without a tree
    return out


def test_it_learns_and_stays_small(run: Path, encoder: Path, table: Path) -> None:
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert max(record["dev_accuracy"] for record in metrics) > 0.8
    weights, _ = load_tensors(run / "best" / "model.safetensors")
    assert not any("bert" in name or "layer.0" in name for name in weights)
    settings = load_recipe(run / "recipe.toml")
    assert settings.words.tokens_from == str(encoder)
    assert settings.task.own.tokenizer == "cased"


def test_predict_eval_and_parse_read_its_model(run: Path, tmp_path: Path) -> None:
    new = write_table(tmp_path / "new.csv", 40, seed=1)
    out = tmp_path / "predictions.csv"
    call("predict", run, new, "--out", out, "--trees")
    with out.open(encoding="utf-8", newline="") as file, new.open(encoding="utf-8", newline="") as given:
        predictions, rows = list(csv.DictReader(file)), list(csv.DictReader(given))
    right = [row["label"] == found["label"] for row, found in zip(rows, predictions, strict=True)]
    assert sum(right) > 30
    assert predictions[0]["tree"].count("(") == len(rows[0]["text"].split()) - 1
    told = call("eval", run, new, "--json").stdout
    (split,) = json.loads(told[told.index("{") :])["splits"]
    assert split["accuracy"] == sum(right) / len(right)
    parsed = call("parse", run, "An unwatchable brontosaurus", "--format", "brackets").stdout
    assert "brontosaurus" in parsed
    assert "unknown" not in call("parse", run, "An unwatchable brontosaurus").output


def test_lengths_in_a_report_are_those_of_words(run: Path, tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text("label,text\npos,unwatchable brontosaurus good film\n")
    told = call("eval", run, tmp_path / "one.csv", "--json", "--no-baselines").stdout
    (split,) = json.loads(told)["splits"]
    (bucket,) = split["by_length"]
    assert bucket["from"] <= 4 <= bucket["to"] <= 10


def test_python_and_the_explorer_read_it_as_the_command_does(run: Path) -> None:
    model = load_model(run)
    texts = ["The film was good", LONG.strip(), "dull"]
    alone = [model.predict([text])[0].probability for text in texts]
    assert [found.probability for found in model.predict(texts)] == pytest.approx(alone, abs=1e-5)
    for text, share in zip(texts, alone, strict=True):
        seen = run_model(model, (model.task.tokenize(text),), None)
        assert max(seen.probabilities) == pytest.approx(share, abs=1e-5)
    assert model.predict(["The film was good"])[0].label == "pos"
    (readings,) = model.read_nodes("An unwatchable brontosaurus film")
    assert [(readings[-1].start, readings[-1].end), len(readings)] == [(0, 4), 3]


def test_a_run_that_was_stopped_ends_as_if_it_had_not_been(
    run: Path, encoder: Path, table: Path, tmp_path: Path
) -> None:
    words = ("--tokens-from", encoder, "--data", table, *SMALL, "--set", "training.max_epochs=2")
    call("train", "own", *words, "--out", tmp_path / "whole")
    call("train", "own", *words, "--out", tmp_path / "stopped", "--max-steps", 7)
    find_encoder(str(encoder)).remembered.clear()  # another process has to read the texts again
    call("train", "--resume", tmp_path / "stopped")
    whole, stopped = (
        load_tensors(tmp_path / name / "last" / "model.safetensors")[0] for name in ("whole", "stopped")
    )
    assert whole.keys() == stopped.keys()
    assert all(whole[name].equal(stopped[name]) for name in whole)


@pytest.mark.parametrize("model", ["ebt-grc", "ebt-gau"])
def test_pairs_are_read_too(encoder: Path, tmp_path: Path, model: str) -> None:
    table = write_table(tmp_path / "pairs.csv", 40, pair=True)
    simple = ("--set=model.readout=root", "--set=model.tree_tokens=0", f"--set=model.encoder={model}")
    run = tmp_path / "run"
    words = ("--tokens-from", encoder, "--data", table, *SMALL, *simple, "--set", "training.max_epochs=1")
    call("train", "own", *words, "--out", run)
    assert load_model(run).predict([("the film was good", "bad")])[0].label in ("same", "other")


def test_what_the_memory_cannot_hold_is_read_in_every_epoch(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = save_bert(tmp_path / "bert", seed=3)
    monkeypatch.setattr("beamtree.training.run.machine_memory", lambda: 1000)
    words = ("--tokens-from", encoder, "--data", table, *SMALL, "--set", "training.max_epochs=1")
    said = call("train", "own", *words, "--out", tmp_path / "run").output.replace("\n", "")
    assert "would take too much memory: the encoder reads them every epoch" in said
    assert (tmp_path / "run" / "best").is_dir()


def test_an_encoder_that_is_gone_or_other_is_told_with_the_remedy(
    run: Path, encoder: Path, tmp_path: Path
) -> None:
    model = shutil.copytree(run / "best", tmp_path / "model")
    moved = shutil.copytree(encoder, tmp_path / "moved")
    config = json.loads((model / "config.json").read_text())
    config["vectors"]["tokens_from"] = str(tmp_path / "gone")
    (model / "config.json").write_text(json.dumps(config))
    told = call("parse", model, "good", rc=2).stderr
    assert "there is no folder" in told
    assert "say in vectors.tokens_from of this file where it is now" in told
    config["vectors"]["tokens_from"] = str(moved)
    (model / "config.json").write_text(json.dumps(config))
    call("parse", model, "good")
    save_bert(moved, seed=5)
    assert "has changed" in call("parse", model, "good", rc=2).stderr


def test_refusals_say_what_to_do(run: Path, table: Path, encoder: Path, tmp_path: Path) -> None:
    told = call("export", run, "--onnx", tmp_path / "x.onnx", rc=2).stderr
    assert "cannot be exported as a whole" in told
    out = ("--out", tmp_path / "out")
    told = call("train", "own", "--data", table, "--tokens-from", tmp_path, *out, rc=2).stderr
    assert "has no config.json" in told
    told = call("train", "listops-quick", "--tokens-from", encoder, *out, rc=2).stderr
    assert "words.tokens_from is for texts; task 'listops' has tokens of its own" in told
    assert not (tmp_path / "out").exists()
