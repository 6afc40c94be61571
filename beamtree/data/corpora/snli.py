"""SNLI (Bowman et al. 2015): does a premise entail, contradict or leave open a hypothesis?"""

from collections.abc import Iterator
from pathlib import Path

from beamtree.data.bad_rows import BadRows
from beamtree.data.corpora.split_files import SplitFile, read_split, require_split
from beamtree.data.rows import RowFormat, words_of
from beamtree.data.task import CountRule, Example, Task

LABELS = ("entailment", "neutral", "contradiction")
TRAINED = 149  # words in the longest sentence that is learnt from
FORMAT = RowFormat(
    label=("label", "gold_label"),
    sentences=(("premise", "sentence1"), ("hypothesis", "sentence2")),
    labels={label: label for label in LABELS},
    undecided=("-",),
)
_SNLI = "SNLI 1.0 (Bowman et al. 2015)"


def _release(part: str) -> tuple[str, ...]:
    name = f"snli_1.0_{part}.jsonl"
    return name, f"snli_1.0/{name}"


SPLITS = {
    "train": SplitFile(
        "the training pairs", ("train.tsv", *_release("train"), "train_subset.tsv"), _SNLI, TRAINED
    ),
    "dev": SplitFile("the dev pairs", ("dev.tsv", *_release("dev")), _SNLI),
    "test": SplitFile("the test pairs (IID)", ("test.tsv", *_release("test")), _SNLI),
    "hard": SplitFile(
        "test pairs that the hypothesis alone does not give away",
        ("test_hard.tsv", *_release("test_hard")),
        "SNLI 1.0 hard test (Gururangan et al. 2018)",
    ),
    "break": SplitFile(
        "pairs that differ in one word",
        ("test_breaking_nli.tsv", "dataset.jsonl", "data/dataset.jsonl"),
        "Breaking NLI (Glockner et al. 2018)",
    ),
    "counterfactual": SplitFile(
        "pairs edited counterfactually",
        ("test_counterfactual.tsv", "NLI/revised_combined/test.tsv"),
        "Counterfactually Augmented Data, NLI (Kaushik et al. 2020)",
    ),
}


def read(folder: Path, split: str, bad_rows: BadRows | None = None) -> Iterator[Example]:
    return read_split(FORMAT, require_split("snli", SPLITS, split), folder, bad_rows)


def read_file(path: Path, bad_rows: BadRows | None = None) -> Iterator[Example]:
    """A table or JSON lines with label, premise and hypothesis."""
    return FORMAT.read(path, bad_rows or BadRows())


TASK = Task(
    name="snli",
    tokens=(),
    labels=LABELS,
    sentences=2,
    splits={name: file.description for name, file in SPLITS.items()},
    tokenize=words_of,
    read=read,
    read_file=read_file,
    words=CountRule(2, ("train", "dev", "test", "hard")),
    corpora={name: file.corpus for name, file in SPLITS.items()},
    published={
        "train": 549_367,
        "dev": 9_842,
        "test": 9_824,
        "hard": 3_261,
        "break": 8_193,
        "counterfactual": 1_600,
    },
)
