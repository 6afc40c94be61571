"""Plots are files that open: every series is in them, and the same figures give the same bytes."""

import importlib.util
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from beamtree.errors import BeamtreeError, MissingExtraError
from beamtree.training.plots import Point, draw_accuracy

SERIES = {
    "near-iid": [Point(5.5, 0.99, 0.97, 1.0), Point(250, 0.5, 0.4, 0.6)],
    "10-args": [Point(250, 0.0, 0.0, 0.1)],
}


def accuracy_drawn(folder: Path, **options: bool) -> list[Path]:
    return draw_accuracy(SERIES, title="ebt-grc", x_label="length", stem=folder / "by.length", **options)


@pytest.mark.parametrize("log_x", [False, True])
def test_a_png_and_an_svg_are_written_with_names_and_labels(tmp_path: Path, log_x: bool) -> None:
    png, svg = accuracy_drawn(tmp_path / "new" / "folder", log_x=log_x)
    assert (png.name, svg.name) == ("by.length.png", "by.length.svg")
    assert png.read_bytes().startswith(b"\x89PNG\r\n")
    words = " ".join(ElementTree.parse(svg).getroot().itertext())
    for word in ("ebt-grc", "length", "accuracy (%)", "near-iid", "10-args"):
        assert word in words


def test_the_same_figures_give_the_same_files(tmp_path: Path) -> None:
    first, second = accuracy_drawn(tmp_path / "a"), accuracy_drawn(tmp_path / "b")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_one_series_needs_no_legend_and_many_get_colours(tmp_path: Path) -> None:
    points = SERIES["near-iid"]
    _, single = draw_accuracy({"lonely": points}, title="t", x_label="x", stem=tmp_path / "one")
    assert "lonely" not in single.read_text()
    many = {f"split {i}": points for i in range(14)}
    _, crowded = draw_accuracy(many, title="t", x_label="x", stem=tmp_path / "many")
    assert "split 13" in crowded.read_text()


def test_a_place_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BeamtreeError, match=r"cannot make the folder .*file"):
        accuracy_drawn(tmp_path / "file")


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"drawing plots needs .* pip install 'beamtree\[plot\]'"):
        accuracy_drawn(tmp_path)
