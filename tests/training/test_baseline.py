"""Baselines for a model of own data on the same rows, and the line that says which is best."""

import builtins
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import call

from beamtree.classifier.ensemble import Ensemble
from beamtree.classifier.model import ModelSettings, TreeClassifier, create_model
from beamtree.classifier.model_folder import load_model
from beamtree.data.own import restore
from beamtree.data.task import BadRows, Example
from beamtree.data.vocabulary import Vocabulary
from beamtree.data.words import Words
from beamtree.training.baseline import (
    TFIDF,
    WITHOUT_TREE,
    Company,
    Competitor,
    WordCounts,
    load_twin,
    training_rows,
    verdict,
)
from beamtree.training.classes import Confusion
from beamtree.training.evaluate import evaluate
from beamtree.training.recipe import TrainingSettings
from beamtree.training.run_folder import RunFolder

SMALL = [
    "--set=model.d_model=8",
    "--set=model.embedding_size=8",
    "--set=model.classifier_hidden=8",
    "--set=training.batch_size=8",
    "--set=training.max_epochs=1",
]
LABELS = ("neg", "pos")
TRAIN = [Example((("a", word, "film"),), label) for word, label in [("dull", "neg"), ("fine", "pos")] * 20]


def write_rows(path: Path, count: int = 40) -> Path:
    rows = [f"{label}\ta {word} film" for word, label in [("dull", "neg"), ("fine", "pos")] * (count // 2)]
    path.write_text("label\ttext\n" + "\n".join(rows) + "\n")
    return path


def twin_model() -> TreeClassifier:
    task = restore(["neg", "pos"], {"label": "label", "texts": ["text"], "tokenizer": "words"})
    torch.manual_seed(0)
    settings = ModelSettings(d_model=8, embedding_size=8, classifier_hidden=8, readout="tokens")
    return create_model(settings, task, Words(Vocabulary(("a", "dull", "fine", "film")))).eval()


def without_sklearn(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any, **options: Any) -> Any:
        if name.startswith("sklearn"):
            raise ImportError(name)
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)


def test_counts_of_words_learn_what_words_tell() -> None:
    pytest.importorskip("sklearn")
    counts = WordCounts(TRAIN)
    assert counts.label([Example((("fine",),), "pos"), Example((("dull", "?"),), "neg")]) == ["pos", "neg"]
    order = [Example((("x", "y"),), "up"), Example((("y", "x"),), "down")] * 10  # only pairs of words tell
    assert WordCounts(order).label(order[:2]) == ["up", "down"]
    pairs = [Example((("a",), ("a",)), "same"), Example((("a",), ("b",)), "other")] * 10
    pairs += [Example((("b",), ("b",)), "same"), Example((("b",), ("a",)), "other")] * 10
    assert WordCounts(pairs).label(pairs[:2]) == ["same", "other"]


def test_company_measures_the_model_without_its_tree_on_the_same_rows() -> None:
    twin = twin_model()
    (*_, found) = Company(TRAIN, LABELS, TrainingSettings(), twin, twin_seconds=3.5).on(TRAIN[:7])
    said = [p.label for p in twin.predict([" ".join(one.sentences[0]) for one in TRAIN[:7]])]
    assert (found.name, found.seconds) == (WITHOUT_TREE, 3.5)
    assert found.confusion.accuracy == sum(p == t.label for p, t in zip(said, TRAIN, strict=False)) / 7
    assert WITHOUT_TREE not in [one.name for one in Company(TRAIN, LABELS, TrainingSettings()).on(TRAIN)]


@pytest.mark.parametrize("rows", [2, 3, 5])
def test_few_rows_and_lone_labels_are_borne(rows: int) -> None:
    pytest.importorskip("sklearn")
    few = [*TRAIN[:rows], Example((("odd",),), "rare")]
    assert len(WordCounts(few, balanced=True, scoring="balanced_accuracy").label(few)) == rows + 1


def test_the_most_frequent_label_is_that_of_training_and_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_sklearn(monkeypatch)
    company = Company([*TRAIN, TRAIN[1]], LABELS, TrainingSettings())
    (always,) = company.on(TRAIN[:3])
    assert always.name == "always 'pos'"
    assert always.confusion.counts == [[0, 2], [0, 1]]
    assert "pip install 'beamtree[baseline]'" in (company.missing or "")


def test_one_line_says_which_is_best_and_by_how_much() -> None:
    def competitor(name: str, right: int, of: int = 50) -> Competitor:
        return Competitor(name, Confusion(("a", "b"), [[right, of - right], [of - right, right]]))

    model, words, always = competitor("tree", 40), competitor(TFIDF, 45), competitor("always 'a'", 25)
    said = "best on dev by accuracy: TF-IDF, logistic regression with 90.0%, 10.0 points above tree (80.0%"
    assert verdict(model, [always, words], "dev").startswith(said)
    assert "tree with 80.0%, 30.0 points above always 'a'" in verdict(model, [always], "dev")
    assert "too close to call" not in verdict(model, [always, words], "dev")
    assert "too close to call" in verdict(model, [competitor("x", 41)], "dev")
    twin = competitor(WITHOUT_TREE, 43)
    best, adds = verdict(model, [always, twin], "dev"), verdict(competitor("tree", 45), [twin, words], "dev")
    assert best.endswith("to train only that one: --set model.readout=tokens")
    assert "above tree (80.0%" in best
    assert adds.endswith("; the tree adds 4.0 points, too close to call")
    assert "; the tree costs 6.0 points, too close" in verdict(model, [words, twin], "dev")
    many = [competitor(name, n, of=5000) for name, n in (("tree", 4000), (TFIDF, 4500), (WITHOUT_TREE, 4300))]
    assert verdict(many[0], many[1:], "dev").endswith("; the tree costs 6.0 points")
    assert "the tree" not in verdict(competitor("tree", 45), [always, twin], "dev")  # the line has it already
    uneven = Competitor("tree", Confusion(("a", "b"), [[80, 10], [5, 5]]))
    assert "by macro-F1" in verdict(uneven, [Competitor("x", Confusion(("a", "b"), [[90, 0], [10, 0]]))], "t")


def test_nothing_is_best_where_all_are_level() -> None:
    same = Confusion(("a", "b"), [[78, 0], [2, 0]])  # always 'a': a model that learnt nothing
    model, always, worse = (
        Competitor("tree", same),
        Competitor("always 'a'", same),
        Competitor(TFIDF, Confusion(("a", "b"), [[70, 8], [2, 0]])),
    )
    said = "tied on dev by macro-F1: tree; always 'a', all with 49.4% (80 rows)"
    assert verdict(model, [always, worse], "dev") == said
    assert verdict(worse, [model, always], "dev").startswith("best on dev by macro-F1: tree")
    twin = Competitor(WITHOUT_TREE, worse.confusion)
    assert verdict(model, [always, twin], "dev").startswith(f"{said}; the tree adds ")


def test_what_learnt_labels_as_equally_frequent_is_judged_so() -> None:
    finds_rare = Competitor("tree", Confusion(("a", "b"), [[70, 20], [2, 8]]))
    misses_rare = Confusion(("a", "b"), [[88, 2], [6, 4]])
    assert misses_rare.macro_f1 > finds_rare.confusion.macro_f1
    said = verdict(finds_rare, [Competitor(TFIDF, misses_rare, balanced=True)], "dev")
    assert said.startswith("best on dev by mean recall: tree with 78.9%")
    pytest.importorskip("sklearn")
    company = Company(TRAIN, LABELS, TrainingSettings(class_weights="balanced"))
    assert any(one.balanced for one in company.on(TRAIN))


@pytest.mark.parametrize("there", [True, False])
def test_train_and_eval_print_the_company_or_what_to_install(
    there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if there:
        pytest.importorskip("sklearn")
    else:
        without_sklearn(monkeypatch)
    path, run = write_rows(tmp_path / "rows.tsv"), tmp_path / "run"
    test = write_rows(tmp_path / "test.tsv", 10)
    trained = call("train", "own", "--data", path, "--out", run, *SMALL).output
    tested = call("eval", run, test).stdout
    for output, split in ((trained, "dev"), (tested, "test.tsv")):
        told = " ".join(output.split())
        assert f"compared on the same rows of {split}" in told
        assert re.search(rf"(best|tied) on {split} by ", told)
        assert WITHOUT_TREE in told
        assert "trained in (s)" in told
        assert ("pip install 'beamtree[baseline]'" in told) != there
    assert len(training_rows(RunFolder(run))) == 35
    assert "compared on" not in call("eval", run, test, "--no-baselines").stdout
    (split,) = json.loads(call("eval", run, test, "--json").stdout)["splits"]
    assert len(split["baselines"]) == (3 if there else 2)
    path.write_text("label\ttext\n")  # gone, or changed: no company, but figures
    assert training_rows(RunFolder(run)) == []
    assert "compared on" not in call("eval", run, test).stdout


def test_the_model_without_its_tree_is_the_one_that_its_setting_trains(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.tsv")
    call("train", "own", "--data", path, "--out", tmp_path / "run", *SMALL)
    alone = ("--set", "model.readout=tokens")
    told = call("train", "own", "--data", path, "--out", tmp_path / "alone", *alone, *SMALL).output
    assert told.startswith(("tokens, no tree on own", "texts with 2 labels"))
    assert WITHOUT_TREE not in told
    assert not RunFolder(tmp_path / "alone").without_tree.begun
    twin, other = load_model(tmp_path / "run" / "without-tree"), load_model(tmp_path / "alone")
    assert twin.settings == other.settings
    for name, weight in twin.state_dict().items():
        assert torch.equal(weight, other.state_dict()[name]), name
    (split,) = json.loads(call("eval", tmp_path / "run", path, "--json").stdout)["splits"]
    (own,) = json.loads(call("eval", tmp_path / "alone", path, "--json").stdout)["splits"]
    assert split["baselines"][-1]["accuracy"] == own["accuracy"]


def test_an_encoder_without_trees_and_a_user_who_declines_have_no_twin(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.tsv")
    for number, more in enumerate((["--no-baselines"], ["--set", "model.encoder=bilstm"])):
        run = tmp_path / str(number)
        told = call("train", "own", "--data", path, "--out", run, *SMALL, *more).output
        assert not (run / "without-tree").exists()
        assert WITHOUT_TREE not in told
        assert ("compared on" in told) == ("--no-baselines" not in more)


def test_several_seeds_stand_beside_as_many_without_the_tree(tmp_path: Path) -> None:
    path, run = write_rows(tmp_path / "rows.tsv"), tmp_path / "run"
    command = ("train", "own", "--data", path, "--out", run, "--seeds", 2, *SMALL)
    steps = 5  # of each: 36 rows, batches of 8, one epoch
    stopped = call(*command, "--max-steps", 2 * steps + 3).output  # in the first without a tree
    assert "continue with" in stopped
    assert isinstance(load_model(run), Ensemble)
    told = call(*command).output  # goes on
    assert "ebt-grc × 2" in told
    assert WITHOUT_TREE in told
    twin = load_twin(RunFolder(run), "cpu")
    assert isinstance(twin, Ensemble)
    assert [member.settings.readout for member in twin.members] == ["tokens", "tokens"]
    (split,) = json.loads(call("eval", run, path, "--json").stdout)["splits"]
    measured = evaluate(twin, "rows", load_rows(path, twin))
    assert split["baselines"][-1] == {
        "name": WITHOUT_TREE,
        "accuracy": measured.total.accuracy,
        "macro_f1": measured.confusion.macro_f1,
    }
    assert load_twin(RunFolder(run / "seed1"), "cpu").settings == twin.settings  # beside the other seeds
    assert RunFolder(run / "seed1").without_tree.path == run / "without-tree" / "seed1"
    call("train", "own", "--data", path, "--out", run, *SMALL, "--no-baselines", "--overwrite")
    assert not (run / "without-tree").exists()


def load_rows(path: Path, model: Any) -> list[Example]:
    return list(model.task.read_file(path, BadRows.chosen("refuse")))
