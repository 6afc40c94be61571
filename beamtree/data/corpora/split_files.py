"""The files that splits of a corpus are made of, under the names that its releases give them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from beamtree.data.bad_rows import BadRows
from beamtree.data.rows import MAX_WORDS, RowFormat
from beamtree.data.task import Example
from beamtree.errors import BeamtreeError, nearest
from beamtree.files.lines import find_file


@dataclass(frozen=True)
class SplitFile:
    """One split: what it is, the names its file may have, the corpus to get it from, the lengths kept."""

    description: str
    names: tuple[str, ...]
    corpus: str
    longest: int = MAX_WORDS


def require_split(task: str, splits: Mapping[str, SplitFile], split: str) -> SplitFile:
    if split not in splits:
        raise BeamtreeError(f"{task} has no split {split!r}{nearest(split, splits)}")
    return splits[split]


def read_split(
    format: RowFormat, file: SplitFile, folder: Path, bad_rows: BadRows | None
) -> Iterator[Example]:
    """The examples of a split that is one file in rows."""
    path = find_file(folder, file.names)
    return format.read(path, bad_rows or BadRows(), longest=file.longest)
