"""SST5, IMDB, SNLI, MNLI and QQP, read from the files of their releases as `corpora.toml` describes them.

A corpus that needs more than the table has a class of its own.
"""

import re
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from sys import intern

import numpy as np

from beamtree.data.rows import RowFormat, refuse_strange_characters
from beamtree.data.task import REFUSE, BadRows, CountRule, Example, Task, Tokens, require_split
from beamtree.data.tokenizers import MAX_WORDS
from beamtree.errors import BeamtreeError
from beamtree.files.bounded import refuse_unless_file, shown
from beamtree.files.lines import LONGEST_LINE, MissingFileError, find_file, read_lines, read_rows

_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_SEED = 101  # for splits that are drawn, as in the paper


@dataclass(frozen=True)
class SplitFile:
    """A split: the names its file may have, the release it comes from, and the sentence lengths to keep."""

    description: str
    files: list[str]
    release: str
    published: int | None = None  # number of examples in the paper's corpus
    longest: int = MAX_WORDS
    shortest: int = 1
    also: tuple[list[str], ...] = ()  # the names of further files, read if they exist


class Corpus:
    """A corpus whose splits are tables or JSON lines."""

    def __init__(self, name: str) -> None:
        table = _TABLE[name]
        self.name = name
        self.labels = table["labels"]
        label, *texts = map(tuple, table["columns"])
        self.format = RowFormat(label, tuple(texts), self.labels, tuple(table.get("undecided", ())))
        release = {"release": table["release"]}
        self.splits = {name: SplitFile(**release | split) for name, split in table["splits"].items()}

    def read(self, folder: Path, split: str, bad_rows: BadRows = REFUSE) -> Iterator[Example]:
        """Yield the examples of a split."""
        return self.read_table(folder, self.find_split(split), bad_rows)

    def read_file(self, path: Path, bad_rows: BadRows = REFUSE) -> Iterator[Example]:
        """Yield the examples of a table or JSON lines with the columns of the format."""
        return self.format.read(path, bad_rows)

    def find_split(self, split: str) -> SplitFile:
        """Return the split of that name."""
        return require_split(self.name, split, self.splits)

    def read_table(self, folder: Path, file: SplitFile, bad_rows: BadRows) -> Iterator[Example]:
        """Yield the examples of a split that is one table or file of JSON lines."""
        path = find_file(folder, file.files)
        return self.format.read(path, bad_rows, shortest=file.shortest, longest=file.longest)

    def task(self) -> Task:
        """Return the corpus as a task."""
        words = _TABLE[self.name]["words"]
        return Task(
            name=self.name,
            tokens=(),
            labels=tuple(dict.fromkeys(self.labels.values())),
            sentences=len(self.format.sentences),
            splits={name: file.description for name, file in self.splits.items()},
            tokenize=lambda text: self.format.tokenize(self.format.prepare(text)),
            read=self.read,
            read_file=self.read_file,
            words=CountRule(**words | {"counted": tuple(words["counted"])}),
            corpora={name: file.release for name, file in self.splits.items()},
            published={name: file.published for name, file in self.splits.items() if file.published},
        )


class _Treebank(Corpus):
    """A line is one tree, `(3 (2 It) (4 …))`, with a label at every node."""

    def read(self, folder: Path, split: str, bad_rows: BadRows = REFUSE) -> Iterator[Example]:
        for phrases in self._read_trees(find_file(folder, self.find_split(split).files), bad_rows):
            yield from phrases if split == "train" else phrases[-1:]

    def read_file(self, path: Path, bad_rows: BadRows = REFUSE) -> Iterator[Example]:
        """Yield the whole sentences of a file of trees."""
        for phrases in self._read_trees(path, bad_rows):
            yield phrases[-1]

    def _read_trees(self, path: Path, bad_rows: BadRows) -> Iterator[list[Example]]:
        return bad_rows.sort_out(path, read_rows(path, wrong_bytes="surrogateescape"), phrases_of)


_GRADES: dict[str, str] = _TABLE["sst5"]["labels"]
_MOST_IN_PHRASES = 1_000_000  # words; the longest tree of the corpus has some hundreds
_ESCAPED = {"-lrb-": "(", "-rrb-": ")", "``": '"', "''": '"'}
_PARTS = re.compile(r"\(\s*([^\s()]*)|([^\s()]+)|(\))")


def phrases_of(line: str) -> list[Example]:
    """Return the phrases of one tree, the whole sentence last."""
    refuse_strange_characters(line)
    words: list[str] = []
    opened: list[tuple[int, str]] = []  # where each open phrase begins, and its label
    found: list[tuple[int, int, str]] = []
    for part in _PARTS.finditer(line):
        label, word, close = part.groups()
        if label is not None:
            if label not in _GRADES:
                raise BeamtreeError(f"the label is {shown(label)}, not one of {', '.join(_GRADES)}")
            if found and not opened:
                raise BeamtreeError("a second tree in the line")
            opened.append((len(words), _GRADES[label]))
        elif not opened:
            raise BeamtreeError(f"unbalanced brackets: {shown(word or close)} is outside the tree")
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
        raise BeamtreeError(f"the phrases of the tree have more than {_MOST_IN_PHRASES:,} words in all")
    return [Example((tuple(words[start:stop]),), label) for start, stop, label in found]


def _unescape(word: str) -> str:
    word = word.lower().replace("\\/", "/").replace("\\*", "*")
    return intern(_ESCAPED.get(word, word))


class _Reviews(Corpus):
    """Tables, or the release's folders pos and neg with a file for each review."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        line_break = re.compile("<br(?: /|/)?>|</br>")
        self.format = replace(self.format, prepare=partial(line_break.sub, " "))

    def read(self, folder: Path, split: str, bad_rows: BadRows = REFUSE) -> Iterator[Example]:
        file = self.find_split(split)
        part = file.files[0].removesuffix(".tsv")
        for base in (folder / part, folder / "aclImdb" / part):
            if all((base / name).is_dir() for name in ("neg", "pos")):
                yield from self._read_texts(base, file, bad_rows)
                break
        else:
            yield from self.read_table(folder, file, bad_rows)
        for names in file.also:
            with suppress(MissingFileError):
                yield from self.read_table(folder, SplitFile("", names, ""), bad_rows)

    def _read_texts(self, base: Path, file: SplitFile, bad_rows: BadRows) -> Iterator[Example]:
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


_NEGATION = ("and", "false", "is", "not", "true")
_TAUTOLOGY = ("and", "true", "is", "true") * 5


class _Genres(Corpus):
    """Part of the training file is held out for dev.

    Stress tests (Naik et al. 2018) without a file are rebuilt from the dev sets by their published rule.
    """

    def read(self, folder: Path, split: str, bad_rows: BadRows = REFUSE) -> Iterator[Example]:
        file = self.find_split(split)
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
                    hypothesis = _add_before_stop(hypothesis, _NEGATION)
                else:
                    premise = _add_before_stop(premise, _TAUTOLOGY)
                yield Example((premise, hypothesis), example.label)


def _add_before_stop(sentence: Tokens, words: Tokens) -> Tokens:
    """Append words to a sentence, before its closing `.`, `!` or `?` if it has one."""
    end = len(sentence) - (sentence[-1] in (".", "!", "?"))
    return (*sentence[:end], *words, *sentence[end:])


_QUORA_FILE = "quora_duplicate_questions.tsv"


class _Questions(Corpus):
    """Quora's single file is split: 5,000 duplicates and 5,000 others for dev, as many for test, the rest for
    training, after questions too long for training are left out."""

    def read(self, folder: Path, split: str, bad_rows: BadRows = REFUSE) -> Iterator[Example]:
        file = self.find_split(split)
        release = None
        if split in ("train", "dev", "test"):
            with suppress(MissingFileError):
                release = find_file(folder, [_QUORA_FILE])
        if release is None:
            yield from self.read_table(folder, file, bad_rows)
            return
        examples = list(self.format.read(release, bad_rows, longest=file.longest, quoted=True))
        random = np.random.RandomState(_SEED)
        for label in ("duplicate", "different"):
            rows = random.permutation([i for i, example in enumerate(examples) if example.label == label])
            n = min(5_000, len(rows) // 10)
            parts = {"dev": rows[:n], "test": rows[n : 2 * n], "train": rows[2 * n :]}
            yield from (examples[i] for i in parts[split])

    def read_file(self, path: Path, bad_rows: BadRows = REFUSE) -> Iterator[Example]:
        """Yield the examples of a table with a label and two questions, or of Quora's own file."""
        return self.format.read(path, bad_rows, quoted=path.name.startswith(_QUORA_FILE))


SST5 = _Treebank("sst5").task()
IMDB = _Reviews("imdb").task()
SNLI = Corpus("snli").task()
MNLI = _Genres("mnli").task()
QQP = _Questions("qqp").task()
