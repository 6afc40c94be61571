"""Where data files are: a folder given, or `$BEAMTREE_DATA/TASK`, or `./data/TASK`."""

import os
from pathlib import Path


def data_folder(task: str, given: Path | None = None) -> Path:
    """The folder with a task's files; the given one itself, or its subfolder of the task's name."""
    root = given or Path(os.environ.get("BEAMTREE_DATA") or "data")
    return root if given is not None and not (root / task).is_dir() else root / task


def vectors_folder(given: Path | None = None) -> Path:
    """Where word vectors are looked for: `vectors` in the folder given or beside it, else as for a task."""
    for folder in () if given is None else (given / "vectors", given.absolute().parent / "vectors"):
        if folder.is_dir():
            return folder
    return data_folder("vectors")
