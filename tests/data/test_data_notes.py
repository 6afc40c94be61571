"""What a table says of its data: a part of the corpus, other vectors than the paper's, or none."""

from pathlib import Path
from typing import Any

import pytest

from beamtree.paper.report.data_notes import data_note
from beamtree.paper.report.runs import TrainedRun
from beamtree.training.recipe import load_recipe


def note(words: dict[str, Any] | None, examples: int = 8_544 * 40) -> str:
    facts = {"train": {"split": "train", "examples": examples}, "words": words}
    return data_note("sst5", [TrainedRun(Path("run"), load_recipe("sst5"), [], [], data=facts)])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (None, "without word vectors (the paper: GloVe 840B, 300 wide)."),
        ({"vectors": None, "width": None}, "without word vectors (the paper: GloVe 840B, 300 wide)."),
        ({"vectors": "glove.6B.300d", "width": 300}, "other vectors: glove.6B.300d, 300 wide (the paper: "),
        ({"vectors": "glove.840B.300d", "width": 300}, "the paper's vectors: glove.840B.300d, 300 wide."),
    ],
)
def test_the_note_tells_which_vectors_were_used(words: dict[str, Any] | None, said: str) -> None:
    assert said in note(words)


def test_a_part_of_the_corpus_is_called_a_subset() -> None:
    assert "Ours learn from a subset: 1,000 of 318,582 training examples" in note(None, 1000)
    assert "subset" not in note(None)


@pytest.mark.parametrize(
    ("task", "published"), [("snli", "549,367"), ("mnli", "382,702"), ("qqp", "384,290")]
)
def test_a_subset_is_one_of_the_papers_training_examples(task: str, published: str) -> None:
    facts = {"train": {"split": "train", "examples": 1000}, "words": None}
    told = data_note(task, [TrainedRun(Path("run"), load_recipe(task), [], [], data=facts)])
    assert f"a subset: 1,000 of {published} training examples" in told


def test_formal_tasks_and_runs_without_facts_need_no_note() -> None:
    assert data_note("sst5", [TrainedRun(Path("run"), load_recipe("sst5"), [], [])]) == ""
    assert data_note("listops", [TrainedRun(Path("run"), load_recipe("listops"), [], [])]) == ""


def test_rebuilt_stress_tests_are_told() -> None:
    facts = {"train": {"split": "train", "examples": 18_000}, "words": None}
    runs = [TrainedRun(Path("run"), load_recipe("mnli"), [], [], data=facts)]
    assert "The stress tests are rebuilt from the dev sets" in data_note("mnli", runs)
