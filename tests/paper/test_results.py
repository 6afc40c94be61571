"""The pages of figures: results are what `beamtree report` makes of the kept runs, Table 1 is there whole."""

import re
from pathlib import Path

import pytest

from beamtree.paper.published import TABLE_1
from beamtree.paper.report import build_report, to_html, to_markdown, to_short_markdown

ROOT = Path(__file__).resolve().parents[2]
COMMAND = "beamtree report docs/runs --out docs"


def test_the_results_page_is_made_from_the_kept_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    report = build_report([Path("docs/runs")])
    assert not report.notes  # every run is readable and counts
    for name, text in (
        ("results.md", to_short_markdown(report, COMMAND, "results-in-full.md")),
        ("results-in-full.md", to_markdown(report, COMMAND, "Results in full")),
        ("results.html", to_html(report, COMMAND)),
    ):
        assert Path("docs", name).read_text(encoding="utf-8") == text, f"make it anew: {COMMAND}"


@pytest.mark.parametrize(("page", "words"), [("results", 1500), ("performance", 1200), ("beyond", 1200)])
def test_a_page_of_figures_is_short(page: str, words: int) -> None:
    assert len((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8").split()) < words


def test_kept_runs_are_small_records_without_paths_of_a_machine() -> None:
    for file in (ROOT / "docs" / "runs").rglob("*"):
        if file.is_file():
            assert file.suffix in (".json", ".jsonl", ".toml"), file
            assert file.stat().st_size < 100_000, file
            assert not re.search(r"[\"' ](/|~|[A-Z]:\\)\w", file.read_text(encoding="utf-8")), file


@pytest.mark.parametrize("model", TABLE_1)
def test_every_row_of_table_1_has_a_figure_at_all_four_lengths_in_time_and_in_memory(model: str) -> None:
    lines = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8").splitlines()
    rows = [line.strip("|").split("|")[1:] for line in lines if line.startswith(f"|{TABLE_1[model].label}|")]
    assert [len(row) for row in rows] == [4, 4]
    for cell in (cell for row in rows for cell in row):
        here, published = cell.split(" ")
        assert here == "OOM" or float(here) > 0
        assert published == "(OOM)" or float(published.strip("()")) > 0
