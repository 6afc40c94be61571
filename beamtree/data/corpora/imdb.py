"""IMDB (Maas et al. 2011): is a film review positive? With its contrast and counterfactual sets.

Learnt from reviews of up to 200 words; the IID test has the same limit, as in the paper's code.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from beamtree.data.bad_rows import BadRows
from beamtree.data.corpora.split_files import SplitFile, read_split, require_split
from beamtree.data.rows import RowFormat, words_of
from beamtree.data.task import CountRule, Example, Task
from beamtree.errors import BeamtreeError
from beamtree.files.bounded import refuse_unless_file
from beamtree.files.lines import LONGEST_LINE, MissingFileError, find_file, read_lines

LABELS = ("negative", "positive")
TRAINED, HELD_OUT = 200, 300  # words in the longest review of train and IID test, and of dev
_IMDB = "Large Movie Review Dataset v1.0 (Maas et al. 2011), aclImdb"
_CONTRAST = "Contrast Sets, IMDb (Gardner et al. 2020)"
_COUNTERFACTUAL = "Counterfactually Augmented Data, sentiment (Kaushik et al. 2020)"


def _without_line_breaks(text: str) -> str:
    for mark in ("<br />", "<br>", "</br>", "<br/>"):
        text = text.replace(mark, " ")
    return text


FORMAT = RowFormat(
    label=("label", "sentiment"),
    sentences=(("text",),),
    labels={"0": "negative", "1": "positive", "Negative": "negative", "Positive": "positive"},
    prepare=_without_line_breaks,
)

SPLITS = {
    "train": SplitFile("training reviews of up to 200 words", ("train.tsv",), _IMDB, TRAINED),
    "dev": SplitFile(
        "training reviews of 201 to 300 words, and the contrast set's dev pairs", ("train.tsv",), _IMDB
    ),
    "test": SplitFile("test reviews of up to 200 words (IID)", ("test.tsv",), _IMDB, TRAINED),
    "contrast": SplitFile(
        "reviews edited until their label turned",
        ("test_contrast.tsv", "IMDb/data/test_contrast.tsv"),
        _CONTRAST,
    ),
    "counterfactual": SplitFile(
        "reviews edited counterfactually",
        ("test_counterfactual.tsv", "sentiment/new/test.tsv"),
        _COUNTERFACTUAL,
    ),
    "test-long": SplitFile("test reviews of any length; not in the paper", ("test.tsv",), _IMDB),
    "contrast-original": SplitFile(
        "the contrast set's reviews before the edit; they are training reviews",
        ("test_original.tsv", "IMDb/data/test_original.tsv"),
        _CONTRAST,
    ),
    "counterfactual-original": SplitFile(
        "the counterfactual set's reviews before the edit",
        ("test_original_counterfactual.tsv", "sentiment/orig/test.tsv"),
        _COUNTERFACTUAL,
    ),
}
_DEV_PAIRS = [
    SplitFile("", (f"dev_{kind}.tsv", f"IMDb/data/dev_{kind}.tsv"), _CONTRAST)
    for kind in ("original", "contrast")
]


def read(folder: Path, split: str, bad_rows: BadRows | None = None) -> Iterator[Example]:
    """The examples of a split; dev is without the contrast pairs where these are not there."""
    file, bad_rows = require_split("imdb", SPLITS, split), bad_rows or BadRows()
    if split not in ("train", "dev", "test", "test-long"):
        yield from read_split(FORMAT, file, folder, bad_rows)
        return
    shortest, longest = (TRAINED + 1, HELD_OUT) if split == "dev" else (1, file.longest)
    part = "test" if split.startswith("test") else "train"
    yield from _reviews(folder, part, bad_rows, shortest, longest)
    if split == "dev":
        for pairs in _DEV_PAIRS:
            with suppress(MissingFileError):
                yield from read_split(FORMAT, pairs, folder, bad_rows)


def _reviews(folder: Path, part: str, bad_rows: BadRows, shortest: int, longest: int) -> Iterator[Example]:
    """From one table, or from the release's folders pos and neg with a file for each review."""
    for base in (folder / part, folder / "aclImdb" / part):
        if all((base / name).is_dir() for name in ("neg", "pos")):
            break
    else:
        path = find_file(folder, (f"{part}.tsv", f"aclImdb/{part}/{{neg,pos}}"))
        yield from FORMAT.read(path, bad_rows, shortest=shortest, longest=longest)
        return
    for name, label in (("neg", "0"), ("pos", "1")):
        for path in sorted((base / name).glob("*.txt")):
            try:
                refuse_unless_file(path, LONGEST_LINE)
                text = " ".join(line for _, line in read_lines(path, wrong_bytes="surrogateescape"))
                example = FORMAT.example((label, text.replace("\t", " ")), longest)
            except BeamtreeError as error:
                bad_rows.meet(path, 1, str(error))
                continue
            if example is not None and len(example.sentences[0]) >= shortest:
                yield example


def read_file(path: Path, bad_rows: BadRows | None = None) -> Iterator[Example]:
    """A table with the columns `label` (or `Sentiment`) and `text`."""
    return FORMAT.read(path, bad_rows or BadRows())


TASK = Task(
    name="imdb",
    tokens=(),
    labels=LABELS,
    sentences=1,
    splits={name: file.description for name, file in SPLITS.items()},
    tokenize=lambda text: words_of(_without_line_breaks(text)),
    read=read,
    read_file=read_file,
    words=CountRule(5, ("train", "test")),
    corpora={name: file.corpus for name, file in SPLITS.items()},
    published={
        "contrast": 488,
        "counterfactual": 488,
        "test-long": 25_000,
        "contrast-original": 488,
        "counterfactual-original": 488,
    },
)
