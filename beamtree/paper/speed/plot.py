"""Time and peak memory against length (or beams, width, slice), both axes logarithmic."""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from beamtree.errors import BeamtreeError
from beamtree.files.atomic import replacing
from beamtree.paper.plots import require_matplotlib
from beamtree.paper.speed.measure import Measured
from beamtree.paper.speed.page import Report
from beamtree.paper.speed.published import label_of
from beamtree.paper.speed.table1 import PAPER_SAMPLES, Cell
from beamtree.paper.speed.workload import VARIED

_LABELS = {"n": "tokens n", "K": "beams K", "d": "width d", "d_s": "slice d_s"}
_UNITS = {"milliseconds": "milliseconds a step", "megabytes": "peak memory (MB)"}
_PUBLISHED = "published (RTX A6000)"
_FORMATS = (".png", ".svg", ".pdf")


class Point(NamedTuple):
    size: float
    milliseconds: float | None
    megabytes: float | None


class Line(NamedTuple):
    varied: str
    label: str
    points: list[Point]
    published: bool = False


def check_plot(path: Path) -> None:
    """Raise before the work whose plot could not be drawn."""
    if path.suffix.lower() not in _FORMATS:
        raise BeamtreeError(f"--plot writes {', '.join(_FORMATS)}, got {path.name!r}")
    require_matplotlib()


def lines_of(report: Report) -> list[Line]:
    """Every model's points, as far as there is something to draw."""
    lines = paper_lines(report.cells) if report.suite == "paper" else size_lines(report.groups)
    return [line for line in lines if any(point.milliseconds or point.megabytes for point in line.points)]


def size_lines(groups: Measured) -> list[Line]:
    measured = [one for group in groups for one in group]
    batches = {one.case.B for one in measured}
    lines: dict[tuple[str, str], Line] = {}
    for one in measured:
        label = one.case.model + (f", B = {one.case.B}" if len(batches) > 1 else "")
        line = lines.setdefault((one.varied, label), Line(one.varied, label, []))
        line.points.append(_point(one.size, one.seconds, one.peak_bytes))
    return list(lines.values())


def paper_lines(cells: Sequence[Cell]) -> list[Line]:
    """The figures of this machine, a line for every model, and then the published ones."""
    here: dict[str, Line] = {}
    there: dict[str, Line] = {}
    for cell in cells:
        label = label_of(cell.model)
        seconds = mean(cell.seconds) if cell.seconds else None
        line = here.setdefault(label, Line("n", label, []))
        line.points.append(_point(cell.mean_length, seconds, cell.peak_bytes))
        if cell.published is not None:
            minutes, gigabytes = cell.published
            line = there.setdefault(label, Line("n", label, [], published=True))
            line.points.append(_point(cell.mean_length, 60 * minutes / PAPER_SAMPLES, 1e9 * gigabytes))
    return [*here.values(), *there.values()]


def _point(size: float, seconds: float | None, peak_bytes: float | None) -> Point:
    return Point(size, seconds and 1e3 * seconds, peak_bytes and 1e-6 * peak_bytes)


def draw(lines: Sequence[Line], path: Path, title: str) -> None:
    """Time above memory, a column for each size that was varied; dashes are the published figures."""
    check_plot(path)
    import matplotlib
    from matplotlib.figure import Figure

    varied = [name for name in VARIED if any(line.varied == name for line in lines)]
    points = [point for line in lines for point in line.points]
    quantities = [name for name in _UNITS if any(getattr(point, name) for point in points)]
    labels = list(dict.fromkeys(line.label for line in lines))
    colours = matplotlib.colormaps["tab20" if len(labels) > 10 else "tab10"]
    # A fixed salt and no date: equal results give equal files.
    with matplotlib.rc_context({"svg.hashsalt": "beamtree", "svg.fonttype": "none", "font.size": 10}):
        figure = Figure(figsize=(2 + 4 * len(varied), 3.5 * len(quantities)), layout="constrained")
        panels = figure.subplots(len(quantities), len(varied), squeeze=False)
        for column, name in enumerate(varied):
            of_size = [line for line in lines if line.varied == name]
            for panel, quantity in zip(panels[:, column], quantities, strict=True):
                for line in of_size:
                    _draw_line(panel, line, quantity, colours(labels.index(line.label) % colours.N))
                _label_axes(panel, of_size, _LABELS[name], _UNITS[quantity])
        figure.suptitle(title)
        handles = {line.get_label(): line for panel in panels.flat for line in panel.lines}
        shown = {label: handles[label] for label in (*labels, _PUBLISHED) if label in handles}
        figure.legend(shown.values(), shown, loc="outside right upper", frameon=False, fontsize=8)
        kind = path.suffix.lower().removeprefix(".")
        with replacing(path) as file:
            figure.savefig(file, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)


def _draw_line(panel: Any, line: Line, quantity: str, colour: Any) -> None:
    points = [(point.size, getattr(point, quantity)) for point in sorted(line.points)]
    # A logarithm has no place for what was not measured, nor for growth too small to see.
    points = [(size, value) for size, value in points if value]
    if not points:
        return
    sizes, values = zip(*points, strict=True)
    if line.published:
        panel.plot(sizes, values, color=colour, linestyle="--", linewidth=0.9, label=_PUBLISHED)
    else:
        panel.plot(sizes, values, color=colour, marker="o", markersize=4, label=line.label)


def _label_axes(panel: Any, lines: Sequence[Line], x_label: str, y_label: str) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    sizes = sorted({point.size for line in lines for point in line.points})
    panel.set(xscale="log", xlabel=x_label, ylabel=y_label)
    panel.set_xticks(sizes, [f"{size:.0f}" for size in sizes])
    if panel.lines:
        panel.set_yscale("log")
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_minor_locator(NullLocator())
    panel.grid(alpha=0.3)
    panel.spines[["top", "right"]].set_visible(False)
