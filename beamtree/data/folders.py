"""Where data files are, which splits a data folder has, and where to get the others."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from beamtree.data.task import TASKS, BadRows, find_task
from beamtree.data.vectors import find_vectors
from beamtree.errors import BeamtreeError
from beamtree.files.lines import MissingFileError


def data_folder(task: str, given: Path | None = None) -> Path:
    """Return the folder with a task's files: the given one or its subfolder of the task's name; if none is
    given, `$BEAMTREE_DATA/TASK` or `./data/TASK`."""
    root = given or Path(os.environ.get("BEAMTREE_DATA") or "data")
    return root if given is not None and not (root / task).is_dir() else root / task


def vectors_folder(given: Path | None = None) -> Path:
    """Return where word vectors may be: `vectors` in the given folder or beside it, else as for a task."""
    for folder in () if given is None else (given / "vectors", given.absolute().parent / "vectors"):
        if folder.is_dir():
            return folder
    return data_folder("vectors")


_VECTORS = "GloVe (Pennington et al. 2014): 840B, 300 wide, in the paper"


def is_part(examples: int, published: int) -> bool:
    """Return whether examples are clearly missing; length limits alone drop only a few with any tokenizer."""
    return examples < 0.98 * published


@dataclass(frozen=True)
class SplitStatus:
    """One split: its number of examples, or why there are none and which corpus has them."""

    task: str
    split: str
    examples: int | None
    corpus: str
    published: int | None = None  # number of examples in the paper's corpus
    problem: str = ""  # why an existing file cannot be read
    bad: int = 0  # number of bad rows

    @property
    def state(self) -> str:
        """What is wrong, in a few words; empty if nothing is."""
        if self.problem:
            return "cannot be read"
        if self.examples is None:
            return "" if self.task == "vectors" and self.split else "missing"
        words = []
        if self.published is not None and is_part(self.examples, self.published):
            words.append(f"{self.examples / self.published:.0%} of {self.published:,}")
        if self.bad:
            words.append(f"{self.bad:,} bad row{'s' if self.bad > 1 else ''}")
        return ", ".join(words)


def survey(root: Path, bad_rows: BadRows) -> Iterator[SplitStatus]:
    """Read every split of every task to the end and yield what was found; the word vectors come last."""
    for name in TASKS:
        task = find_task(name)
        if task.own is not None:  # a user's own data has no fixed splits
            continue
        for split in task.splits:
            yield _survey_split(root / name, name, split, bad_rows)
    try:
        vectors, problem = find_vectors(root / "vectors"), ""
    except BeamtreeError as error:
        vectors, problem = None, str(error)
    yield SplitStatus("vectors", "" if vectors is None else vectors.name, None, _VECTORS, problem=problem)


def _survey_split(folder: Path, name: str, split: str, bad_rows: BadRows) -> SplitStatus:
    task = find_task(name)
    corpus = task.corpora.get(split, f"`beamtree data {name}` makes it")
    if not folder.is_dir():
        return SplitStatus(name, split, None, corpus)
    before = bad_rows.count
    try:
        examples = sum(1 for _ in task.read(folder, split, bad_rows))
    except MissingFileError:
        return SplitStatus(name, split, None, corpus)
    except BeamtreeError as error:
        return SplitStatus(name, split, None, corpus, problem=str(error))
    published = task.published.get(split)
    return SplitStatus(name, split, examples, corpus, published, bad=bad_rows.count - before)
