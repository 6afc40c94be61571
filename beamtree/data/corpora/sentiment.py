"""SST5 and IMDB: how much was a film liked?"""

import re
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from sys import intern

from beamtree.data.corpora.corpus import Corpus, SplitFile, released
from beamtree.data.rows import RowFormat, refuse_strange_characters
from beamtree.data.task import REFUSE, BadRows, CountRule, Example
from beamtree.data.tokenizers import MAX_WORDS
from beamtree.errors import BeamtreeError
from beamtree.files.bounded import refuse_unless_file, shown
from beamtree.files.lines import LONGEST_LINE, MissingFileError, find_file, read_lines, read_rows

# SST5, the Stanford Sentiment Treebank in five classes: every phrase of a training tree is an example, dev
# and test are whole sentences. A line is one tree, `(3 (2 It) (4 …))`, a label at every node.

GRADES = ("very negative", "negative", "neutral", "positive", "very positive")
_MOST_IN_PHRASES = 1_000_000  # words; the longest tree of the corpus has some hundred
_ESCAPED = {"-lrb-": "(", "-rrb-": ")", "``": '"', "''": '"'}
_LABEL_OF = {str(number): label for number, label in enumerate(GRADES)}
_PARTS = re.compile(r"\(\s*([^\s()]*)|([^\s()]+)|(\))")


def read_trees(path: Path, bad_rows: BadRows) -> Iterator[list[Example]]:
    """The phrases of every tree of a file, the whole sentence last."""
    return bad_rows.sort_out(path, read_rows(path, wrong_bytes="surrogateescape"), phrases_of)


def phrases_of(line: str) -> list[Example]:
    """The phrases of one tree, the whole sentence last."""
    refuse_strange_characters(line)
    words: list[str] = []
    opened: list[tuple[int, str]] = []  # where each open phrase begins, and its label
    found: list[tuple[int, int, str]] = []
    for part in _PARTS.finditer(line):
        label, word, close = part.groups()
        if label is not None:
            if label not in _LABEL_OF:
                raise BeamtreeError(f"the label is {shown(label)}, not one of {', '.join(_LABEL_OF)}")
            if found and not opened:
                raise BeamtreeError("a second tree in the line")
            opened.append((len(words), _LABEL_OF[label]))
        elif not opened:
            raise BeamtreeError(f"unbalanced brackets: {shown(word or close)} stands outside the tree")
        elif word is not None:
            words.append(_unescape(word))
            if len(words) > MAX_WORDS:
                raise BeamtreeError(f"a sentence has more than {MAX_WORDS:,} words")
        else:
            start, label = opened.pop()
            if start == len(words):
                raise BeamtreeError("a phrase has no words")
            found.append((start, len(words), label))
    if opened or not found:
        raise BeamtreeError(f"unbalanced brackets: {len(opened)} never closed" if opened else "no tree")
    if sum(stop - start for start, stop, _ in found) > _MOST_IN_PHRASES:
        raise BeamtreeError(f"the phrases of the tree have more than {_MOST_IN_PHRASES:,} words together")
    return [Example((tuple(words[start:stop]),), label) for start, stop, label in found]


def _unescape(word: str) -> str:
    word = word.lower().replace("\\/", "/").replace("\\*", "*")
    return intern(_ESCAPED.get(word, word))


_TREEBANK = "Stanford Sentiment Treebank (Socher et al. 2013), the trees in Penn format"


class _Treebank(Corpus):
    def read(self, folder: Path, split: str, bad_rows: BadRows = REFUSE) -> Iterator[Example]:
        path = find_file(folder, self.file_of(split).names)
        for phrases in read_trees(path, bad_rows):
            yield from phrases if split == "train" else phrases[-1:]

    def read_file(self, path: Path, bad_rows: BadRows = REFUSE) -> Iterator[Example]:
        """The whole sentences of a file of trees."""
        for phrases in read_trees(path, bad_rows):
            yield phrases[-1]


_TRAIN_TREES = released("train.txt", "trees")
SST5 = _Treebank(
    "sst5",
    GRADES,
    RowFormat(label=("label",), sentences=(("text",),), labels=None),  # of one text; its files are trees
    {
        "train": SplitFile("every phrase of the training trees", _TRAIN_TREES, _TREEBANK, 318_582),
        "train-sentences": SplitFile("the sentences of the training trees", _TRAIN_TREES, _TREEBANK, 8_544),
        "dev": SplitFile("the sentences of the dev trees", released("dev.txt", "trees"), _TREEBANK, 1_101),
        "test": SplitFile("the sentences of the test trees", released("test.txt", "trees"), _TREEBANK, 2_210),
    },
    # A word of one sentence is in all its phrases: to have seen it often takes several sentences.
    CountRule(1, ("train", "dev", "test"), seen_in="train-sentences"),
).task()


# IMDB (Maas et al. 2011): is a film review positive? With its contrast and counterfactual sets. Learnt from
# reviews of up to 200 words; the IID test has the same limit, as in the paper's code.

_ACL_IMDB = "Large Movie Review Dataset v1.0 (Maas et al. 2011), aclImdb"
_CONTRAST = "Contrast Sets, IMDb (Gardner et al. 2020)"
_COUNTERFACTUAL = "Counterfactually Augmented Data, sentiment (Kaushik et al. 2020)"
_TRAIN_REVIEWS = ("train.tsv", "aclImdb/train/{neg,pos}")
_TEST_REVIEWS = ("test.tsv", "aclImdb/test/{neg,pos}")
_DEV_PAIRS = [
    SplitFile("", released(f"dev_{kind}.tsv", "IMDb/data"), _CONTRAST) for kind in ("original", "contrast")
]


def _without_line_breaks(text: str) -> str:
    for mark in ("<br />", "<br>", "</br>", "<br/>"):
        text = text.replace(mark, " ")
    return text


class _Reviews(Corpus):
    def read(self, folder: Path, split: str, bad_rows: BadRows = REFUSE) -> Iterator[Example]:
        """The examples of a split; dev is without the contrast pairs where these are not there."""
        file = self.file_of(split)
        part = file.names[0].removesuffix(".tsv")
        for base in (folder / part, folder / "aclImdb" / part):
            if all((base / name).is_dir() for name in ("neg", "pos")):
                yield from self._read_texts(base, file, bad_rows)
                break
        else:
            yield from self.read_table(folder, file, bad_rows)
        if split == "dev":
            for pairs in _DEV_PAIRS:
                with suppress(MissingFileError):
                    yield from self.read_table(folder, pairs, bad_rows)

    def _read_texts(self, base: Path, file: SplitFile, bad_rows: BadRows) -> Iterator[Example]:
        """The release's folders pos and neg, with a file for each review."""
        for name, label in (("neg", "0"), ("pos", "1")):
            read = partial(self._read_text, label=label, longest=file.longest)
            for path in sorted((base / name).glob("*.txt")):
                for example in bad_rows.sort_out(path, [(1, path)], read):
                    if example is not None and len(example.sentences[0]) >= file.shortest:
                        yield example

    def _read_text(self, path: Path, label: str, longest: int) -> Example | None:
        refuse_unless_file(path, LONGEST_LINE)
        text = " ".join(line for _, line in read_lines(path, wrong_bytes="surrogateescape"))
        return self.format.example((label, text.replace("\t", " ")), longest)


IMDB = _Reviews(
    "imdb",
    ("negative", "positive"),
    RowFormat(
        label=("label", "sentiment"),
        sentences=(("text",),),
        labels={"0": "negative", "1": "positive", "Negative": "negative", "Positive": "positive"},
        prepare=_without_line_breaks,
    ),
    {
        "train": SplitFile("training reviews of up to 200 words", _TRAIN_REVIEWS, _ACL_IMDB, longest=200),
        "dev": SplitFile(
            "training reviews of 201 to 300 words, and the contrast set's dev pairs",
            _TRAIN_REVIEWS,
            _ACL_IMDB,
            shortest=201,
            longest=300,
        ),
        "test": SplitFile("test reviews of up to 200 words (IID)", _TEST_REVIEWS, _ACL_IMDB, longest=200),
        "contrast": SplitFile(
            "reviews edited until their label turned",
            released("test_contrast.tsv", "IMDb/data"),
            _CONTRAST,
            488,
        ),
        "counterfactual": SplitFile(
            "reviews edited counterfactually",
            ("test_counterfactual.tsv", "sentiment/new/test.tsv"),
            _COUNTERFACTUAL,
            488,
        ),
        "test-long": SplitFile(
            "test reviews of any length; not in the paper", _TEST_REVIEWS, _ACL_IMDB, 25_000
        ),
        "contrast-original": SplitFile(
            "the contrast set's reviews before the edit; they are training reviews",
            released("test_original.tsv", "IMDb/data"),
            _CONTRAST,
            488,
        ),
        "counterfactual-original": SplitFile(
            "the counterfactual set's reviews before the edit",
            ("test_original_counterfactual.tsv", "sentiment/orig/test.tsv"),
            _COUNTERFACTUAL,
            488,
        ),
    },
    CountRule(5, ("train", "test")),
).task()
