"""The table and the picture of a contest, made from the outcomes of its runs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from beamtree.compare.contest import TRAINING, TREE_MODEL, Contest
from beamtree.compare.outcome import Outcome
from beamtree.errors import BeamtreeError
from beamtree.files.atomic import make_folder, replace_file
from beamtree.training.plots import choose_colours, open_grid, picture, tick_whole_numbers
from beamtree.zoo.by_name import LARGEST_DIFFERENCE

STEM = "comparison"
DEV = "dev"
LEARNT = 0.95  # accuracy inside training; below it, results outside say nothing about generalisation
_LEAST = 50  # examples that a depth needs to be drawn

LABELS = {
    "bilstm": "BiLSTM",
    "rotary-transformer": "Transformer, rotary",
    "universal-transformer": "Universal Transformer",
    "s4d": "S4D",
    "mamba": "Mamba",
    "ssm-ebt-grc": "EBT-GRC over S4D",
    "ebt-grc": "EBT-GRC",
    "gold-grc": "gold trees",
}


@dataclass(frozen=True)
class Seeds:
    """All finished runs of one model, without trials of learning rates."""

    model: str
    runs: Sequence[Outcome]

    @property
    def label(self) -> str:
        return LABELS.get(self.model, self.model)

    def label_on(self, contest: Contest) -> str:
        """The label, with a star if the model did not learn the task, inside training or else on dev."""
        inside = self.accuracies(_inside(contest)) or [run.dev_accuracy for run in self.runs]
        return self.label + (" *" if mean(inside) < LEARNT else "")

    def accuracies(self, splits: Sequence[str]) -> list[float]:
        """The accuracy of each seed over all examples of these splits; that on dev is known from training."""
        if list(splits) == [DEV]:
            return [run.dev_accuracy for run in self.runs]
        found = []
        for run in self.runs:
            measured = [run.splits[split] for split in splits if split in run.splits]
            total = sum(one.examples for one in measured)
            if total:
                found.append(sum(one.examples * one.accuracy for one in measured) / total)
        return found

    def by_depth(self) -> dict[int, list[float]]:
        """Depth -> accuracy of each seed, over all test splits."""
        depths: dict[int, list[float]] = {}
        for run in self.runs:
            counts: dict[int, list[float]] = {}
            for split, measured in run.splits.items():
                for depth, examples, accuracy in measured.by_depth if split != TRAINING else ():
                    count = counts.setdefault(int(depth), [0, 0.0])
                    count[0] += examples
                    count[1] += examples * accuracy
            for depth, (examples, right) in counts.items():
                if examples >= _LEAST:
                    depths.setdefault(depth, []).append(right / examples)
        return dict(sorted(depths.items()))


def gather(outcomes: Sequence[Outcome], models: Sequence[str]) -> list[Seeds]:
    """The models with finished runs: first those named, in their order, then any others."""
    ended = [outcome for outcome in outcomes if not outcome.trial and outcome.splits]
    order = dict.fromkeys((*models, *(outcome.model for outcome in ended)))
    groups = [Seeds(model, [outcome for outcome in ended if outcome.model == model]) for model in order]
    return [group for group in groups if group.runs]


def write_page(contest: Contest, groups: Sequence[Seeds], out: Path, title: str) -> list[Path]:
    """Write comparison.md, .svg and .png into the folder; return their paths."""
    if not groups:
        raise BeamtreeError(f"{out} has no finished run to show: leave out --draw to train")
    pictures = [out / f"{STEM}{suffix}" for suffix in (".svg", ".png")]
    make_folder(out)
    _draw(list(_panels(contest, groups)), title, pictures, _judged(contest))
    table = out / f"{STEM}.md"
    replace_file(table, page(contest, groups, title))
    return [table, *pictures]


class Panel(NamedTuple):
    """Accuracy by depth or length; `lines` maps each model to places on the axis and its seeds' shares."""

    x_label: str
    lines: Mapping[str, Mapping[int, Sequence[float]]]
    names: Sequence[str] = ()  # of the places, if the axis does not show numbers
    trained: float | None = None  # the place up to which models were trained


def _panels(contest: Contest, groups: Sequence[Seeds]) -> Iterator[Panel]:
    splits = list(contest.points.values())
    lines = {}
    for group in groups:
        found = {at: group.accuracies([split]) for at, split in enumerate(splits)}
        lines[group.label_on(contest)] = {at: shares for at, shares in found.items() if shares}
    trained = contest.inside - 0.5 if 0 < contest.inside < len(splits) else None
    yield Panel(contest.axis, lines, list(contest.points), trained)
    if contest.by_depth:
        yield Panel("depth", {group.label_on(contest): group.by_depth() for group in groups})


def _draw(panels: Sequence[Panel], title: str, paths: Sequence[Path], inside: str) -> None:
    """Draw panels side by side, with a line for each model and a band from its lowest to its highest seed."""
    colours = choose_colours(len(panels[0].lines))
    with picture(2.5 + 5.5 * len(panels), 4.5, *paths) as figure:
        for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            for (label, line), colour in zip(panel.lines.items(), colours, strict=True):
                shares = [[100 * share for share in seeds] for seeds in line.values()]
                middle, low, high = (list(map(choose, shares)) for choose in (mean, min, max))
                axes.plot(list(line), middle, label=label, color=colour, marker="o", markersize=4)
                axes.fill_between(list(line), low, high, color=colour, alpha=0.2, linewidth=0)
            _label(axes, panel)
            open_grid(axes)
        handles = figure.axes[0].get_legend_handles_labels()
        starred = any(label.endswith("*") for label in panels[0].lines)
        told = f"* below {LEARNT:.0%} {inside}" if starred else None
        look: dict[str, Any] = {"frameon": False, "fontsize": 8, "title_fontsize": 7}
        figure.legend(*handles, loc="outside right upper", title=told, **look)
        figure.suptitle(title)


def _label(axes: Any, panel: Panel) -> None:
    if panel.names:
        axes.set_xticks(range(len(panel.names)), panel.names)
    else:
        tick_whole_numbers(axes.xaxis)
    if panel.trained is not None:
        axes.axvline(panel.trained, color="grey", linestyle=":")
        axes.annotate(
            "seen in training",
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


def _judged(contest: Contest) -> str:
    """Where a model is judged to have learnt the task."""
    return "inside training" if contest.inside else "on dev"


def _inside(contest: Contest) -> list[str]:
    """The splits that are like training."""
    return list(contest.points.values())[: contest.inside]


def columns(contest: Contest) -> dict[str, list[str]]:
    """Heading -> splits: training, the splits like it, then one column for each split beyond."""
    points = list(contest.points.items())
    found = {TRAINING: [TRAINING]}
    if not contest.inside:
        found[DEV] = [DEV]
    else:
        first, last = points[0][0], points[contest.inside - 1][0]
        heading = first if contest.inside == 1 else f"{first}–{last}"
        found[heading] = _inside(contest)
    return found | {label: [split] for label, split in points[contest.inside :]}


def of_other_size(groups: Sequence[Seeds]) -> list[str]:
    """The models that differ in size from the tree model, or from the largest if that is not among them."""
    sizes = {group.label: group.runs[0].parameters for group in groups}
    of_tree = [group.runs[0].parameters for group in groups if group.model == TREE_MODEL]
    wanted = max(of_tree or sizes.values(), default=0)
    return [label for label, size in sizes.items() if abs(size - wanted) > LARGEST_DIFFERENCE * wanted]


def means(contest: Contest, groups: Sequence[Seeds]) -> list[list[str]]:
    """A short table, header first: the mean over each model's seeds."""
    heads = columns(contest)
    found = [[group.accuracies(splits) for splits in heads.values()] for group in groups]
    rows = [[f"{100 * mean(shares):.1f}" if shares else "–" for shares in row] for row in found]
    labels = [group.label_on(contest) for group in groups]
    return [["model", *heads], *([label, *row] for label, row in zip(labels, rows, strict=True))]


def page(contest: Contest, groups: Sequence[Seeds], title: str) -> str:
    """Title, picture and table in Markdown."""
    heads = columns(contest)
    rows = [["model", "parameters", "rate", *heads, "minutes", "peak MB"]]
    for group in groups:
        runs = group.runs
        rows.append(
            [
                group.label_on(contest),
                f"{runs[0].parameters:,}",
                ", ".join(f"{rate:g}" for rate in sorted({run.learning_rate for run in runs})),
                *(_share(group.accuracies(splits)) for splits in heads.values()),
                f"{mean(run.minutes for run in runs):.1f}",
                f"{max(run.peak_bytes for run in runs) / 1e6:,.0f}",
            ]
        )
    devices = sorted({run.device for group in groups for run in group.runs})
    counts = {len(group.runs) for group in groups}
    seeds = (
        "one seed" if counts == {1} else f"{'/'.join(map(str, sorted(counts)))} seeds: mean (lowest–highest)"
    )
    told = (
        f"Accuracy in percent by {contest.axis}, {seeds}. Parameters include embedding and classifier. "
        f"Minutes are the mean training time of a seed on {', '.join(devices)}, shared with other work."
    )
    if others := of_other_size(groups):
        told += f"\n\nNot of equal size: {', '.join(others)}. Your own encoders are used as you made them."
    if note := star_note(contest, groups):
        told += f"\n\n\\{note}"
    return "\n\n".join([f"# {title}", f"![{title}]({STEM}.svg)", _table(rows), told]) + "\n"


def star_note(contest: Contest, groups: Sequence[Seeds]) -> str:
    """What the star after a model's name means; empty if no model has one."""
    if not any(group.label_on(contest).endswith("*") for group in groups):
        return ""
    return (
        f"* below {LEARNT:.0%} {_judged(contest)}: it did not learn the task, so what lies beyond says "
        "nothing about generalisation."
    )


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    rule = ["---"] + ["---:"] * (len(head) - 1)
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *body))


def _share(shares: Sequence[float]) -> str:
    if not shares:
        return "–"
    middle = f"{100 * mean(shares):.1f}"
    return middle if len(shares) == 1 else f"{middle} ({100 * min(shares):.1f}–{100 * max(shares):.1f})"
