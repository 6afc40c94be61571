"""Where a ListOps model errs, with its own trees and with gold trees."""

from pathlib import Path

import pytest

from beamtree import load_model
from beamtree.data.listops.language import evaluate
from tools import listops_errors


def test_up_to_five_arguments_the_shipped_cell_is_right_for_every_operator(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listops_errors, "ARGUMENTS", (2, 3, 5))
    listops_errors.main(["lists", "listops-ebt-grc", "--lists", "20"])
    table, agreement = capsys.readouterr().out.split("\n\n")
    rows = [line.split() for line in table.splitlines()]
    assert rows[0] == ["arguments", "2", "3", "5"]
    assert [row[0] for row in rows[1:]] == ["[MIN", "[MAX", "[MED", "[SM"]
    assert all(row[1:] == ["100", "100", "100"] for row in rows[1:])
    median_of_three = agreement.splitlines()[2].split()
    assert median_of_three[0] == "3"
    assert median_of_three[2] == "100"  # the second largest


def test_trees_are_compared_on_the_same_expressions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["[MAX 1 2 ]", "[MED 1 2 3 4 5 6 7 8 9 9 9 ]", "[SM 1 [MIN 4 5 ] 3 ]", "7"]
    path = tmp_path / "some.tsv"
    path.write_text("".join(f"{evaluate(text.split())}\t{text}\n" for text in texts))
    model = load_model("listops-ebt-grc")
    right = [p.label == str(evaluate(t.split())) for p, t in zip(model.predict(texts), texts, strict=True)]
    monkeypatch.setattr(listops_errors, "answers_along_gold", lambda model, batch: batch.labels)
    listops_errors.main(["trees", "listops-ebt-grc", str(path), "--most", "3"])
    told = capsys.readouterr().out.split("\r")[-1]
    assert f"own trees {100 * sum(right[:3]) / 3:.2f}, gold trees 100.00" in told
    assert told.endswith("(3 expressions)\n")
