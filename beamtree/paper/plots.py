"""Pictures of results: accuracy by length and by depth with 95 % intervals, learning curves, which label is
taken for which, time and memory by size."""

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from beamtree.errors import BeamtreeError, MissingExtraError
from beamtree.files.atomic import make_folder, replacing
from beamtree.paper.published import label_of
from beamtree.paper.speed.benchmark import Benchmark
from beamtree.paper.speed.measure import Group
from beamtree.paper.speed.table1 import PAPER_SAMPLES, RangeResult
from beamtree.paper.speed.workload import VARIED
from beamtree.printable import printable
from beamtree.training.classes import Confusion

_FORMATS = (".png", ".svg", ".pdf")
_LABELS = {"n": "tokens n", "K": "beams K", "d": "width d", "d_s": "slice d_s"}
_UNITS = {"milliseconds": "milliseconds a step", "megabytes": "peak memory (MB)"}
_ROOM_FOR_COUNTS, _ROOM_FOR_NAMES = 15, 40  # labels of a confusion matrix
_PUBLISHED = "published (RTX A6000)"


class Point(NamedTuple):
    """Accuracy at a length or depth x, with its interval."""

    x: float
    share: float
    low: float
    high: float


def require_matplotlib() -> None:
    """Raise before the work whose plot could not be drawn."""
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtraError("drawing plots", "plot")


@contextmanager
def picture(width: float, height: float, *paths: Path) -> Iterator[Any]:
    """An empty figure, in inches; what is drawn on it is written to these files.

    A fixed salt and no date: equal results give equal files.
    """
    require_matplotlib()
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "beamtree", "svg.fonttype": "none", "font.size": 10}):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        for path in paths:
            kind = path.suffix.lower().removeprefix(".")
            with replacing(path) as file:
                figure.savefig(file, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)


def choose_colours(count: int) -> list[Any]:
    """As many as asked for, different ones as far as there are."""
    import matplotlib

    colours = matplotlib.colormaps["tab20" if count > 10 else "tab10"]
    return [colours(index % colours.N) for index in range(count)]


def open_grid(axes: Any) -> None:
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def tick_whole_numbers(axis: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))


def _tick_plainly(axis: Any) -> None:
    """1, 2, 5, 10, … on a logarithmic axis."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_locator(NullLocator())


def draw_accuracy(
    series: Mapping[str, Sequence[Point]], *, title: str, x_label: str, stem: Path, log_x: bool = False
) -> list[Path]:
    """Write `stem`.png and `stem`.svg with one line for every series; the paths written."""
    make_folder(stem.parent)
    paths = [stem.with_name(stem.name + suffix) for suffix in (".png", ".svg")]
    with picture(8, 4.5, *paths) as figure:
        axes = figure.add_subplot()
        for (name, points), colour in zip(series.items(), choose_colours(len(series)), strict=True):
            below = [100 * (point.share - point.low) for point in points]
            above = [100 * (point.high - point.share) for point in points]
            axes.errorbar(
                [point.x for point in points],
                [100 * point.share for point in points],
                yerr=(below, above),
                label=name,
                color=colour,
                marker="o",
                markersize=4,
                linewidth=1.4,
                elinewidth=0.9,
                capsize=2,
            )
        if log_x:
            axes.set_xscale("log")
            _tick_plainly(axes.xaxis)
        else:
            tick_whole_numbers(axes.xaxis)
        axes.set(title=title, xlabel=x_label, ylabel="accuracy (%), 95 % interval", ylim=(-2, 102))
        open_grid(axes)
        if len(series) > 1:
            figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    return paths


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
    """Raise before measuring what could not be drawn into this file."""
    if path.suffix.lower() not in _FORMATS:
        raise BeamtreeError(f"--plot writes {', '.join(_FORMATS)}, got {path.name!r}")
    require_matplotlib()


def curves_of(report: Benchmark) -> list[Curve]:
    """Every model's points, as far as there is something to draw."""
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
    # A logarithm has no place for what was not measured, nor for growth too small to see.
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
        _tick_plainly(panel.yaxis)
    open_grid(panel)


def draw_learning_curve(history: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Loss, accuracy and macro-F1 by epoch, in training and on dev; a line marks the epoch that was kept."""
    losses = {"train_loss": "train", "dev_loss": "dev"}
    shares = {"train_accuracy": "train", "dev_accuracy": "dev", "dev_macro_f1": "dev macro-F1"}
    epochs = [record["epoch"] for record in history]
    kept = max(record["epoch"] for record in history if record["best"])
    with picture(9, 3.6, path) as figure:
        panels = figure.subplots(1, 2)
        for panel, title, scale, names in (
            (panels[0], "loss", 1, losses),
            (panels[1], "accuracy (%)", 100, shares),
        ):
            for key, label in names.items():
                if all(key in record for record in history):
                    values = [scale * record[key] for record in history]
                    panel.plot(epochs, values, marker="o", markersize=3, label=label)
            panel.axvline(kept, color="grey", linestyle=":", label="kept")
            panel.set(xlabel="epoch", ylabel=title)
            tick_whole_numbers(panel.xaxis)
            open_grid(panel)
            panel.legend(frameon=False, fontsize=8)
    return path


def draw_confusion(confusion: Confusion, path: Path) -> Path:
    """The matrix as shares of each true label, with counts where there is room for them."""
    count = len(confusion.labels)
    size = min(12.0, 2.2 + 0.55 * count)
    with picture(size + 0.8, size, path) as figure:
        axes = figure.add_subplot()
        shares = [[n / max(1, sum(row)) for n in row] for row in confusion.counts]
        image = axes.imshow(shares, vmin=0, vmax=1, cmap="Blues")
        figure.colorbar(image, label="share of the true label", shrink=0.8)
        if count <= _ROOM_FOR_COUNTS:
            for i, row in enumerate(confusion.counts):
                for j, n in enumerate(row):
                    colour = "white" if shares[i][j] > 0.5 else "black"
                    axes.text(j, i, f"{n:,}", ha="center", va="center", color=colour, fontsize=8)
        if count <= _ROOM_FOR_NAMES:
            # A dollar sign would begin mathematics.
            names = [printable(label)[:20].replace("$", r"\$") for label in confusion.labels]
            turned = {"rotation": 45, "ha": "right"} if count > 3 else {}
            axes.set_xticks(range(count), names, **turned)
            axes.set_yticks(range(count), names)
        axes.set(xlabel="predicted", ylabel="true", title=f"macro-F1 {confusion.macro_f1:.1%}")
    return path
