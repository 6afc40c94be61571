"""QQP, Quora's question pairs: do two questions ask the same? With PAWS, where the words do not tell.

Quora's one file is split as in the paper: 5,000 duplicates and 5,000 others for dev, as many for test.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from beamtree.data.bad_rows import BadRows
from beamtree.data.corpora.split_files import SplitFile, read_split, require_split
from beamtree.data.rows import RowFormat, words_of
from beamtree.data.task import CountRule, Example, Task
from beamtree.files.lines import MissingFileError, find_file

LABELS = ("different", "duplicate")
LONGEST = 150  # words; longer questions are left out before the split
_RELEASE = ("quora_duplicate_questions.tsv",)
_HELD_OUT = 5_000  # of each label
_SEED = 101
_QUORA = "Quora Question Pairs (Iyer et al. 2017)"
FORMAT = RowFormat(
    label=("label", "is_duplicate"),
    sentences=(("question1", "sentence1"), ("question2", "sentence2")),
    labels={"0": "different", "1": "duplicate"},
)

SPLITS = {
    "train": SplitFile("the pairs that are not held out", ("train.tsv", "train_subset.tsv"), _QUORA, LONGEST),
    "dev": SplitFile("5,000 duplicates and 5,000 others", ("dev.tsv",), _QUORA, LONGEST),
    "test": SplitFile("another 5,000 duplicates and 5,000 others (IID)", ("test.tsv",), _QUORA, LONGEST),
    "paws-qqp": SplitFile(
        "questions with the same words, dev and test",
        ("test_paws_qqp.tsv", "paws_qqp/dev_and_test.tsv", "dev_and_test.tsv"),
        "PAWS-QQP (Zhang et al. 2019), made from Quora's file by their script",
    ),
    "paws-wiki": SplitFile(
        "Wikipedia sentences with the same words, test",
        ("test_paws_wiki.tsv", "final/test.tsv", "paws_wiki/test.tsv"),
        "PAWS-Wiki labelled, final (Zhang et al. 2019)",
    ),
    "paws-wiki-dev": SplitFile(
        "Wikipedia sentences with the same words, dev; not in the paper",
        ("dev_paws_wiki.tsv", "final/dev.tsv", "paws_wiki/dev.tsv"),
        "PAWS-Wiki labelled, final (Zhang et al. 2019)",
    ),
}


def read(folder: Path, split: str, bad_rows: BadRows | None = None) -> Iterator[Example]:
    file = require_split("qqp", SPLITS, split)
    release = None
    if split in ("train", "dev", "test"):
        with suppress(MissingFileError):
            release = find_file(folder, _RELEASE)
    if release is None:
        yield from read_split(FORMAT, file, folder, bad_rows)
        return
    examples = list(FORMAT.read(release, bad_rows or BadRows(), longest=LONGEST, quoted=True))
    random = np.random.RandomState(_SEED)
    for label in reversed(LABELS):
        rows = random.permutation([i for i, example in enumerate(examples) if example.label == label])
        held_out = min(_HELD_OUT, len(rows) // 10)
        parts = {"dev": rows[:held_out], "test": rows[held_out : 2 * held_out], "train": rows[2 * held_out :]}
        yield from (examples[i] for i in parts[split])


def read_file(path: Path, bad_rows: BadRows | None = None) -> Iterator[Example]:
    """A table with label and two questions, or Quora's own file."""
    quoted = path.name.startswith(_RELEASE[0])
    return FORMAT.read(path, bad_rows or BadRows(), quoted=quoted)


TASK = Task(
    name="qqp",
    tokens=(),
    labels=LABELS,
    sentences=2,
    splits={name: file.description for name, file in SPLITS.items()},
    tokenize=words_of,
    read=read,
    read_file=read_file,
    words=CountRule(6, ("train", "dev", "test", "paws-qqp", "paws-wiki")),
    corpora={name: file.corpus for name, file in SPLITS.items()},
    published={
        "train": 384_290,
        "dev": 10_000,
        "test": 10_000,
        "paws-qqp": 677,
        "paws-wiki": 8_000,
        "paws-wiki-dev": 8_000,
    },
)
