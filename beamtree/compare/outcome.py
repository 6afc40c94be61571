"""The outcome of one run, in a small file: how it learnt, what it cost, how accurate it is."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from beamtree.errors import BeamtreeError
from beamtree.files.atomic import replace_file
from beamtree.files.bounded import is_file, read_json
from beamtree.printable import write_json
from beamtree.training.evaluate import SplitResult

FILE = "outcome.json"


@dataclass(frozen=True)
class Measured:
    """Results on a split: accuracy, also by depth, and bracketing F1 of the model's own trees."""

    examples: int = 0
    accuracy: float = 0.0
    bracketing_f1: float | None = None
    by_depth: list[list[float]] = field(default_factory=list)  # depth, examples, accuracy
    digest: str = ""  # of the examples; empty in runs of earlier versions

    @classmethod
    def of(cls, result: SplitResult, digest: str = "") -> "Measured":
        depths = sorted(result.by_depth.items())
        return cls(
            result.total.examples,
            result.total.accuracy,
            result.total.trees.f1,
            [[depth, tally.examples, tally.accuracy] for depth, tally in depths],
            digest,
        )


@dataclass(frozen=True)
class Outcome:
    task: str
    model: str
    seed: int
    trial: bool  # of a learning rate
    learning_rate: float
    options: dict[str, Any]
    parameters: int
    epochs: int
    steps: int
    best_epoch: int
    end: str
    train_accuracy: float  # in the best epoch, measured during training
    dev_accuracy: float
    minutes: float
    peak_bytes: int
    device: str
    splits: dict[str, Measured] = field(default_factory=dict)  # empty for a trial, or if the loss diverged

    def write(self, folder: Path) -> None:
        replace_file(folder / FILE, write_json(asdict(self), indent=1) + "\n")


def read_outcome(folder: Path) -> Outcome | None:
    """The outcome stored in a run folder, or None if the run is unfinished."""
    path = folder / FILE
    if not is_file(path):
        return None
    content = read_json(path)
    try:
        splits = {name: Measured(**split) for name, split in content["splits"].items()}
        return Outcome(**{**content, "splits": splits})
    except (TypeError, KeyError, AttributeError) as error:
        raise BeamtreeError(
            f"{path} is not the outcome of a run: delete it, and the run is repeated"
        ) from error


def read_outcomes(folder: Path) -> list[Outcome]:
    """The outcomes of all finished runs in a folder."""
    found = [read_outcome(path.parent) for path in sorted(folder.glob(f"*/{FILE}"))]
    return [outcome for outcome in found if outcome is not None]
