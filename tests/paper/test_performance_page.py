"""The page of times and memory has the paper's Table 1 whole."""

from pathlib import Path

import pytest

from beamtree.paper.published import TABLE_1

PAGE = Path(__file__).resolve().parents[2] / "docs" / "performance.md"


@pytest.mark.parametrize("model", TABLE_1)
def test_every_row_of_table_1_has_a_figure_at_all_four_lengths_in_time_and_in_memory(model: str) -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    rows = [line.strip("|").split("|")[1:] for line in lines if line.startswith(f"|{TABLE_1[model].label}|")]
    assert [len(row) for row in rows] == [4, 4]
    for cell in (cell for row in rows for cell in row):
        here, published = cell.split(" ")
        assert here == "OOM" or float(here) > 0
        assert published == "(OOM)" or float(published.strip("()")) > 0
