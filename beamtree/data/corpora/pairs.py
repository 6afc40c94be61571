"""SNLI, MNLI and QQP: what is one sentence to another?"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from beamtree.data.corpora.corpus import Corpus, SplitFile, released
from beamtree.data.rows import RowFormat
from beamtree.data.task import REFUSE, BadRows, CountRule, Example, Tokens
from beamtree.files.lines import MissingFileError, find_file

_SEED = 101  # of the splits that are drawn, as in the paper

# SNLI (Bowman et al. 2015): does a premise entail, contradict or leave open a hypothesis?

_INFERENCE = ("entailment", "neutral", "contradiction")
_INFERENCE_FORMAT = RowFormat(
    label=("label", "gold_label"),
    sentences=(("premise", "sentence1"), ("hypothesis", "sentence2")),
    labels={label: label for label in _INFERENCE},
    undecided=("-",),
)
_INFERENCE_LONGEST = 149  # words in the longest sentence that is learnt from
_SNLI = "SNLI 1.0 (Bowman et al. 2015)"


def _snli(part: str) -> tuple[str, str]:
    return released(f"snli_1.0_{part}.jsonl", "snli_1.0")


SNLI = Corpus(
    "snli",
    _INFERENCE,
    _INFERENCE_FORMAT,
    {
        "train": SplitFile(
            "the training pairs",
            ("train.tsv", *_snli("train"), "train_subset.tsv"),
            _SNLI,
            549_367,
            _INFERENCE_LONGEST,
        ),
        "dev": SplitFile("the dev pairs", ("dev.tsv", *_snli("dev")), _SNLI, 9_842),
        "test": SplitFile("the test pairs (IID)", ("test.tsv", *_snli("test")), _SNLI, 9_824),
        "hard": SplitFile(
            "test pairs that the hypothesis alone does not give away",
            ("test_hard.tsv", *_snli("test_hard")),
            "SNLI 1.0 hard test (Gururangan et al. 2018)",
            3_261,
        ),
        "break": SplitFile(
            "pairs that differ in one word",
            ("test_breaking_nli.tsv", "dataset.jsonl", "data/dataset.jsonl"),
            "Breaking NLI (Glockner et al. 2018)",
            8_193,
        ),
        "counterfactual": SplitFile(
            "pairs edited counterfactually",
            ("test_counterfactual.tsv", "NLI/revised_combined/test.tsv"),
            "Counterfactually Augmented Data, NLI (Kaushik et al. 2020)",
            1_600,
        ),
    },
    CountRule(2, ("train", "dev", "test", "hard")),
).task()


# MNLI (Williams et al. 2018): SNLI's question in many genres, with ConjNLI and stress tests. A part of the
# training file is held out for dev, the dev sets are for testing. Stress tests (Naik et al. 2018) that are
# not there are rebuilt from the dev sets by their published rule.

_MNLI = "MultiNLI 1.0 (Williams et al. 2018)"
_STRESS = "NLI Stress Test (Naik et al. 2018); rebuilt from the dev sets where it is not there"
_NEGATION = ("and", "false", "is", "not", "true")
_TAUTOLOGY = ("and", "true", "is", "true") * 5


class _Genres(Corpus):
    def read(self, folder: Path, split: str, bad_rows: BadRows = REFUSE) -> Iterator[Example]:
        file = self.file_of(split)
        if split in ("train", "dev"):
            examples = list(self.read_table(folder, file, bad_rows))
            order = np.random.RandomState(_SEED).permutation(len(examples))
            held_out = min(10_000, len(examples) // 10)
            yield from (examples[i] for i in (order[:held_out] if split == "dev" else order[held_out:]))
            return
        try:
            yield from self.read_table(folder, file, bad_rows)
        except MissingFileError:
            kind, _, genres = split.partition("-")
            if not genres:
                raise
            for example in self.read_table(folder, self.splits[genres], bad_rows):
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


def _mnli(part: str) -> tuple[str, str]:
    return released(f"multinli_1.0_{part}.jsonl", "multinli_1.0")


def _stress(kind: str, folder: str, description: str) -> dict[str, SplitFile]:
    return {
        f"{kind}-{genres}": SplitFile(
            f"{genres} dev pairs, {description}; rebuilt where the release is not there",
            (file, f"{folder}/{file}", f"Stress Tests/{folder}/{file}"),
            _STRESS,
            count,
        )
        for genres, count in (("matched", 9_815), ("mismatched", 9_832))
        for file in [f"multinli_0.9_{folder.lower()}_{genres}.jsonl"]
    }


_TRAIN_GENRES = ("train.tsv", *_mnli("train"), "train_subset.tsv")
MNLI = _Genres(
    "mnli",
    _INFERENCE,
    _INFERENCE_FORMAT,
    {
        "train": SplitFile(
            "the training pairs but those held out", _TRAIN_GENRES, _MNLI, 382_702, _INFERENCE_LONGEST
        ),
        "dev": SplitFile(
            "10,000 training pairs held out, a tenth of a smaller file",
            _TRAIN_GENRES,
            _MNLI,
            10_000,
            _INFERENCE_LONGEST,
        ),
        "matched": SplitFile(
            "the dev pairs of known genres", ("dev_matched.tsv", *_mnli("dev_matched")), _MNLI, 9_815
        ),
        "mismatched": SplitFile(
            "the dev pairs of other genres", ("dev_mismatched.tsv", *_mnli("dev_mismatched")), _MNLI, 9_832
        ),
        "conjnli": SplitFile(
            "pairs that differ in a conjunction",
            ("dev_conjnli.tsv", *released("conj_dev.tsv", "data/NLI")),
            "ConjNLI dev (Saha et al. 2020)",
            623,
        ),
        **_stress("negation", "Negation", "the hypothesis with `and false is not true`"),
        **_stress("length", "Length_Mismatch", "the premise with `and true is true` five times"),
    },
    CountRule(4, ("train", "matched", "mismatched", "conjnli")),
).task()


# QQP, Quora's question pairs: do two questions ask the same? With PAWS, where the words do not tell. Quora's
# one file is split as in the paper: 5,000 duplicates and 5,000 others for dev, as many for test.

_QUORA = "Quora Question Pairs (Iyer et al. 2017)"
_QUORA_FILE = "quora_duplicate_questions.tsv"
_QUORA_LONGEST = 150  # words; longer questions are left out before the split
_PAWS_WIKI = "PAWS-Wiki labelled, final (Zhang et al. 2019)"


class _Questions(Corpus):
    def read(self, folder: Path, split: str, bad_rows: BadRows = REFUSE) -> Iterator[Example]:
        file = self.file_of(split)
        release = None
        if split in ("train", "dev", "test"):
            with suppress(MissingFileError):
                release = find_file(folder, [_QUORA_FILE])
        if release is None:
            yield from self.read_table(folder, file, bad_rows)
            return
        examples = list(self.format.read(release, bad_rows, longest=_QUORA_LONGEST, quoted=True))
        random = np.random.RandomState(_SEED)
        for label in reversed(self.labels):
            rows = random.permutation([i for i, example in enumerate(examples) if example.label == label])
            n = min(5_000, len(rows) // 10)
            parts = {"dev": rows[:n], "test": rows[n : 2 * n], "train": rows[2 * n :]}
            yield from (examples[i] for i in parts[split])

    def read_file(self, path: Path, bad_rows: BadRows = REFUSE) -> Iterator[Example]:
        """A table with label and two questions, or Quora's own file."""
        return self.format.read(path, bad_rows, quoted=path.name.startswith(_QUORA_FILE))


QQP = _Questions(
    "qqp",
    ("different", "duplicate"),
    RowFormat(
        label=("label", "is_duplicate"),
        sentences=(("question1", "sentence1"), ("question2", "sentence2")),
        labels={"0": "different", "1": "duplicate"},
    ),
    {
        "train": SplitFile(
            "the pairs that are not held out",
            ("train.tsv", "train_subset.tsv"),
            _QUORA,
            384_290,
            _QUORA_LONGEST,
        ),
        "dev": SplitFile("5,000 duplicates and 5,000 others", ("dev.tsv",), _QUORA, 10_000, _QUORA_LONGEST),
        "test": SplitFile(
            "another 5,000 duplicates and 5,000 others (IID)", ("test.tsv",), _QUORA, 10_000, _QUORA_LONGEST
        ),
        "paws-qqp": SplitFile(
            "questions with the same words, dev and test",
            ("test_paws_qqp.tsv", "paws_qqp/dev_and_test.tsv", "dev_and_test.tsv"),
            "PAWS-QQP (Zhang et al. 2019), made from Quora's file by their script",
            677,
        ),
        "paws-wiki": SplitFile(
            "Wikipedia sentences with the same words, test",
            ("test_paws_wiki.tsv", "final/test.tsv", "paws_wiki/test.tsv"),
            _PAWS_WIKI,
            8_000,
        ),
        "paws-wiki-dev": SplitFile(
            "Wikipedia sentences with the same words, dev; not in the paper",
            ("dev_paws_wiki.tsv", "final/dev.tsv", "paws_wiki/dev.tsv"),
            _PAWS_WIKI,
            8_000,
        ),
    },
    CountRule(6, ("train", "dev", "test", "paws-qqp", "paws-wiki")),
).task()
