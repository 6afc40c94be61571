"""The examples that a recipe learns from: a task's files, or ListOps drawn on the fly."""

from pathlib import Path

from beamtree.data.files import MissingFileError
from beamtree.data.location import data_folder
from beamtree.data.task import Example, Task, find_task
from beamtree.errors import BeamtreeError
from beamtree.training.recipe import SampledSettings, TaskSettings


def load_examples(
    settings: TaskSettings, given: Path | None = None
) -> tuple[Task, list[Example], list[Example]]:
    """The task, its training and its dev examples."""
    task = find_task(settings.name)
    if settings.sampled.train:
        if task.name != "listops":
            raise BeamtreeError(
                f"task.sampled draws ListOps only; for {task.name!r} set task.sampled.train = 0"
            )
        return task, *_sample(settings.sampled)
    folder = data_folder(task.name, given)
    if not folder.is_dir():
        raise BeamtreeError(
            f"there are no {task.name} data in {folder}: make them with "
            f"`beamtree data {task.name} --out {folder}`, or name their folder with --data"
        )
    try:
        return task, list(task.read(folder, settings.train)), list(task.read(folder, settings.dev))
    except MissingFileError as error:
        raise BeamtreeError(f"{error}; `beamtree data {task.name} --out {folder}` makes it") from error


def _sample(settings: SampledSettings) -> tuple[list[Example], list[Example]]:
    """Deep and shallow expressions by turns, all distinct, so that every prefix is half and half."""
    from beamtree.data.listops import sample_expressions

    if settings.dev < 1:
        raise BeamtreeError("task.sampled.dev must be at least 1: a run needs held-out expressions")
    count = settings.train + settings.dev
    length = {"min_length": settings.min_length, "max_length": settings.max_length}
    deep = sample_expressions((count + 1) // 2, seed=settings.seed, min_nesting=settings.deep, **length)
    shallow = sample_expressions(count // 2, seed=settings.seed, max_nesting=settings.deep - 1, **length)
    examples = [example for pair in zip(deep, shallow, strict=False) for example in pair] + deep[
        len(shallow) :
    ]
    return examples[settings.dev :], examples[: settings.dev]
