"""The ListOps task: reads published or generated files and checks every label by evaluation."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from beamtree.data.bad_rows import BadRows
from beamtree.data.listops.generate import generate_listops
from beamtree.data.listops.language import DIGITS, TOKENS, evaluate, gold_merges, split_tokens, tokenize
from beamtree.data.listops.sampler import sample_expressions
from beamtree.data.listops.splits import LRA_HEADER, SPLITS, find_split
from beamtree.data.task import Example, Task
from beamtree.errors import BeamtreeError
from beamtree.files.bounded import shown
from beamtree.files.lines import find_file, read_rows

__all__ = ["TASK", "generate_listops", "read", "read_file", "sample_expressions"]


def read_file(path: Path, bad_rows: BadRows | None = None) -> Iterator[Example]:
    """The examples of one file, `label⇥expression` or, after its header, LRA's `expression⇥label`."""
    number = 0
    label_first = True
    for number, line in read_rows(path):
        if number == 1 and line == LRA_HEADER:
            label_first = False
            continue
        try:
            example = _read_line(line, label_first)
        except BeamtreeError as error:
            (bad_rows or BadRows()).meet(path, number, str(error))
        else:
            yield example
    if number == 1 and not label_first:
        raise BeamtreeError(f"{path} has a header and no examples")


def _read_line(line: str, label_first: bool) -> Example:
    columns = line.count("\t") + 1
    if columns != 2:
        wanted = "label and expression" if label_first else "expression and label"
        raise BeamtreeError(f"{wanted} with a tab between are wanted, {columns} column(s) found")
    label, expression = line.split("\t") if label_first else reversed(line.split("\t"))
    tokens = split_tokens(expression)
    value = DIGITS[evaluate(tokens)]
    if label != value:
        raise BeamtreeError(f"the label is {shown(label)}, but the expression evaluates to {value}")
    return Example((tokens,), label)


def read(folder: Path, split: str, bad_rows: BadRows | None = None) -> Iterator[Example]:
    """The examples of a split, from the folder's file of the published name, plain, .gz or .xz."""
    lines = find_split(split)
    path = find_file(folder, [lines.file])
    count = 0
    for example in islice(read_file(path, bad_rows), lines.start, lines.stop):
        if lines.max_length is None or len(example.sentences[0]) <= lines.max_length:
            count += 1
            yield example
    if count == 0:
        limit = "" if lines.max_length is None else f" of up to {lines.max_length} tokens"
        raise BeamtreeError(
            f"{path} has no line{limit} from {lines.start + 1} on, so the split {split!r} is empty"
        )


TASK = Task(
    name="listops",
    tokens=TOKENS,
    labels=DIGITS,
    sentences=1,
    splits={name: split.description for name, split in SPLITS.items()},
    tokenize=tokenize,
    read=read,
    read_file=read_file,
    gold_merges=gold_merges,
    answer=lambda sentences: DIGITS[evaluate(sentences[0])],
    token_pattern=r"[^\s()]+",
)
