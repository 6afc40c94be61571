"""The stand-in that tells a hard draw from a weak model; trees of no model."""

from pathlib import Path
from random import Random

import pytest

from beamtree.data.listops import TASK, sample_expressions
from beamtree.data.listops.language import evaluate
from beamtree.data.task import Example
from beamtree.trees.brackets import spans_of
from tools.baselines import accuracy, f1_by_shape, main, shapes, stand_in


def test_up_to_five_arguments_it_is_always_right() -> None:
    assert accuracy(sample_expressions(300, seed=1, max_args=5, min_length=1, max_length=60)) == 100


@pytest.mark.parametrize(
    ("expression", "answer"),
    [
        ("[MED 1 2 3 4 5 6 7 ]", 4),  # the fourth largest of seven is the median
        ("[MED 1 2 3 4 5 6 7 8 9 ]", 6),  # of nine it is not
        ("[MIN 9 [MED 0 0 0 0 0 0 5 5 5 5 ] 7 ]", 5),
        ("[SM 9 9 9 9 9 9 ]", 4),
        ("7", 7),
    ],
)
def test_of_more_than_five_the_median_is_the_fourth_largest(expression: str, answer: int) -> None:
    assert stand_in(expression.split()) == answer


def test_files_and_draws_are_told_in_percent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    easy, hard = "[MAX 1 2 ]", "[MED 1 2 3 4 5 6 7 8 9 ]"
    path = tmp_path / "some.tsv"
    path.write_text("".join(f"{evaluate(text.split())}\t{text}\n" for text in (easy, easy, easy, hard)))
    main(["draws", str(path)])
    assert capsys.readouterr().out == f"{path}: 75.00\n"


def test_draws_are_repeatable(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.baselines.SIZE", 40)
    told = []
    for _ in range(2):
        main(["draws", "--law", "10", "--splits", "2"])
        told.append(capsys.readouterr().out)
    assert told[0] == told[1]
    assert told[0].startswith("2 splits, 10: mean ")
    assert "spread of a split" in told[0]


@pytest.mark.parametrize(
    ("shape", "spans"),
    [
        ("left-branching", {(0, 2), (0, 3), (0, 4)}),
        ("right-branching", {(3, 5), (2, 5), (1, 5)}),
        ("balanced", {(0, 2), (2, 4), (0, 4)}),  # the odd one out moves up
    ],
)
def test_five_tokens_have_the_tree_of_their_shape(shape: str, spans: set[tuple[int, int]]) -> None:
    assert spans_of(list(shapes(Random(0))[shape](5))) == spans


def test_a_random_tree_is_a_tree_of_any_shape() -> None:
    make = shapes(Random(3))["random"]
    found = {frozenset(spans_of(list(make(4)))) for _ in range(100)}
    assert len(found) == 5  # all binary trees over four tokens


def test_a_flat_expression_is_left_branching() -> None:
    flat = Example((("[MAX", "1", "2", "3", "]"),), "3")
    assert f1_by_shape(TASK, [flat])["left-branching"] == 1
    deep = sample_expressions(20, seed=0, min_length=30, max_length=60)
    found = f1_by_shape(TASK, deep)
    assert found["right-branching"] == 0
    assert 0 < (found["left-branching"] or 0) < (found["balanced"] or 0) < 0.3


def test_each_split_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test10.txt").write_text("<\t( a ( and b ) )\ta\n")
    main(["trees", "logic", str(tmp_path), "test10"])
    line = capsys.readouterr().out
    assert line.startswith("test10: left-branching 40.00, right-branching 0.00, balanced 40.00, random ")
