"""The task of filters: is a nested condition true? Its splits by depth, read from generated files.

The depth of a condition is the most brackets that are open at once. Training has depths 0 to 4, dev 1 to 4, a
test split one depth. A line is `label⇥condition`, and every label is checked by evaluation.
"""

from collections.abc import Iterator
from pathlib import Path

from beamtree.data.filters.language import LABELS, TOKENS, evaluate, find_words, gold_merges, tokenize
from beamtree.data.task import REFUSE, BadRows, Example, Task, require_split
from beamtree.errors import BeamtreeError
from beamtree.files.bounded import shown
from beamtree.files.lines import find_file, read_rows

TRAINED = range(5)  # depths; without brackets there are too few short conditions to hold some out
DEV_DEPTHS = TRAINED[1:]
TESTED = range(1, 11)
SPLITS = {
    "train": f"depths {TRAINED[0]} to {TRAINED[-1]}",
    "dev": f"depths {DEV_DEPTHS[0]} to {DEV_DEPTHS[-1]}",
    **{f"depth{depth}": f"depth {depth}" for depth in TESTED},
}


def file_of(split: str) -> str:
    return f"{split}.tsv"


def read_file(path: Path, bad_rows: BadRows = REFUSE) -> Iterator[Example]:
    """The conditions of one file."""
    return bad_rows.sort_out(path, read_rows(path), _read_line)


def read(folder: Path, split: str, bad_rows: BadRows = REFUSE) -> Iterator[Example]:
    """The conditions of a split, from the folder's file of its name, plain, .gz or .xz."""
    require_split("filters", split, SPLITS)
    return read_file(find_file(folder, [file_of(split)]), bad_rows)


def label_of(holds: bool) -> str:
    return LABELS[holds]


def _read_line(line: str) -> Example:
    columns = line.count("\t") + 1
    if columns != 2:
        raise BeamtreeError(f"label and condition with a tab between are wanted, {columns} column(s) found")
    label, condition = line.split("\t")
    tokens = tokenize(condition)
    right = label_of(evaluate(tokens))
    if label != right:
        raise BeamtreeError(f"the label is {shown(label)}, but the condition is {right}")
    return Example((tokens,), label)


TASK = Task(
    name="filters",
    tokens=TOKENS,
    labels=LABELS,
    sentences=1,
    splits=SPLITS,
    tokenize=tokenize,
    read=read,
    read_file=read_file,
    gold_merges=gold_merges,
    answer=lambda sentences: label_of(evaluate(sentences[0])),
    find_words=find_words,
)
