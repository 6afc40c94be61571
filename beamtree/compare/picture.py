"""Accuracy against depth or length: one line a model, its seeds as a band."""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from beamtree.files.atomic import make_folder
from beamtree.paper.plots import choose_colours, open_grid, save_picture, style


class Band(NamedTuple):
    """A line with what lies between the lowest and the highest seed: (x, the share of each seed)."""

    label: str
    points: Sequence[tuple[float, Sequence[float]]]


class Panel(NamedTuple):
    x_label: str
    bands: Sequence[Band]
    names: Sequence[str] = ()  # of x = 0, 1, …, where x are places and no numbers
    trained: float | None = None  # how far training reached


def draw_bands(panels: Sequence[Panel], *, title: str, stem: Path) -> list[Path]:
    """Write `stem`.svg and `stem`.png: panels side by side, in each a line a model, seeds as a band."""
    paths = [stem.with_name(stem.name + suffix) for suffix in (".svg", ".png")]
    labels = list(dict.fromkeys(band.label for panel in panels for band in panel.bands))
    colours = choose_colours(len(labels))
    with style():
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator

        figure = Figure(figsize=(2.5 + 5.5 * len(panels), 4.5), layout="constrained")
        for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            for band in panel.bands:
                colour = colours(labels.index(band.label) % colours.N)
                places = [x for x, _ in band.points]
                shares = [[100 * share for share in seeds] for _, seeds in band.points]
                axes.plot(
                    places, list(map(mean, shares)), label=band.label, color=colour, marker="o", markersize=4
                )
                axes.fill_between(
                    places,
                    list(map(min, shares)),
                    list(map(max, shares)),
                    color=colour,
                    alpha=0.2,
                    linewidth=0,
                )
            if panel.names:
                axes.set_xticks(range(len(panel.names)), panel.names)
            else:
                axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            if panel.trained is not None:
                axes.axvline(panel.trained, color="grey", linestyle=":")
                axes.annotate(
                    "trained so far",
                    (panel.trained, 1),
                    xycoords=("data", "axes fraction"),
                    xytext=(-3, 2),
                    textcoords="offset points",
                    ha="right",
                    va="bottom",
                    fontsize=8,
                    color="grey",
                )
            axes.set(xlabel=panel.x_label, ylabel="accuracy (%)")
            open_grid(axes)
        handles = figure.axes[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside right upper", frameon=False, fontsize=8)
        figure.suptitle(title)
        make_folder(stem.parent)
        for path in paths:
            save_picture(figure, path)
    return paths
