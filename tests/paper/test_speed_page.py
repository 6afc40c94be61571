"""What a benchmark says: tables, Markdown, JSON and a plot of the same figures."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch

from beamtree import BeamtreeError
from beamtree.errors import MissingExtraError
from beamtree.paper.speed import page as report
from beamtree.paper.speed import plot
from beamtree.paper.speed.measure import Measurement
from beamtree.paper.speed.page import Report, describe_environment
from beamtree.paper.speed.plot import draw, lines_of
from beamtree.paper.speed.table1 import Cell
from beamtree.paper.speed.tables import paper_tables, size_tables
from beamtree.paper.speed.workload import Case, Timing

CPU = torch.device("cpu")


def measured(model: str, seconds: list[float], peak: int | None = None, **options) -> Measurement:
    varied, problem = options.pop("varied", "n"), options.pop("problem", None)
    case = Case(model, **{"n": 10, **options})
    return Measurement(case, varied, [Timing(s, s / 2) for s in seconds], peak, problem)


GROUPS = [
    [measured("ebt-grc", [0.010, 0.030, 0.020], 2_000_000), measured("naive", [0.2], 50_000_000)],
    [
        measured("ebt-grc", [0.5], 4_000_000, n=1000),
        measured("naive", [], None, n=1000, problem="out of memory"),
    ],
]
CELLS = [
    Cell("ebt-grc", "200-250", 223.0, [0.006] * 100, 50_000_000),
    Cell("naive", "200-250", 223.0, [0.6] * 7, 400_000_000),
    Cell("bt-grc-os", "1500-2000", 1700.0, problem="out of memory"),
]


def make(suite: str = "quick", **content) -> Report:
    return Report(suite, {"repeat": 3}, describe_environment(CPU), **content)


def test_a_table_shows_medians_ratios_and_problems():
    (table,) = size_tables(GROUPS)
    assert table.title == "One training step by n (K = 5, d = 128)"
    assert list(table.headers) == [
        *("B", "n", "model", "ms", "from–to ms"),
        *("faster than naive", "peak MB", "less memory than naive"),
    ]
    assert [list(row) for row in table.rows] == [
        ["1", "10", "ebt-grc", "20", "10–30", "10×", "2", "25×"],
        ["1", "10", "naive", "200", "200–200", "1×", "50", "1×"],
        ["1", "1,000", "ebt-grc", "500", "500–500", "–", "4", "–"],
        ["1", "1,000", "naive", "out of memory", "–", "–", "–", "–"],
    ]


def test_inference_tells_the_time_of_a_search_step_and_throughput_the_tokens():
    (table,) = size_tables([[measured("om", [0.009], inference=True, K=None)]])
    assert "forward pass" in table.title
    assert dict(zip(table.headers, table.rows[0], strict=True))["µs a search step"] == "1,000"
    assert "faster than naive" not in table.headers
    (table,) = size_tables([[measured("om", [0.01], B=32)]], with_tokens=True)
    assert dict(zip(table.headers, table.rows[0], strict=True))["tokens/s"] == "32,000"


def test_each_varied_size_has_its_table_and_its_column():
    groups = [
        [measured("ebt-grc", [0.1], varied="d_s", slice_size=16)],
        [measured("ebt-grc", [0.1], varied="d_s", slice_size=32)],
        [measured("ebt-grc", [0.1], varied="K", K=2), measured("ebt-grc-512", [0.1], varied="K", K=2, d=512)],
    ]
    beams, slices = size_tables(groups)
    assert list(beams.headers[:5]) == ["B", "n", "K", "d", "model"]
    assert list(slices.headers[:4]) == ["B", "n", "d_s", "model"]
    assert [row[2] for row in slices.rows] == ["16", "32"]
    (alone,) = size_tables([[measured("om", [0.1], varied="d", d=d, K=None)] for d in (64, 128)])
    assert alone.title == "One training step by d"


def test_the_paper_table_puts_published_figures_in_brackets_and_marks_extrapolation():
    minutes, memory, milliseconds = paper_tables(CELLS)
    assert list(minutes.headers) == ["model", "200-250", "1500-2000"]
    assert [list(row) for row in minutes.rows] == [
        ["EBT-GRC", "0.01 (1.2)", "–"],
        ["naive", "~1", "–"],
        ["BT-GRC OS", "–", "OOM (OOM)"],
    ]
    assert [list(row)[1] for row in memory.rows] == ["0.05 (0.19)", "0.4", "–"]
    assert [list(row)[1:] for row in milliseconds.rows] == [["6", "–"], ["600", "–"], ["–", "out of memory"]]
    assert "bt-grc-os-faithful" in minutes.note  # whose cost is the published one
    assert "faithful" not in paper_tables(CELLS[:2])[0].note


def test_markdown_holds_the_machine_and_every_row():
    text = make(groups=GROUPS, interrupted=True).to_markdown()
    first = text.splitlines()[0]
    assert f"torch {torch.__version__}" in first
    assert "interrupted" in first
    assert "| ---: | ---: | --- | ---: |" in text
    assert "| 1 | 10 | ebt-grc | 20 | 10–30 | 10× | 2 | 25× |" in text
    assert "In brackets" in make("paper", cells=CELLS).to_markdown()


def test_json_holds_every_timing_and_what_it_was_measured_on():
    content = json.loads(make(groups=[*GROUPS, [measured("om", [0.1])]]).to_json())
    assert content["environment"]["torch"] == torch.__version__
    assert content["environment"]["threads"] == torch.get_num_threads()
    assert content["environment"]["matmul_precision"] == torch.get_float32_matmul_precision()
    assert content["environment"]["device"]
    first, second = content["measurements"][:2]
    assert first["all_seconds"] == [0.010, 0.030, 0.020]
    assert first["all_processor_seconds"] == [0.005, 0.015, 0.010]
    assert (first["B"], first["n"], first["d"], first["K"]) == (1, 10, 128, 5)
    assert first["times_faster_than_naive"] == pytest.approx(10)
    assert second["peak_bytes"] == 50_000_000
    assert content["measurements"][-1]["times_faster_than_naive"] is None
    cells = json.loads(make("paper", cells=CELLS).to_json())["measurements"]
    assert cells[0]["published"] == {"minutes": 1.2, "gigabytes": 0.19}
    assert cells[1]["extrapolated"]


def test_the_device_has_a_name_with_and_without_proc(monkeypatch, tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    monkeypatch.setattr(report, "_PROCESSOR", cpuinfo)
    assert describe_environment(CPU)["device"]
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Abacus 9\n")
    assert describe_environment(CPU)["device"] == "Abacus 9"
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Big One")
    assert describe_environment(torch.device("cuda"))["device"] == "Big One"
    assert report._version("no-such-package-at-all") is None


def test_lines_have_the_measured_points_and_the_published_ones_beside():
    fast, naive = lines_of(make(groups=GROUPS))
    assert [tuple(point) for point in fast.points] == [(10, 20.0, 2.0), (1000, 500.0, 4.0)]
    assert naive.points[1].milliseconds is None
    here, there = (
        [line for line in lines_of(make("paper", cells=CELLS)) if line.published == published]
        for published in (False, True)
    )
    assert [line.label for line in here] == ["EBT-GRC", "naive"]
    assert [(line.label, line.points[0].milliseconds) for line in there] == [("EBT-GRC", pytest.approx(720))]


def test_batch_sizes_are_told_apart_only_where_there_are_several():
    groups = [[measured("om", [0.1], B=2)], [measured("om", [0.1], B=3)]]
    assert [line.label for line in lines_of(make(groups=groups))] == ["om, B = 2", "om, B = 3"]


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_a_plot_is_drawn_for_every_size_that_varied(tmp_path, suffix):
    groups = [*GROUPS, [measured("ebt-grc", [0.1], varied="K", K=7)]]
    path = tmp_path / f"bench{suffix}"
    draw(lines_of(make(groups=groups)), path, "a title")
    if suffix == ".svg":
        text = path.read_text()
        for word in ("a title", "tokens n", "beams K", "peak memory (MB)", "naive", ">7<"):
            assert word in text
    drawn = path.read_bytes()
    draw(lines_of(make(groups=groups)), path, "a title")
    assert path.read_bytes() == drawn
    assert path.stat().st_size > 1000


def test_a_plot_without_memory_has_times_only_and_published_figures_are_named(tmp_path):
    path = tmp_path / "bench.svg"
    draw(lines_of(make(groups=[[measured("om", [0.1])]])), path, "t")
    assert "peak memory" not in path.read_text()
    draw(lines_of(make("paper", cells=CELLS)), path, "t")
    assert "published (RTX A6000)" in path.read_text()


def test_what_cannot_be_drawn_is_said_before_the_work(monkeypatch, tmp_path):
    with pytest.raises(BeamtreeError, match=r"--plot writes .png, .svg, .pdf, got 'a.gif'"):
        plot.check_plot(Path("a.gif"))
    with pytest.raises(BeamtreeError, match="cannot write"):
        draw(lines_of(make(groups=GROUPS)), tmp_path / "absent" / "a.png", "t")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"beamtree\[plot\]"):
        plot.check_plot(Path("a.png"))
