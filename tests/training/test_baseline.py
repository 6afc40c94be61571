"""What stands beside a model of own data on the same rows, and the line that says which is best."""

import builtins
import json
from pathlib import Path
from typing import Any

import pytest
from command_line import call
from small_models import small_model

from beamtree.classifier.model import TreeClassifier
from beamtree.data.own import restore
from beamtree.data.task import Example
from beamtree.data.vocabulary import Vocabulary
from beamtree.data.words import Words
from beamtree.training.baseline import (
    TFIDF,
    TOKENS,
    Company,
    Competitor,
    TokenVectors,
    WordCounts,
    training_rows,
    verdict,
)
from beamtree.training.classes import Confusion
from beamtree.training.recipe import TrainingSettings
from beamtree.training.run_folder import RunFolder

SMALL = [
    "--set=model.d_model=8",
    "--set=model.embedding_size=8",
    "--set=model.classifier_hidden=8",
    "--set=training.batch_size=8",
    "--set=training.max_epochs=1",
]
TRAIN = [Example((("a", word, "film"),), label) for word, label in [("dull", "neg"), ("fine", "pos")] * 20]


def write_rows(path: Path, count: int = 40) -> Path:
    rows = [f"{label}\ta {word} film" for word, label in [("dull", "neg"), ("fine", "pos")] * (count // 2)]
    path.write_text("label\ttext\n" + "\n".join(rows) + "\n")
    return path


def own_model(sentences: int = 1) -> TreeClassifier:
    texts = ["text"] if sentences == 1 else ["text1", "text2"]
    task = restore(["neg", "pos"], {"label": "label", "texts": texts, "tokenizer": "words"})
    return small_model(task=task, words=Words(Vocabulary(("a", "dull", "fine", "film"))))


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


def test_token_vectors_tell_without_a_tree_and_pairs_by_both_texts() -> None:
    pytest.importorskip("sklearn")
    told = TokenVectors(TRAIN, own_model())
    assert told.label([TRAIN[1], TRAIN[0], TRAIN[1]]) == ["pos", "neg", "pos"]  # in the order they came in
    pairs = [Example((*one.sentences, ("film", "a")), one.label) for one in TRAIN]
    assert TokenVectors(pairs, own_model(2)).label(pairs[:2]) == ["neg", "pos"]
    names = [one.name for one in Company(TRAIN, own_model(), TrainingSettings()).on(TRAIN[:4])]
    assert names == ["always 'neg'", TFIDF, TOKENS]


@pytest.mark.parametrize("rows", [2, 3, 5])
def test_few_rows_and_lone_labels_are_borne(rows: int) -> None:
    pytest.importorskip("sklearn")
    few = [*TRAIN[:rows], Example((("odd",),), "rare")]
    assert len(WordCounts(few, balanced=True, by_macro_f1=True).label(few)) == rows + 1


def test_the_most_frequent_label_is_that_of_training_and_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_sklearn(monkeypatch)
    company = Company([*TRAIN, TRAIN[1]], own_model(), TrainingSettings())
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
    assert "too close to tell" not in verdict(model, [always, words], "dev")
    assert "too close to tell" in verdict(model, [competitor("x", 41)], "dev")
    uneven = Competitor("tree", Confusion(("a", "b"), [[80, 10], [5, 5]]))
    assert "by macro-F1" in verdict(uneven, [Competitor("x", Confusion(("a", "b"), [[90, 0], [10, 0]]))], "t")


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
        assert f"beside it, on the same rows of {split}" in told
        assert f"best on {split} by " in told
        assert ("pip install 'beamtree[baseline]'" in told) != there
    assert len(training_rows(RunFolder(run))) == 36
    assert "beside it" not in call("eval", run, test, "--no-baselines").stdout
    (split,) = json.loads(call("eval", run, test, "--json").stdout)["splits"]
    assert len(split["baselines"]) == (3 if there else 1)
    path.write_text("label\ttext\n")  # gone, or changed: no company, but figures
    assert training_rows(RunFolder(run)) == []
    assert "beside it" not in call("eval", run, test).stdout
