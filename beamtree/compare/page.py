"""The table and the picture of a contest, from what its runs left behind."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from beamtree.compare.contest import TRAINING, Contest
from beamtree.compare.outcome import Outcome
from beamtree.compare.picture import Band, Panel, draw_bands
from beamtree.errors import BeamtreeError
from beamtree.files.atomic import replace_file

STEM = "comparison"
LEARNT = 0.95  # inside training; below it a model's figures outside tell of no generalising
_LEAST = 50  # examples of a depth that is drawn

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
    """All ended runs of one model, trials of learning rates not among them."""

    model: str
    runs: Sequence[Outcome]

    @property
    def label(self) -> str:
        return LABELS.get(self.model, self.model)

    def accuracies(self, splits: Sequence[str]) -> list[float]:
        """Of each seed, over all examples of these splits."""
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
    """The models that have ended runs: first those named, in their order, then others that are there."""
    ended = [outcome for outcome in outcomes if not outcome.trial and outcome.splits]
    order = dict.fromkeys((*models, *(outcome.model for outcome in ended)))
    groups = [Seeds(model, [outcome for outcome in ended if outcome.model == model]) for model in order]
    return [group for group in groups if group.runs]


def write_page(contest: Contest, groups: Sequence[Seeds], out: Path, title: str) -> list[Path]:
    """comparison.md, .svg and .png in the folder; the paths written."""
    if not groups:
        raise BeamtreeError(f"{out} has no ended run to show: leave out --draw to train")
    pictures = draw_bands(list(_panels(contest, groups)), title=title, stem=out / STEM)
    table = out / f"{STEM}.md"
    replace_file(table, page(contest, groups, title))
    return [table, *pictures]


def _panels(contest: Contest, groups: Sequence[Seeds]) -> Iterator[Panel]:
    points = list(contest.points.items())
    bands = []
    for group in groups:
        found = [(at, group.accuracies([split])) for at, (_, split) in enumerate(points)]
        bands.append(Band(group.label, [(at, shares) for at, shares in found if shares]))
    trained = contest.inside - 0.5 if 0 < contest.inside < len(points) else None
    yield Panel(contest.axis, bands, names=[label for label, _ in points], trained=trained)
    if contest.by_depth:
        yield Panel("depth", [Band(group.label, list(group.by_depth().items())) for group in groups])


def columns(contest: Contest) -> dict[str, list[str]]:
    """Heading -> splits: training, all that is like it, then what lies beyond, place by place."""
    points = list(contest.points.items())
    found = {TRAINING: [TRAINING]}
    if contest.inside:
        first, last = points[0][0], points[contest.inside - 1][0]
        heading = first if contest.inside == 1 else f"{first}–{last}"
        found[heading] = [split for _, split in points[: contest.inside]]
    return found | {label: [split] for label, split in points[contest.inside :]}


def page(contest: Contest, groups: Sequence[Seeds], title: str) -> str:
    """Title, picture and table in Markdown."""
    heads = columns(contest)
    inside = list(heads.values())[1] if contest.inside else []
    rows = [["model", "parameters", "rate", *heads, "minutes", "peak MB"]]
    unlearnt = False
    for group in groups:
        runs = group.runs
        learnt = not inside or mean(group.accuracies(inside) or [0.0]) >= LEARNT
        unlearnt |= not learnt
        rows.append(
            [
                group.label + ("" if learnt else " *"),
                f"{runs[0].parameters:,}",
                _several([run.learning_rate for run in runs], "{:g}".format),
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
        f"Minutes are the mean of a seed's training, on {', '.join(devices)}, beside whatever else ran there."
    )
    if unlearnt:
        told += (
            f"\n\n\\* below {LEARNT:.0%} inside training: it did not learn the task, so what lies beyond "
            "tells nothing of generalising."
        )
    return "\n\n".join([f"# {title}", f"![{title}]({STEM}.svg)", _table(rows), told]) + "\n"


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    rule = ["---"] + ["---:"] * (len(head) - 1)
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *body))


def _share(shares: Sequence[float]) -> str:
    if not shares:
        return "–"
    middle = f"{100 * mean(shares):.1f}"
    return middle if len(shares) == 1 else f"{middle} ({100 * min(shares):.1f}–{100 * max(shares):.1f})"


def _several(values: Sequence[float], show: Callable[[float], str]) -> str:
    return ", ".join(show(value) for value in sorted(set(values)))
