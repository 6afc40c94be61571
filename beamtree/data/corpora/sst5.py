"""SST5, the Stanford Sentiment Treebank in five classes: every phrase of a training tree is an example.

A line is one tree, `(3 (2 It) (4 …))`, a label at every node; dev and test are whole sentences.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from sys import intern

from beamtree.data.bad_rows import BadRows
from beamtree.data.corpora.split_files import SplitFile, require_split
from beamtree.data.rows import MAX_WORDS, refuse_strange_characters, words_of
from beamtree.data.task import CountRule, Example, Task
from beamtree.errors import BeamtreeError
from beamtree.files.bounded import shown
from beamtree.files.lines import find_file, read_rows

LABELS = ("very negative", "negative", "neutral", "positive", "very positive")
_CORPUS = "Stanford Sentiment Treebank (Socher et al. 2013), the trees in Penn format"
_MOST_IN_PHRASES = 1_000_000  # words; the longest tree of the corpus has some hundred
_ESCAPED = {"-lrb-": "(", "-rrb-": ")", "``": '"', "''": '"'}
_LABEL_OF = {str(number): label for number, label in enumerate(LABELS)}
_PARTS = re.compile(r"\(\s*([^\s()]*)|([^\s()]+)|(\))")

_TRAIN = ("train.txt", "trees/train.txt")
SPLITS = {
    "train": SplitFile("every phrase of the training trees", _TRAIN, _CORPUS),
    "train-sentences": SplitFile("the sentences of the training trees", _TRAIN, _CORPUS),
    "dev": SplitFile("the sentences of the dev trees", ("dev.txt", "trees/dev.txt"), _CORPUS),
    "test": SplitFile("the sentences of the test trees", ("test.txt", "trees/test.txt"), _CORPUS),
}


def phrases_of(line: str) -> list[Example]:
    """The phrases of one tree, the whole sentence last."""
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


def read_file(path: Path, bad_rows: BadRows | None = None) -> Iterator[Example]:
    """The whole sentences of a file of trees."""
    for phrases in _trees(path, bad_rows or BadRows()):
        yield phrases[-1]


def read(folder: Path, split: str, bad_rows: BadRows | None = None) -> Iterator[Example]:
    path = find_file(folder, require_split("sst5", SPLITS, split).names)
    if split != "train":
        yield from read_file(path, bad_rows)
        return
    for phrases in _trees(path, bad_rows or BadRows()):
        yield from phrases


def _trees(path: Path, bad_rows: BadRows) -> Iterator[list[Example]]:
    for number, line in read_rows(path, wrong_bytes="surrogateescape"):
        try:
            refuse_strange_characters(line)
            phrases = phrases_of(line)
        except BeamtreeError as error:
            bad_rows.meet(path, number, str(error))
        else:
            yield phrases


TASK = Task(
    name="sst5",
    tokens=(),
    labels=LABELS,
    sentences=1,
    splits={name: file.description for name, file in SPLITS.items()},
    tokenize=words_of,
    read=read,
    read_file=read_file,
    # A word of one sentence is in all its phrases: to have seen it often takes several sentences.
    words=CountRule(1, ("train", "dev", "test"), seen_in="train-sentences"),
    corpora={name: file.corpus for name, file in SPLITS.items()},
    published={"train": 318_582, "train-sentences": 8_544, "dev": 1_101, "test": 2_210},
)
