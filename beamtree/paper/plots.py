"""Pictures of results: accuracy by length and by depth, with 95 % intervals, as PNG and SVG."""

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from beamtree.errors import MissingExtraError
from beamtree.files.atomic import make_folder, replacing


class Point(NamedTuple):
    x: float
    share: float
    low: float
    high: float


def require_matplotlib() -> None:
    """Raise before the work whose plot could not be drawn."""
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtraError("drawing plots", "plot")


def draw_accuracy(
    series: Mapping[str, Sequence[Point]], *, title: str, x_label: str, stem: Path, log_x: bool = False
) -> list[Path]:
    """Write `stem`.png and `stem`.svg with one line for every series; the paths written."""
    require_matplotlib()
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    paths = [stem.with_name(stem.name + suffix) for suffix in (".png", ".svg")]
    # A fixed salt and no date: equal results give equal files.
    with matplotlib.rc_context({"svg.hashsalt": "beamtree", "svg.fonttype": "none", "font.size": 10}):
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.add_subplot()
        colours = matplotlib.colormaps["tab20" if len(series) > 10 else "tab10"]
        for index, (name, points) in enumerate(series.items()):
            shares = [100 * point.share for point in points]
            axes.errorbar(
                [point.x for point in points],
                shares,
                yerr=(
                    [share - 100 * point.low for share, point in zip(shares, points, strict=True)],
                    [100 * point.high - share for share, point in zip(shares, points, strict=True)],
                ),
                label=name,
                color=colours(index % colours.N),
                marker="o",
                markersize=4,
                linewidth=1.4,
                elinewidth=0.9,
                capsize=2,
            )
        if log_x:
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
            axes.xaxis.set_minor_locator(NullLocator())
        else:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set(title=title, xlabel=x_label, ylabel="accuracy (%), 95 % interval", ylim=(-2, 102))
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        if len(series) > 1:
            figure.legend(loc="outside right upper", frameon=False, fontsize=8)
        make_folder(stem.parent)
        with replacing(paths[0]) as png:
            figure.savefig(png, format="png", dpi=150)
        with replacing(paths[1]) as svg:
            figure.savefig(svg, format="svg", metadata={"Date": None})
    return paths
