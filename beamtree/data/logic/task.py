"""Logical inference (Bowman et al. 2015): which of seven relations holds between two propositional formulas.

Reads files train0 … train12, test0 … test12, published or generated; the number in a file's name is that of
the operators in the longer formula, 12 standing for 12 and more. A line is `relation⇥formula⇥formula`.
"""

from collections.abc import Iterator
from pathlib import Path

from beamtree.data.bad_rows import BadRows
from beamtree.data.logic.generate import LAST_INDEX, generate_logic
from beamtree.data.logic.language import RELATIONS, TOKENS, gold_merges, relation_between, tokenize, worlds_of
from beamtree.data.task import Example, Task
from beamtree.errors import BeamtreeError, nearest
from beamtree.files.bounded import shown
from beamtree.files.lines import find_file, read_rows

__all__ = ["TASK", "generate_logic", "read", "read_file"]

_TRAINED_INDICES = range(7)
_DEV_EVERY = 10

SPLITS = {
    "train": "train0 … train6 without every tenth pair",
    "dev": "every tenth pair of train0 … train6",
    **{f"test{index}": f"{index} operators in the longer formula" for index in range(LAST_INDEX)},
    f"test{LAST_INDEX}": f"{LAST_INDEX} operators or more in the longer formula",
}


def read_file(path: Path, bad_rows: BadRows | None = None) -> Iterator[Example]:
    """The pairs of one file; every relation is checked against the truth tables."""
    for number, line in read_rows(path):
        yield from _read_pair(path, number, line, bad_rows)


def read(folder: Path, split: str, bad_rows: BadRows | None = None) -> Iterator[Example]:
    """`train` and `dev` are train0 … train6, every tenth line to dev; `test0` … `test12` are files."""
    if split not in SPLITS:
        raise BeamtreeError(f"logic has no split {split!r}{nearest(split, SPLITS)}")
    if split.startswith("test"):
        yield from read_file(_find(folder, split), bad_rows)
        return
    count = 0
    for path in [_find(folder, f"train{index}") for index in _TRAINED_INDICES]:
        for number, line in read_rows(path):
            count += 1
            if (count % _DEV_EVERY == 0) == (split == "dev"):
                yield from _read_pair(path, number, line, bad_rows)


def _find(folder: Path, name: str) -> Path:
    return find_file(folder, (name, f"{name}.txt"))


def _read_pair(path: Path, number: int, line: str, bad_rows: BadRows | None) -> Iterator[Example]:
    try:
        columns = line.count("\t") + 1
        if columns != 3:
            raise BeamtreeError(f"wanted relation, formula, formula between tabs, found {columns} column(s)")
        relation, *formulas = line.split("\t")
        if relation not in RELATIONS:
            raise BeamtreeError(
                f"unknown relation {shown(relation)}; the relations are {' '.join(RELATIONS)}"
            )
        left, right = map(tokenize, formulas)
        true_relation = relation_between(worlds_of(left), worlds_of(right))
        if relation != true_relation:
            raise BeamtreeError(
                f"wrong relation {relation!r}: between these formulas it is {true_relation!r}"
            )
    except BeamtreeError as error:
        (bad_rows or BadRows()).meet(path, number, str(error))
    else:
        yield Example((left, right), relation)


TASK = Task(
    name="logic",
    tokens=TOKENS,
    labels=RELATIONS,
    sentences=2,
    splits=SPLITS,
    tokenize=tokenize,
    read=read,
    read_file=read_file,
    gold_merges=gold_merges,
    answer=lambda sentences: relation_between(*map(worlds_of, sentences)),
)
