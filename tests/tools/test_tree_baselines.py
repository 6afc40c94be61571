"""Trees of no model, as far as they can be told beforehand."""

from pathlib import Path
from random import Random

import pytest

from beamtree.data.listops import TASK, sample_expressions
from beamtree.data.task import Example
from beamtree.trees.brackets import spans_of
from tools.tree_baselines import f1_by_shape, main, shapes


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
    main(["logic", str(tmp_path), "test10"])
    line = capsys.readouterr().out
    assert line.startswith("test10: left-branching 40.00, right-branching 0.00, balanced 40.00, random ")
