"""What `train own` and `eval` of own data show first: macro-F1, every label, who is taken for whom."""

import io
import json
from pathlib import Path

import pytest
from command_line import call
from rich.console import Console

from beamtree.cli.figures import class_tables, headline, split_tables, warning
from beamtree.data.task import find_task
from beamtree.training.classes import Confusion
from beamtree.training.evaluate import SplitResult, Tally

SMALL = [
    "--set=model.d_model=8",
    "--set=model.embedding_size=8",
    "--set=model.classifier_hidden=8",
    "--set=training.batch_size=8",
    "--set=training.max_epochs=2",
]
UNEVEN = Confusion(("neg", "pos"), [[90, 0], [10, 0]])


def shown(confusion: Confusion, width: int = 100) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    for part in class_tables(confusion, "dev"):
        console.print(part)
    return console.export_text()


def test_a_narrow_terminal_cuts_no_figure_of_a_split() -> None:
    result = SplitResult("a-name-of-a-file-that-is-long.tsv")
    for length in (5, 15):
        result.add(Tally(1500, 1500, 0.0), length=length, depth=None)
    for task, width in (("own", 44), ("own", 54), *(("listops", width) for width in range(58, 80))):
        console = Console(width=width, record=True, file=io.StringIO())
        console.print(*split_tables("ebt-grc", find_task(task), [result]))
        told = console.export_text().split()
        assert {"3,000", "100.0", "99.9–100.0", "0.0000", "99.7–100.0", "1–10", "11–20"} <= set(told)
        assert told.count("0.0000") == 3


def test_the_first_line_tells_what_naming_one_label_would_reach() -> None:
    assert (
        headline(UNEVEN, "dev")
        == "dev: macro-F1 47.4%, accuracy 90.0% (always its most frequent label, 'neg': 90.0%)"
    )
    assert "'neg' has 90% of these rows" in (warning(UNEVEN) or "")
    assert warning(Confusion(("a", "b"), [[6, 1], [3, 0]])) is None
    lines = shown(UNEVEN).splitlines()
    assert lines[0].startswith("dev: macro-F1 47.4%")
    assert any(line.split() == ["pos", "10", "0.0", "0.0", "0.0"] for line in lines)
    assert any(line.split() == ["pos", "10", "0"] for line in lines)


def test_a_dash_stands_where_no_example_has_a_label() -> None:
    lines = [
        line.split() for line in shown(Confusion(("a", "b", "c"), [[8, 2, 0], [0] * 3, [0] * 3])).splitlines()
    ]
    assert ["b", "0", "0.0", "–", "0.0"] in lines
    assert ["c", "0", "–", "–", "–"] in lines


def test_of_many_labels_the_most_frequent_mistakes_are_listed() -> None:
    labels = tuple(f"l{i}" for i in range(40))
    counts = [[5 if i == j else 0 for j in range(40)] for i in range(40)]
    counts[7][9] = 4
    text = shown(Confusion(labels, counts))
    assert "the 30 most frequent (eval --json has all)" in " ".join(text.split())
    assert any(line.split() == ["l7", "l9", "4"] for line in text.splitlines())
    assert "[red]" in shown(Confusion(("[red]", "b\x1b"), [[1, 0], [0, 1]]))
    assert "\x1b" not in shown(Confusion(("[red]", "b\x1b"), [[1, 0], [0, 1]]))


@pytest.mark.parametrize("uneven", [True, False])
def test_a_run_ends_with_every_label_and_two_pictures(uneven: bool, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    words = ["a lovely film", "a dull film"]
    rows = [f"{('neg', 'pos')[i % (10 if uneven else 2) == 0]}\t{words[i % 2]}" for i in range(60)]
    (tmp_path / "rows.tsv").write_text("sentiment\treview\n" + "\n".join(rows) + "\n")
    out = call("train", "own", "--data", tmp_path / "rows.tsv", "--out", tmp_path / "run", *SMALL).output
    assert "dev: macro-F1" in out
    assert "confusion matrix" in out
    assert ("% of the training rows: accuracy says little" in out) == uneven
    assert ("--set training.class_weights=balanced" in out) == uneven
    assert ("chosen by macro-F1 on dev" in out) == uneven
    for picture in ("learning-curve.png", "confusion.png"):
        assert (tmp_path / "run" / picture).stat().st_size > 1000
    tested = call("eval", tmp_path / "run", tmp_path / "rows.tsv", "--plot", tmp_path / "plots").stdout
    assert tested.strip().startswith("rows.tsv: macro-F1")
    assert (tmp_path / "plots" / "confusion-rows.tsv.png").is_file()
    (split,) = json.loads(call("eval", tmp_path / "run", tmp_path / "rows.tsv", "--json").stdout)["splits"]
    assert split["majority"]["accuracy"] == pytest.approx(0.9 if uneven else 0.5)
    assert sum(map(sum, split["confusion"])) == 60
    assert [score["label"] for score in split["classes"]] == ["neg", "pos"]
