"""Draws time and memory by size, as measured here and, for comparison, as published."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from beamtree.errors import BeamtreeError
from beamtree.paper.published import label_of
from beamtree.paper.speed.benchmark import Benchmark
from beamtree.paper.speed.measure import Group
from beamtree.paper.speed.table1 import PAPER_SAMPLES, RangeResult
from beamtree.paper.speed.workload import VARIED
from beamtree.training.plots import choose_colours, open_grid, picture, require_matplotlib, tick_plainly

_FORMATS = (".png", ".svg", ".pdf")
_LABELS = {"n": "tokens n", "K": "beams K", "d": "width d", "d_s": "slice d_s"}
_UNITS = {"milliseconds": "milliseconds per step", "megabytes": "peak memory (MB)"}
_PUBLISHED = "published (RTX A6000)"


class Speed(NamedTuple):
    size: float
    milliseconds: float | None
    megabytes: float | None


class Curve(NamedTuple):
    varied: str
    label: str
    points: list[Speed]
    published: bool = False


def check_plot(path: Path) -> None:
    """Raise if plots cannot be written to this file; to be called before measuring."""
    if path.suffix.lower() not in _FORMATS:
        raise BeamtreeError(f"--plot writes {', '.join(_FORMATS)}, got {path.name!r}")
    require_matplotlib()


def curves_of(report: Benchmark) -> list[Curve]:
    """The curves of all models, except those without anything to draw."""
    curves = _paper_curves(report.cells) if report.suite == "paper" else _size_curves(report.groups)
    return [curve for curve in curves if any(point.milliseconds or point.megabytes for point in curve.points)]


def _size_curves(groups: Sequence[Group]) -> list[Curve]:
    measured = [one for group in groups for one in group]
    batches = {one.case.B for one in measured}
    both = len({one.case.inference for one in measured}) > 1
    curves: dict[tuple[str, str], Curve] = {}
    for one in measured:
        label = one.case.model + (f", B = {one.case.B}" if len(batches) > 1 else "")
        if both:
            label += ", inference" if one.case.inference else ", training"
        curve = curves.setdefault((one.varied, label), Curve(one.varied, label, []))
        curve.points.append(Speed(one.size, one.milliseconds, one.megabytes))
    return list(curves.values())


def _paper_curves(cells: Sequence[RangeResult]) -> list[Curve]:
    """The figures of this machine, a curve for each model, and then the published ones."""
    here: dict[str, Curve] = {}
    there: dict[str, Curve] = {}
    for cell in cells:
        label = label_of(cell.model)
        curve = here.setdefault(label, Curve("n", label, []))
        curve.points.append(Speed(cell.mean_length, cell.milliseconds, cell.megabytes))
        if cell.published is not None:
            minutes, gigabytes = cell.published
            curve = there.setdefault(label, Curve("n", label, [], published=True))
            published = Speed(cell.mean_length, 60_000 * minutes / PAPER_SAMPLES, 1e3 * gigabytes)
            curve.points.append(published)
    return [*here.values(), *there.values()]


def draw_speed(curves: Sequence[Curve], path: Path, title: str) -> None:
    """Time above memory, a column for each size that was varied; dashes are the published figures."""
    check_plot(path)
    varied = [name for name in VARIED if any(curve.varied == name for curve in curves)]
    points = [point for curve in curves for point in curve.points]
    quantities = [name for name in _UNITS if any(getattr(point, name) for point in points)]
    labels = list(dict.fromkeys(curve.label for curve in curves))
    colours = dict(zip(labels, choose_colours(len(labels)), strict=True))
    with picture(2 + 4 * len(varied), 3.5 * len(quantities), path) as figure:
        panels = figure.subplots(len(quantities), len(varied), squeeze=False)
        for column, name in enumerate(varied):
            of_size = [curve for curve in curves if curve.varied == name]
            for panel, quantity in zip(panels[:, column], quantities, strict=True):
                for curve in of_size:
                    _draw_curve(panel, curve, quantity, colours[curve.label])
                _label_axes(panel, of_size, _LABELS[name], _UNITS[quantity])
        figure.suptitle(title)
        handles = {line.get_label(): line for panel in panels.flat for line in panel.lines}
        shown = {label: handles[label] for label in (*labels, _PUBLISHED) if label in handles}
        figure.legend(shown.values(), shown, loc="outside right upper", frameon=False, fontsize=8)


def _draw_curve(panel: Any, curve: Curve, quantity: str, colour: Any) -> None:
    points = [(point.size, getattr(point, quantity)) for point in sorted(curve.points)]
    # A logarithmic axis has no place for what was not measured, nor for a growth of 0.
    points = [(size, value) for size, value in points if value]
    if not points:
        return
    sizes, values = zip(*points, strict=True)
    if curve.published:
        panel.plot(sizes, values, color=colour, linestyle="--", linewidth=0.9, label=_PUBLISHED)
    else:
        panel.plot(sizes, values, color=colour, marker="o", markersize=4, label=curve.label)


def _label_axes(panel: Any, curves: Sequence[Curve], x_label: str, y_label: str) -> None:
    from matplotlib.ticker import NullLocator

    sizes = sorted({point.size for curve in curves for point in curve.points})
    panel.set(xscale="log", xlabel=x_label, ylabel=y_label)
    panel.set_xticks(sizes, [f"{size:.0f}" for size in sizes])
    panel.xaxis.set_minor_locator(NullLocator())
    if panel.lines:
        panel.set_yscale("log")
        tick_plainly(panel.yaxis)
    open_grid(panel)
