"""The files eval*.json that `beamtree eval RUN --save` writes to a run folder, one for each kind of search.

While the run's weights exist, evaluations of other weights are refused.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from beamtree.classifier.classifier import Classifier
from beamtree.errors import BeamtreeError
from beamtree.files.atomic import replace_file
from beamtree.files.bounded import hash_files, is_file, read_json, shown
from beamtree.printable import write_json
from beamtree.saving.folder import WEIGHTS
from beamtree.training.evaluate import SplitResult
from beamtree.training.recipe import Recipe
from beamtree.training.run_folder import RunFolder

_MEASURED_ALIKE = ("encoder", "task", "beam", "merge_equal_trees", "weights", "device")


class Search(NamedTuple):
    """How the search in an evaluation differed from that in training."""

    beam: int | None = None
    merged: bool = False  # equal trees


AS_TRAINED = Search()


def describe_evaluation(
    model: Classifier, name: str, search: Search, weights: str, command: str, results: Iterable[SplitResult]
) -> dict[str, Any]:
    """An evaluation as JSON: what was measured, how, and the results by split; `weights` is a checksum."""
    splits = [result.to_dict() | {"description": model.task.splits.get(result.name)} for result in results]
    return {
        "model": name,
        "encoder": model.settings.encoder,
        "task": model.task.name,
        "beam": search.beam,
        "merge_equal_trees": search.merged,
        "weights": weights,
        "device": next(model.parameters()).device.type,
        "command": command,
        "splits": splits,
    }


def save_evaluation(run: Path, content: dict[str, Any]) -> tuple[Path, list[str]]:
    """Save an evaluation for reports; return the file and all splits that it now holds."""
    beam, merged = content["beam"], content["merge_equal_trees"]
    file = run / f"eval{'' if beam is None else f'-beam{beam}'}{'-merged' if merged else ''}.json"
    kept = _with_other_splits(file, content)
    replace_file(file, write_json(kept, indent=2) + "\n")
    return file, [entry["split"] for entry in kept["splits"]]


def _with_other_splits(file: Path, content: dict[str, Any]) -> dict[str, Any]:
    """The new results, with those of other splits in the file if weights and settings are the same."""
    before: Any = None
    with suppress(BeamtreeError):  # a damaged file is replaced
        before = read_json(file) if file.is_file() else None
    match before:
        case {"splits": [*splits], "command": str(commands), **rest} if all(
            rest.get(key) == content[key] for key in _MEASURED_ALIKE
        ):
            new = {entry["split"] for entry in content["splits"]}
            others = [entry for entry in splits if isinstance(entry, dict) and entry.get("split") not in new]
            if others:
                if content["command"] not in commands:
                    commands = f"{commands}; {content['command']}"
                return {**content, "command": commands, "splits": [*others, *content["splits"]]}
    return content


@dataclass(frozen=True)
class SplitFigures:
    examples: int
    accuracy: float
    interval: tuple[float, float]
    f1: float | None  # None: the model builds no trees of its own
    exact: float | None


@dataclass(frozen=True)
class Evaluation:
    """A saved evaluation, read back."""

    file: Path
    search: Search
    command: str | None
    splits: dict[str, SplitFigures]
    weights: str | None = None  # SHA-256 of the measured weights
    device: str | None = None  # None in files of earlier versions


def read_evaluations(run: RunFolder, recipe: Recipe) -> list[Evaluation]:
    """All evaluations of a run, those on a CPU last: a check there does not replace the first figure."""
    weights = hash_files(run.best / WEIGHTS) if is_file(run.best / WEIGHTS) else None
    found = [_read(file, recipe, weights) for file in sorted(run.path.glob("eval*.json"))]
    found.sort(key=lambda one: one.device == "cpu")
    measured: dict[tuple[Search, str | None, str], Path] = {}
    for one in found:
        for split in one.splits:
            other = measured.setdefault((one.search, one.device, split), one.file)
            if other != one.file:
                raise BeamtreeError(f"{other} and {one.file} both measured {split}: keep one of them")
    return found


def _read(file: Path, recipe: Recipe, weights: str | None) -> Evaluation:
    content = read_json(file)
    try:
        of = content["task"], content["encoder"]
        wanted = recipe.task.name, recipe.model.encoder
        if of != wanted:
            raise BeamtreeError(f"{file} is of {' with '.join(of)}, the run is of {' with '.join(wanted)}")
        if weights is not None and content.get("weights") not in (None, weights):
            commands = str(content.get("command") or f"beamtree eval {file.parent}").split("; ")
            again = shown("; ".join(f"{command} --save" for command in commands), most=500)
            raise BeamtreeError(
                f"{file} measured other weights than those now in best/: evaluate again with {again}"
            )
        splits = {entry["split"]: _figures(entry) for entry in content["splits"]}
        names = ("beam", "merge_equal_trees", "command", "weights", "device")
        match [content.get(name) for name in names]:
            case (
                None | int() as beam,
                None | bool() as merged,
                None | str() as command,
                None | str() as measured,
                None | str() as device,
            ):
                search = Search(beam, bool(merged))
                return Evaluation(file, search, command, splits, measured, device)
        raise ValueError(f"one of {', '.join(names)} has the wrong type")
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        if isinstance(error, BeamtreeError):
            raise
        raise BeamtreeError(f"{file} is not what `beamtree eval --json` writes: {shown(error)}") from error


def _figures(entry: dict[str, Any]) -> SplitFigures:
    low, high = entry["accuracy_95"]
    figures = SplitFigures(
        int(entry["examples"]),
        float(entry["accuracy"]),
        (float(low), float(high)),
        entry["bracketing_f1"],
        entry["exact_match"],
    )
    if not isinstance(entry["split"], str) or figures.examples < 1:
        raise ValueError(f"split {shown(entry['split'])} of {figures.examples} examples")
    shares = [figures.accuracy, *figures.interval, figures.f1 or 0, figures.exact or 0]
    if not all(0 <= share <= 1 for share in shares):
        raise ValueError(f"a share of split {entry['split']} is not between 0 and 1")
    return figures
