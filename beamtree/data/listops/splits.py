"""The ListOps task: splits read from published or generated files; every label is checked by evaluation.

The base set is one draw of 100,000 expressions in two files. The first 1,000 lines of its train file are the
dev split; the length limit of the training split is applied when reading. So generated files have the
published format, and published ones can replace them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path

from beamtree.data.formal import read_example
from beamtree.data.listops.language import (
    DIGITS,
    TOKENS,
    evaluate,
    expressions_in,
    find_words,
    gold_merges,
    split_tokens,
    tokenize,
)
from beamtree.data.task import REFUSE, BadRows, Example, Task, Tokens, require_split
from beamtree.errors import BeamtreeError
from beamtree.files.lines import find_file, read_rows

LRA_HEADER = "Source\tTarget"


@dataclass(frozen=True)
class Split:
    """Lines `start` (counted from 0) to `stop` − 1 of a file that have at most `max_length` tokens."""

    description: str
    file: str
    start: int = 0
    stop: int | None = None
    max_length: int | None = None


SPLITS: dict[str, Split] = {
    "train": Split("up to 100 tokens, up to 5 arguments", "train_d20s.tsv", start=1000, max_length=100),
    "dev": Split("like the near-IID test", "train_d20s.tsv", stop=1000),
    "near-iid": Split("like train, without its limit on length", "test_d20s.tsv"),
    **{
        f"{low}-{low + 100}": Split(
            f"{low + 1} to {low + 99} tokens, up to 5 arguments", f"test_{low}_{low + 100}.tsv"
        )
        for low in range(200, 1000, 100)
    },
    "10-args": Split("100 to 1000 tokens, up to 10 arguments", "test_ood_10arg.tsv"),
    "15-args": Split("100 to 1000 tokens, up to 15 arguments", "test_ood_15arg.tsv"),
    "lra-test": Split("Long Range Arena: 501 to 1999 tokens, up to 10 arguments", "basic_test.tsv"),
    "lra-valid": Split("Long Range Arena, validation", "basic_val.tsv"),
    "lra-train": Split("Long Range Arena, training", "basic_train.tsv"),
    "5-args": Split("100 to 1000 tokens, up to 5 arguments", "test_iid_arg.tsv"),
    "depth-train": Split("20 to 100 tokens, nested up to 6 deep", "train_d6s.tsv"),
    "depth-dev": Split("20 to 100 tokens, nested 7 deep", "dev_d7s.tsv"),
    "depth-test": Split("20 to 100 tokens, nested 8 deep or more", "test_dg8s.tsv"),
}


def find_split(name: str) -> Split:
    """Return the split of that name."""
    return require_split("ListOps", name, SPLITS)


def read_file(path: Path, bad_rows: BadRows = REFUSE) -> Iterator[Example]:
    """Yield the examples of one file: `label⇥expression` or, after its header, LRA's `expression⇥label`."""
    rows = read_rows(path)
    first: tuple[int, str] | None = next(rows)
    label_first = first is not None and first[1] != LRA_HEADER
    if not label_first:
        first = next(rows, None)
    if first is None:
        raise BeamtreeError(f"{path} has a header but no examples")
    columns = ("label", "expression") if label_first else ("expression", "label")
    read_line = partial(
        read_example, columns=columns, tokenize=split_tokens, answer=_answer, label_at=columns.index("label")
    )
    yield from bad_rows.sort_out(path, chain([first], rows), read_line)


def _answer(sentences: tuple[Tokens, ...]) -> str:
    return DIGITS[evaluate(sentences[0])]


def read(folder: Path, split: str, bad_rows: BadRows = REFUSE) -> Iterator[Example]:
    """Yield the examples of a split, from the file with the published name, plain, .gz or .xz."""
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
    answer=_answer,
    texts_in=expressions_in,
    find_words=lambda text: [(word.start, word.end) for word in find_words(text)],
)
