"""Data of your own: tables or JSON lines with a label and one or two texts; `docs/own.md` says how to use it.

The data is a folder with a file for each of the splits train, dev and test, or a single file. Labels are
those of the training rows; without a dev file, one training row in ten is held out.
"""

import math
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from beamtree.data.rows import RowFormat, column_names, read_columns
from beamtree.data.task import REFUSE, BadRows, CountRule, Example, Task, require_split
from beamtree.data.tokenizers import MAX_WORDS, TOKENIZERS
from beamtree.errors import BeamtreeError, nearest
from beamtree.files.bounded import shown
from beamtree.files.lines import COMPRESSIONS, MissingFileError, find_file
from beamtree.printable import CONTROLS, HALVES

NAME = "own"
MOST_LABELS = 1000
_LONGEST_LABEL = 1000  # characters
_UNFIT = re.compile(f"[{CONTROLS}{HALVES}]")  # in a label, which is printed in lines and columns
_DEV_EVERY = 10
# Usual names of columns, which users need not name; the first that is there is taken.
_LABEL = ("label", "sentiment", "class", "target")
_TEXT = ("text", "sentence", "review")
_PAIR = (("text1", "sentence1", "premise", "question1"), ("text2", "sentence2", "hypothesis", "question2"))
_KINDS = (".tsv", ".csv", ".jsonl")
_FILES = {"train": ("train",), "dev": ("dev", "valid", "validation", "val"), "test": ("test",)}
SPLITS = {
    "train": "train.tsv, .csv or .jsonl",
    "dev": "dev.tsv, .csv or .jsonl, or one in ten training rows",
    "test": "test.tsv, .csv or .jsonl",
}


@dataclass(frozen=True)
class OwnFormat:
    """The columns of label and texts, the tokenizer, and the labels."""

    label: str = "label"
    texts: tuple[str, ...] = ("text",)
    tokenizer: str = "words"
    labels: tuple[str, ...] = ()  # empty: any label is allowed
    longest: int = MAX_WORDS  # tokens; longer rows of train and dev are left out

    @property
    def rows(self) -> RowFormat:
        labels = {label: label for label in self.labels} or None
        texts = tuple(map(other_names, self.texts))
        return RowFormat(other_names(self.label), texts, labels, tokenize=TOKENIZERS[self.tokenizer])

    def read_file(self, path: Path, bad_rows: BadRows = REFUSE) -> Iterator[Example]:
        return self.rows.read(path, bad_rows)

    def read(self, folder: Path, split: str, bad_rows: BadRows = REFUSE) -> Iterator[Example]:
        require_split("your own data", split, SPLITS)
        path = split_file(folder, split)
        if split == "test":
            yield from self.read_file(path, bad_rows)
            return
        examples = self.rows.read(path, bad_rows, longest=self.longest)
        if _dev_file(folder) is not None:
            yield from examples
            return
        rows = list(examples)  # one file for train and dev
        held_out = _held_out([example.label for example in rows])
        for number, example in enumerate(rows, start=1):
            if (number in held_out) == (split == "dev"):
                yield example

    def task(self) -> Task:
        return Task(
            name=NAME,
            tokens=(),
            labels=self.labels,
            sentences=len(self.texts),
            splits=SPLITS,
            tokenize=TOKENIZERS[self.tokenizer],
            read=self.read,
            read_file=self.read_file,
            # Words seen once share the vector of the unknown word, so that it is learnt too.
            words=CountRule(2, ("train", "dev", "test")),
            own={"label": self.label, "texts": list(self.texts), "tokenizer": self.tokenizer},
        )


def is_table(path: Path) -> bool:
    """Return whether the name is that of a table or JSON lines, compressed or not."""
    return any(path.name.endswith(kind + packed) for kind in (*_KINDS, ".json") for packed in COMPRESSIONS)


def _is_held_out(number: int) -> bool:
    """Return whether a row is for dev: one in ten, not always in the same place, as labels may take turns."""
    ten, place = divmod(number - 1, _DEV_EVERY)
    return zlib.crc32(b"%d" % ten) % _DEV_EVERY == place


def _held_out(labels: Sequence[str]) -> set[int]:
    """Return the numbers of the rows that are for dev, from 1: one in ten.

    A label of two or more rows that are all on one side gives its first row to the other.
    """
    numbers: dict[str, list[int]] = {}
    for number, label in enumerate(labels, start=1):
        numbers.setdefault(label, []).append(number)
    held_out = set(filter(_is_held_out, range(1, len(labels) + 1)))
    for rows in numbers.values() if held_out else ():
        if len(rows) > 1 and len({number in held_out for number in rows}) == 1:
            held_out ^= {rows[0]}
    return held_out


def split_file(folder: Path, split: str) -> Path:
    """Return the file of a split; without a dev file, dev has the training file."""
    if folder.is_file():
        if split == "test":
            raise MissingFileError(f"{folder} is a single file, used for training: there is no split 'test'")
        return folder
    if split == "dev":
        return _dev_file(folder) or split_file(folder, "train")
    return find_file(folder, [name + kind for name in _FILES[split] for kind in _KINDS])


def _dev_file(folder: Path) -> Path | None:
    try:
        return find_file(folder, [name + kind for name in _FILES["dev"] for kind in _KINDS])
    except BeamtreeError:
        return None


def other_names(name: str) -> tuple[str, ...]:
    """Return a column's name, then others that a file may have instead: usual names are interchangeable."""
    same = next((names for names in (_LABEL, _TEXT, *_PAIR) if name.lower() in names), ())
    return tuple(dict.fromkeys((name, name.lower(), *same)))


def find_columns(present: Sequence[str], *wanted: Sequence[str]) -> tuple[str, ...]:
    """Return each column under the first of its names in a file, as spelt there; () if one is missing."""
    spelt = {name.lower(): name for name in reversed(present)} | {name: name for name in present}
    found = []
    for names in wanted:
        columns = filter(None, (spelt.get(name) or spelt.get(name.lower()) for name in names))
        found.append(next(columns, ""))
    return tuple(found) if all(found) else ()


def find_texts(present: Sequence[str], sentences: int | None = None) -> tuple[str, ...]:
    """Return the text columns of a file, by their usual names: two, one, or none.

    `sentences` is how many a model reads; None allows one or two.
    """
    kinds = [wanted for wanted in (_PAIR, (_TEXT,)) if sentences in (None, len(wanted))]
    return next(filter(None, (find_columns(present, *wanted) for wanted in kinds)), ())


def own_task(
    folder: Path, *, label: str = "label", text: str = "", tokenizer: str = "words", longest: int = MAX_WORDS
) -> Task:
    """Return the task of a user's folder or file, with the labels of its training rows.

    `text` names the column of the text, or both columns of a pair with a comma between.
    """
    if not folder.exists():
        raise BeamtreeError(
            f"there is no file or folder {folder}: --data takes a table, or a folder with train.tsv; its "
            "first line is `label⇥text`, or `label⇥text1⇥text2` for pairs"
        )
    path = split_file(folder, "train")
    present = column_names(path)
    if label == _LABEL[0]:  # the default: the user chose none
        (label,) = find_columns(present, _LABEL) or (label,)
    if label not in present and label.lower() not in present:
        _refuse_columns(path, _LABEL if label == _LABEL[0] else (label,), present, "label")
    texts = tuple(name.strip() for name in text.split(",")) if text else find_texts(present)
    if not texts:
        _refuse_columns(path, _TEXT, present, "text")
    for name in texts:
        if name not in present and name.lower() not in present:
            _refuse_columns(path, (name,), present, "text")
    if len(texts) > 2 or len({*texts, label}) != len(texts) + 1:
        raise BeamtreeError(f"task.own.text must name one or two columns other than the label, got {text!r}")
    form = OwnFormat(label, texts, tokenizer, longest=longest)
    return replace(form, labels=_find_labels(path, form)).task()


def restore(labels: list[Any], saved: Any) -> Task:
    """Return the task that a model's config describes."""
    match saved:
        case {"label": str(label), "texts": [*texts], "tokenizer": str(tokenizer)} if (
            tokenizer in TOKENIZERS
            and 1 <= len(texts) <= 2
            and all(isinstance(name, str) for name in (*texts, *labels))
            and all(map(_is_fit, labels))
            and 2 <= len(set(labels)) == len(labels) <= MOST_LABELS
        ):
            return OwnFormat(label, tuple(texts), tokenizer, tuple(labels)).task()
    raise BeamtreeError(
        "own must have label, texts (one or two) and tokenizer, and labels must be distinct texts of one "
        f"line, got {shown(saved)}"
    )


def _refuse_columns(path: Path, wanted: Sequence[str], present: tuple[str, ...], setting: str) -> NoReturn:
    """Raise for a column that is missing under all of its names."""
    if any("\x00" in name for name in present):
        remedy = "save it as UTF-8 text"
    elif len(present) == 1:
        remedy = "columns are separated by tabs, in a .csv by commas or semicolons"
    else:
        remedy = f"--set task.own.{setting}=NAME chooses another"
    others = f" (or {', '.join(wanted[1:])})" if wanted[1:] else ""
    pair = ", nor 'text1' and 'text2' for pairs" if wanted == _TEXT else ""
    hints = (nearest(name, present) for name in wanted if len(present) > 1)
    hint = next((hint for hint in hints if "did you mean" in hint), "")
    raise BeamtreeError(
        f"{path}, line 1: there is no column {wanted[0]!r}{others}{pair}; the columns are "
        f"{', '.join(name[:80] for name in present[:20])}{', …' if present[20:] else ''}{hint}; {remedy}"
    )


def _find_labels(path: Path, form: OwnFormat) -> tuple[str, ...]:
    found: dict[str, None] = {}
    bad = ""  # the first row that cannot be read
    for rows, (line, row) in enumerate(read_columns(path, [form.rows.label]), start=1):
        if isinstance(row, str):
            bad = bad or f"line {line} cannot be read: {row}"
        label = "" if isinstance(row, str) else (row[0] or "").strip()
        if label and _is_fit(label):  # rows with other labels are bad
            found[label] = None
        if len(found) > MOST_LABELS:
            raise BeamtreeError(
                f"{path}: the column {form.label!r} has {len(found):,} different values in {rows:,} rows; "
                f"at most {MOST_LABELS:,} labels are allowed: --set task.own.label=NAME chooses another"
            )
    if len(found) < 2:
        raise BeamtreeError(
            f"{path}: at least two labels are needed, found {', '.join(found) or 'none'}{bad and f'; {bad}'}"
        )
    return tuple(sorted(found, key=_natural))


def _is_fit(label: str) -> bool:
    """Return whether a label can be printed in a line, next to others."""
    return len(label) <= _LONGEST_LABEL and not _UNFIT.search(label)


def _natural(label: str) -> tuple[float, str]:
    """Return a sort key: numbers first, by size, then the rest alphabetically."""
    try:
        number = float(label)
    except ValueError:
        number = math.inf
    return number if math.isfinite(number) else math.inf, label


TASK = OwnFormat().task()
