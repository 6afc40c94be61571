"""The stand-in that tells a hard draw from a weak model."""

from pathlib import Path

import pytest

from beamtree.data.listops import sample_expressions
from beamtree.data.listops.language import evaluate
from tools.draw_difficulty import accuracy, main, stand_in


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
    main([str(path)])
    assert capsys.readouterr().out == f"{path}: 75.00\n"


def test_draws_are_repeatable(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.draw_difficulty.SIZE", 40)
    told = []
    for _ in range(2):
        main(["--arguments", "10", "--draws", "2"])
        told.append(capsys.readouterr().out)
    assert told[0] == told[1]
    assert told[0].startswith("2 draws, 10: mean ")
    assert "spread of a split" in told[0]
