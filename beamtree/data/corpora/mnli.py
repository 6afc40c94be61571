"""MNLI (Williams et al. 2018): SNLI's question in many genres, with ConjNLI and stress tests.

A part of the training file is held out for dev, the dev sets are for testing. Stress tests (Naik et al. 2018)
that are not there are rebuilt from the dev sets by their published rule.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from beamtree.data.bad_rows import BadRows
from beamtree.data.corpora.snli import FORMAT, TRAINED
from beamtree.data.corpora.snli import TASK as SNLI
from beamtree.data.corpora.split_files import SplitFile, read_split, require_split
from beamtree.data.task import CountRule, Example, Tokens
from beamtree.files.lines import MissingFileError

_MNLI = "MultiNLI 1.0 (Williams et al. 2018)"
_STRESS = "NLI Stress Test (Naik et al. 2018); rebuilt from the dev sets where it is not there"
_HELD_OUT = 10_000  # for dev; of a small training file a tenth
_SEED = 101
_NEGATION = ("and", "false", "is", "not", "true")
_TAUTOLOGY = ("and", "true", "is", "true") * 5


def _release(part: str) -> tuple[str, ...]:
    name = f"multinli_1.0_{part}.jsonl"
    return name, f"multinli_1.0/{name}"


def _stress(kind: str, description: str) -> dict[str, SplitFile]:
    folder = "Length_Mismatch" if kind == "length" else "Negation"
    stem = f"multinli_0.9_{folder.lower()}_"
    return {
        f"{kind}-{genres}": SplitFile(
            f"{genres} dev pairs, {description}; rebuilt where the release is not there",
            (
                f"{stem}{genres}.jsonl",
                f"{folder}/{stem}{genres}.jsonl",
                f"Stress Tests/{folder}/{stem}{genres}.jsonl",
            ),
            _STRESS,
        )
        for genres in ("matched", "mismatched")
    }


_TRAIN = ("train.tsv", *_release("train"), "train_subset.tsv")
SPLITS = {
    "train": SplitFile("the training pairs but those held out", _TRAIN, _MNLI, TRAINED),
    "dev": SplitFile("10,000 training pairs held out, a tenth of a smaller file", _TRAIN, _MNLI, TRAINED),
    "matched": SplitFile(
        "the dev pairs of known genres", ("dev_matched.tsv", *_release("dev_matched")), _MNLI
    ),
    "mismatched": SplitFile(
        "the dev pairs of other genres", ("dev_mismatched.tsv", *_release("dev_mismatched")), _MNLI
    ),
    "conjnli": SplitFile(
        "pairs that differ in a conjunction",
        ("dev_conjnli.tsv", "conj_dev.tsv", "data/NLI/conj_dev.tsv"),
        "ConjNLI dev (Saha et al. 2020)",
    ),
    **_stress("negation", "the hypothesis with `and false is not true`"),
    **_stress("length", "the premise with `and true is true` five times"),
}


def read(folder: Path, split: str, bad_rows: BadRows | None = None) -> Iterator[Example]:
    file = require_split("mnli", SPLITS, split)
    if split in ("train", "dev"):
        examples = list(read_split(FORMAT, file, folder, bad_rows))
        order = np.random.RandomState(_SEED).permutation(len(examples))
        held_out = min(_HELD_OUT, len(examples) // 10)
        yield from (examples[i] for i in (order[:held_out] if split == "dev" else order[held_out:]))
        return
    try:
        yield from read_split(FORMAT, file, folder, bad_rows)
    except MissingFileError:
        kind, _, genres = split.partition("-")
        if not genres:
            raise
        for example in read_split(FORMAT, SPLITS[genres], folder, bad_rows):
            premise, hypothesis = example.sentences
            if kind == "negation":
                hypothesis = add_before_stop(hypothesis, _NEGATION)
            else:
                premise = add_before_stop(premise, _TAUTOLOGY)
            yield Example((premise, hypothesis), example.label)


def add_before_stop(sentence: Tokens, words: Tokens) -> Tokens:
    """The words at the end, before the sentence's closing `.`, `!` or `?` where it has one."""
    end = len(sentence) - (sentence[-1] in (".", "!", "?"))
    return (*sentence[:end], *words, *sentence[end:])


TASK = replace(
    SNLI,
    name="mnli",
    splits={name: file.description for name, file in SPLITS.items()},
    read=read,
    words=CountRule(4, ("train", "matched", "mismatched", "conjnli")),
    corpora={name: file.corpus for name, file in SPLITS.items()},
    published={
        "train": 382_702,
        "dev": 10_000,
        **{f"{prefix}matched": 9_815 for prefix in ("", "negation-", "length-")},
        **{f"{prefix}mismatched": 9_832 for prefix in ("", "negation-", "length-")},
        "conjnli": 623,
    },
)
