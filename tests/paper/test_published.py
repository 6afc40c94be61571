"""The published figures are those of the paper, as printed."""

import re
from pathlib import Path

import pytest
from reported import table_of

from beamtree.paper.published import LABELS, TABLE_1, TABLES
from beamtree.paper.speed.table1 import RANGES

RESULTS = Path(__file__).resolve().parents[3] / "shared" / "spec" / "results.md"


def test_the_published_figures_are_those_of_the_paper() -> None:
    ebt = TABLES["listops"].rows["ebt-grc"]
    assert [str(figure) for figure in ebt.values()] == [
        "99.9 ±.03",
        "99.7 ±.24",
        "99.5 ±.1",
        "99.3 ±.5",
        "82.5 ±1.3",
        "79.6 ±.87",
        "79.3 ±.65",
    ]
    logic = TABLES["logic"].rows["ebt-grc"]
    assert [logic[f"test{count}"].value for count in (10, 11, 12)] == [94.95, 93.87, 93.04]
    assert set(TABLES["listops"].rows["transformer"]) == {"near-iid"}
    lines = table_of([], "listops", wanted=["listops"]).texts
    assert ["", "paper, copied", "57.4 ±.4", *["–"] * 10] in lines
    assert {name for table in TABLES.values() for name in table.rows} <= set(LABELS)


@pytest.mark.skipif(not RESULTS.is_file(), reason="the transcript of the paper's tables is not here")
def test_every_figure_and_every_best_one_is_as_transcribed_from_the_paper() -> None:
    names = {label: name for name, label in LABELS.items()}
    names |= {"Transformer (copied)": "transformer", "UT (copied)": "universal-transformer"}
    sections = dict(re.findall(r"## Table (\w+).*?\n(.*?)(?=\n## |\Z)", RESULTS.read_text(), re.DOTALL))
    places = {"2": ["listops"], "3a": ["snli", "qqp"], "3b": ["mnli"], "4": ["logic", "sst5", "imdb"]}
    compared = 0
    for number, tasks in places.items():
        rows = [
            [cell.strip() for cell in line.strip("|").split("|")] for line in sections[number].splitlines()
        ]
        for label, *printed in (row for row in rows if row[0] in names):
            ours = []
            for table in (TABLES[task] for task in tasks):
                built = table_of([], table.task, wanted=[table.task])
                place = [row[0] for row in built.texts].index(LABELS[names[label]])
                cells = built.rows[place + 1][2:-4]
                published = dict(zip(table.columns, cells, strict=True))
                if table.task == "logic":  # we measure shorter formulas too
                    published = {split: published[split] for split in ("test10", "test11", "test12")}
                ours += [
                    f"**{cell.text.replace(' ', '** ')}" if cell.best else cell.text
                    for cell in published.values()
                ]
            assert ours == printed, label
            compared += len(ours)
    assert compared == 7 * (11 + 8 + 8 + 7)


def spelt(figures) -> list[str]:
    return ["OOM", "OOM"] if figures is None else [f"{number:g}" for number in figures]


def test_the_published_table_has_ten_rows_of_four_ranges():
    assert len(TABLE_1) == 10
    assert all(list(row.figures) == list(RANGES) for row in TABLE_1.values())
    assert spelt(TABLE_1["ebt-grc"].figures["1500-2000"]) == ["10.5", "10.97"]
    assert spelt(TABLE_1["bt-grc"].figures["1500-2000"]) == ["OOM", "OOM"]


@pytest.mark.skipif(not RESULTS.exists(), reason="the paper's figures are not beside the repository")
def test_the_published_table_is_that_of_the_paper():
    text = RESULTS.read_text(encoding="utf-8")
    lines = re.search(r"## Table 1\..*?\n\n(.*?)\n\n", text, re.DOTALL).group(1).splitlines()[2:]
    printed = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    ours = [
        [row.label, *(word for figures in row.figures.values() for word in spelt(figures))]
        for row in TABLE_1.values()
    ]
    as_numbers = [
        [name, *(word if word == "OOM" else f"{float(word):g}" for word in words)] for name, *words in printed
    ]
    assert ours == as_numbers
