"""Plots of time and memory: every model at every size that was varied, and the published figures."""

import importlib.util
from pathlib import Path

import pytest
from benchmarked import CELLS, GROUPS, benchmark, measured

from beamtree.errors import BeamtreeError, MissingExtraError
from beamtree.paper.speed.plot import check_plot, curves_of, draw_speed


def test_curves_have_the_measured_points_and_the_published_ones_beside():
    fast, naive = curves_of(benchmark(groups=GROUPS))
    assert [tuple(point) for point in fast.points] == [(10, 20.0, 2.0), (1000, 500.0, 4.0)]
    assert naive.points[1].milliseconds is None
    here, there = (
        [line for line in curves_of(benchmark("paper", cells=CELLS)) if line.published == published]
        for published in (False, True)
    )
    assert [line.label for line in here] == ["EBT-GRC", "naive"]
    assert [(line.label, line.points[0].milliseconds) for line in there] == [("EBT-GRC", pytest.approx(720))]


def test_batch_sizes_are_told_apart_only_where_there_are_several():
    groups = [[measured("om", [0.1], B=2)], [measured("om", [0.1], B=3)]]
    assert [line.label for line in curves_of(benchmark(groups=groups))] == ["om, B = 2", "om, B = 3"]


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_a_plot_is_drawn_for_every_size_that_varied(tmp_path, suffix):
    groups = [*GROUPS, [measured("ebt-grc", [0.1], varied="K", K=7)]]
    path = tmp_path / f"bench{suffix}"
    draw_speed(curves_of(benchmark(groups=groups)), path, "a title")
    if suffix == ".svg":
        text = path.read_text()
        for word in ("a title", "tokens n", "beams K", "peak memory (MB)", "naive", ">7<"):
            assert word in text
    drawn = path.read_bytes()
    draw_speed(curves_of(benchmark(groups=groups)), path, "a title")
    assert path.read_bytes() == drawn
    assert path.stat().st_size > 1000


def test_a_plot_without_memory_has_times_only_and_published_figures_are_named(tmp_path):
    path = tmp_path / "bench.svg"
    draw_speed(curves_of(benchmark(groups=[[measured("om", [0.1])]])), path, "t")
    assert "peak memory" not in path.read_text()
    draw_speed(curves_of(benchmark("paper", cells=CELLS)), path, "t")
    assert "published (RTX A6000)" in path.read_text()


def test_a_plot_that_cannot_be_drawn_is_refused_before_the_work(monkeypatch, tmp_path):
    with pytest.raises(BeamtreeError, match=r"--plot writes .png, .svg, .pdf, got 'a.gif'"):
        check_plot(Path("a.gif"))
    with pytest.raises(BeamtreeError, match="cannot write"):
        draw_speed(curves_of(benchmark(groups=GROUPS)), tmp_path / "absent" / "a.png", "t")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"beamtree\[plot\]"):
        check_plot(Path("a.png"))
