"""Pictures of results: accuracy by length and by depth with 95 % intervals, learning curves, confusion
matrices; and what all pictures have in common."""

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from beamtree.errors import MissingExtraError
from beamtree.files.atomic import make_folder, replacing
from beamtree.printable import printable
from beamtree.training.classes import Confusion
from beamtree.training.run_folder import best_epoch

_ROOM_FOR_COUNTS, _ROOM_FOR_NAMES = 15, 40  # most labels of a confusion matrix with counts, with names


class Point(NamedTuple):
    """Accuracy at a length or depth x, with its interval."""

    x: float
    share: float
    low: float
    high: float


def require_matplotlib() -> None:
    """Raise if plots cannot be drawn; to be called before the work."""
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtraError("drawing plots", "plot")


@contextmanager
def picture(width: float, height: float, *paths: Path) -> Iterator[Any]:
    """An empty figure, sized in inches, that is written to these files at the end of the block.

    With a fixed salt and no date, equal results give equal files.
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
    """`count` colours, which repeat only when the colour map runs out."""
    import matplotlib

    colours = matplotlib.colormaps["tab20" if count > 10 else "tab10"]
    return [colours(index % colours.N) for index in range(count)]


def open_grid(axes: Any) -> None:
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def tick_whole_numbers(axis: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))


def tick_plainly(axis: Any) -> None:
    """1, 2, 5, 10, … on a logarithmic axis."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_locator(NullLocator())


def draw_accuracy(
    series: Mapping[str, Sequence[Point]], *, title: str, x_label: str, stem: Path, log_x: bool = False
) -> list[Path]:
    """Write `stem`.png and `stem`.svg with one line for every series; return the paths."""
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
            tick_plainly(axes.xaxis)
        else:
            tick_whole_numbers(axes.xaxis)
        axes.set(title=title, xlabel=x_label, ylabel="accuracy (%), 95 % interval", ylim=(-2, 102))
        open_grid(axes)
        if len(series) > 1:
            figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    return paths


def draw_learning_curve(history: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Loss, accuracy and macro-F1 by epoch, in training and on dev; a line marks the epoch that was kept."""
    losses = {"train_loss": "train", "dev_loss": "dev"}
    shares = {"train_accuracy": "train", "dev_accuracy": "dev", "dev_macro_f1": "dev macro-F1"}
    epochs = [record["epoch"] for record in history]
    kept = best_epoch(history)
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
            if kept is not None:
                panel.axvline(kept["epoch"], color="grey", linestyle=":", label="kept")
            panel.set(xlabel="epoch", ylabel=title)
            tick_whole_numbers(panel.xaxis)
            open_grid(panel)
            panel.legend(frameon=False, fontsize=8)
    return path


def draw_confusion(confusion: Confusion, path: Path) -> Path:
    """Draw the matrix as shares of each true label, with counts if there is room for them."""
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
            # A dollar sign would start math mode.
            names = [printable(label)[:20].replace("$", r"\$") for label in confusion.labels]
            turned = {"rotation": 45, "ha": "right"} if count > 3 else {}
            axes.set_xticks(range(count), names, **turned)
            axes.set_yticks(range(count), names)
        axes.set(xlabel="predicted", ylabel="true", title=f"macro-F1 {confusion.macro_f1:.1%}")
    return path
