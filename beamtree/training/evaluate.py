"""What a trained model is worth on labelled data, and how its best trees compare with the gold ones."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from beamtree.classifier.inference import BATCH_TOKENS, run_in_batches
from beamtree.classifier.model import TreeClassifier
from beamtree.data.batching import EncodedExamples
from beamtree.data.bracketed import nesting
from beamtree.data.folders import data_folder
from beamtree.data.task import REFUSE, BadRows, Example, Task
from beamtree.errors import BeamtreeError, nearest
from beamtree.files.lines import MissingFileError
from beamtree.nn.heads import class_losses, predicted_classes
from beamtree.training.tally import SplitResult, Tally


@dataclass(frozen=True)
class Source:
    """A split to evaluate: its name in the results, and how to read it."""

    name: str
    read: Callable[[], Iterator[Example]]


def find_sources(
    task: Task, data: Sequence[Path], splits: Sequence[str] = (), bad_rows: BadRows = REFUSE
) -> list[Source]:
    """The splits in folders and files: in each folder those asked for, or all that are not for training."""
    for split in splits:
        if split not in task.splits:
            raise BeamtreeError(f"task {task.name!r} has no split {split!r}{nearest(split, task.splits)}")
    sources: list[Source] = []
    for path in data:
        if path.is_file():
            if splits:
                raise BeamtreeError(f"--split chooses from a folder, but {path} is a file")
            namesakes = sum(other.name == path.name for other in data)
            name = path.name if namesakes == 1 else str(path)
            sources.append(Source(name, partial(task.read_file, path, bad_rows)))
        else:
            sources += _splits_of(task, data_folder(task.name, path), splits, bad_rows)
    return sources


def _splits_of(task: Task, folder: Path, splits: Sequence[str], bad_rows: BadRows) -> list[Source]:
    # In the task's order, which is that of the paper's table, whatever order they were asked for in.
    wanted = [split for split in task.splits if (split in splits if splits else "train" not in split)]
    found = []
    for split in wanted:
        try:
            next(task.read(folder, split, bad_rows), None)
        except MissingFileError:
            if splits:
                raise
            continue
        found.append(Source(split, partial(task.read, folder, split, bad_rows)))
    if not found:
        raise BeamtreeError(f"{folder} holds no split of task {task.name!r}; wanted {', '.join(wanted)}")
    return found


def evaluate(
    model: TreeClassifier,
    name: str,
    examples: Iterable[Example],
    *,
    batch_tokens: int = BATCH_TOKENS,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> SplitResult:
    """Run a model over labelled examples; `advance` hears how many are done of how many.

    Length and depth of a pair are those of its longer and deeper sentence.
    """
    task = model.task
    depths: list[int] = []
    encoded = EncodedExamples.encode(
        _note_depths(name, examples, depths), model.vocabulary, task.labels, gold_merges=task.gold_merges
    )
    # An encoder that follows the gold tree has no tree of its own to compare.
    compare = task.gold_merges is not None and not model.needs_merges
    result, done = SplitResult(name), 0
    for batch, logits, trees in run_in_batches(model, encoded, batch_tokens=batch_tokens, need_trees=compare):
        rows = batch.rows.tolist()
        outcomes = [
            Tally(1, correct, loss)
            for correct, loss in zip(
                (predicted_classes(logits) == batch.labels).tolist(),
                class_losses(logits, batch.labels).tolist(),
                strict=True,
            )
        ]
        if trees is not None and batch.gold_merges is not None:
            pairs = zip(trees.merges[:, 0].tolist(), batch.gold_merges.tolist(), strict=True)
            for place, (merges, gold) in enumerate(pairs):
                steps = gold.index(-1) if -1 in gold else len(gold)
                outcomes[place % len(rows)].trees.add(merges[:steps], gold[:steps])
        for row, outcome in zip(rows, outcomes, strict=True):
            depth = depths[row] if task.gold_merges is not None else None
            result.add(outcome, length=int(encoded.lengths[row].max()), depth=depth)
        done += len(rows)
        advance(done, len(encoded))
    return result


def _note_depths(name: str, examples: Iterable[Example], depths: list[int]) -> Iterator[Example]:
    for example in examples:
        depths.append(max(map(nesting, example.sentences)))
        yield example
    if not depths:
        raise BeamtreeError(f"{name} has no example that can be read")
