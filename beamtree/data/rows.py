"""Rows of labelled text: tables with a header line (tabs, quoted or not; CSV) and JSON lines, one row each.

Whatever is wrong with a row (a column that is missing, a label outside the set, a byte that is not UTF-8, a
control character, no words or too many) is told to `BadRows` with its file and line.
"""

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from beamtree.data.task import BadRows, Example, Tokens
from beamtree.data.tokenizers import MAX_WORDS, words_of
from beamtree.errors import BeamtreeError
from beamtree.files.bounded import parse_json, shown
from beamtree.files.lines import LONGEST_LINE, read_rows

_MOST_COLUMNS = 1_000_000  # a quoted text may hold commas
# Control characters but white space; halves of a character, as JSON can write them and as a byte that is not
# UTF-8 is read.
STRANGE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")

# Line number and the wanted columns, None where one is missing; or why there are no columns.
Row = tuple[int, Sequence[str | None] | str]


@dataclass(frozen=True)
class RowFormat:
    """Where label and sentences stand in a row; each column by the names that releases give it."""

    label: tuple[str, ...]
    sentences: tuple[tuple[str, ...], ...]
    labels: Mapping[str, str] | None  # as written in the files -> the task's; None: any but an empty one
    undecided: tuple[str, ...] = ()  # rows without a gold label: left out, not bad
    prepare: Callable[[str], str] = field(default=lambda text: text)  # a text before it is tokenised
    tokenize: Callable[[str], Tokens] = field(default=words_of)

    def read(
        self,
        path: Path,
        bad_rows: BadRows,
        *,
        shortest: int = 1,
        longest: int = MAX_WORDS,
        quoted: bool = False,
    ) -> Iterator[Example]:
        """The examples of a file whose longest sentence has `shortest` to `longest` words."""
        columns = read_columns(path, (self.label, *self.sentences), quoted=quoted)
        for example in bad_rows.sort_out(path, columns, lambda row: self.example(row, longest)):
            if example is not None and shortest <= max(map(len, example.sentences)):
                yield example

    def example(self, row: Sequence[str | None] | str, longest: int) -> Example | None:
        """The example of a row, None if it is to be left out."""
        names = [names[0] for names in (self.label, *self.sentences)]
        label, *texts = map(str.strip, texts_in(row, names))
        if label in self.undecided:
            return None
        if self.labels is None:
            if not label:
                raise BeamtreeError("the label is empty")
        elif label not in self.labels:
            known = ", ".join(list(self.labels)[:20]) + (", …" if len(self.labels) > 20 else "")
            raise BeamtreeError(f"the label is {shown(label)}, not one of {known}")
        sentences = []
        for text in texts:
            text = self.prepare(text)
            # Every word gives a token at least, so most long texts need not be tokenised to be left out.
            if longest < text.count(" ") + 1 <= MAX_WORDS and len(text.split()) > longest:
                return None
            sentence = self.tokenize(text)
            if len(sentence) > longest:
                return None
            sentences.append(sentence)
        return Example(tuple(sentences), label if self.labels is None else self.labels[label])


def texts_in(row: Sequence[str | None] | str, names: Sequence[str]) -> Sequence[str]:
    """The columns of a row, of which these are the names, if they are all texts."""
    if isinstance(row, str):
        raise BeamtreeError(row)
    texts = []
    for name, value in zip(names, row, strict=True):
        if value is None:
            raise BeamtreeError(f"the column {name!r} is missing or no text")
        refuse_strange_characters(value)
        texts.append(value)
    return texts


def refuse_strange_characters(text: str) -> None:
    """Text from a file may hold no byte that is not UTF-8 and no control character but white space."""
    if text.isprintable():
        return
    strange = [ord(found) for found in STRANGE.findall(text)]
    for number in strange:  # a file in the wrong encoding is told first: the rest may follow from it
        if 0xDC80 <= number <= 0xDCFF:
            raise BeamtreeError(f"the byte 0x{number - 0xDC00:02x} is not UTF-8 text: save the file as UTF-8")
    for number in sorted(strange, key=lambda number: number >= 0xD800):
        kind = "a control character" if number < 0xD800 else "half of a character"
        raise BeamtreeError(f"there is {kind}, U+{number:04X}, in the text")


def column_names(path: Path) -> tuple[str, ...]:
    """The names in a table's first line, in lower case; of JSON lines the keys of the first row."""
    if not _is_json(path):
        return tuple(_names(_open_table(path)[0]))
    _, first = next(read_rows(path, wrong_bytes="surrogateescape"))
    row = parse_json(first, f"{path}, line 1")
    if not isinstance(row, dict):
        raise BeamtreeError(f"{path}, line 1: a JSON object in every line is wanted, found {shown(first)}")
    return tuple(row)


def read_columns(path: Path, columns: Sequence[tuple[str, ...]], *, quoted: bool = False) -> Iterator[Row]:
    """The wanted columns of every row, each by the first of its names that is there."""
    return _json_rows(path, columns) if _is_json(path) else _table_rows(path, columns, quoted)


def _is_json(path: Path) -> bool:
    return bool({".jsonl", ".json"} & set(path.suffixes))


def _open_table(path: Path, quoted: bool = False) -> tuple[list[str], Iterator[tuple[int, list[str] | str]]]:
    """The columns of the first line, and the numbered rows after it, whose columns may be `quoted`."""
    is_csv = ".csv" in path.suffixes
    lines = read_rows(path, wrong_bytes="surrogateescape")
    _, first = next(lines)
    delimiter = "\t"
    if is_csv:  # with semicolons where a decimal comma is usual
        delimiter = ";" if ";" in first and "," not in first else ","
    lines = _bounded(path, chain([(1, first)], lines), delimiter)
    next(lines)  # the names, which are bounded too
    if is_csv or quoted:
        try:
            header = next(csv.reader([first], delimiter=delimiter), [])
        except csv.Error as error:
            raise BeamtreeError(
                f"{path}, line 1: the names of the columns cannot be read ({error}): save it as UTF-8 text "
                "with a line feed at the end of every line"
            ) from None
        return header, _quoted(path, lines, delimiter)
    return first.split(delimiter), ((number, text.split(delimiter)) for number, text in lines)


def _names(header: list[str]) -> list[str]:
    return [name.strip().strip('"').lower() for name in header]


def _bounded(path: Path, lines: Iterable[tuple[int, str]], delimiter: str) -> Iterator[tuple[int, str]]:
    for number, text in lines:
        if text.count(delimiter) > _MOST_COLUMNS:
            raise BeamtreeError(f"{path}, line {number} has more than {_MOST_COLUMNS:,} columns")
        yield number, text


def _table_rows(path: Path, columns: Sequence[tuple[str, ...]], quoted: bool) -> Iterator[Row]:
    header, rows = _open_table(path, quoted)
    names = _names(header)
    places = []
    for wanted in columns:
        place = next((names.index(name) for name in wanted if name in names), None)
        if place is None:
            known = " or ".join(map(repr, wanted))
            raise BeamtreeError(f"{path}, line 1: no column {known}; the header is {shown(header)}")
        places.append(place)
    for line, fields in rows:
        if isinstance(fields, str):
            yield line, fields
        elif any(map(str.strip, fields[len(header) :])):
            yield line, f"there are {len(fields)} columns, but {len(header)} in the first line"
        else:
            yield line, [fields[place] if place < len(fields) else None for place in places]


def _quoted(
    path: Path, lines: Iterator[tuple[int, str]], delimiter: str
) -> Iterator[tuple[int, list[str] | str]]:
    """Rows in which a quoted text may hold tabs and line ends; the number is that of a row's last line."""
    characters = 0  # of the row so far: one whose quotes never end would take in the file

    def of_a_row() -> Iterator[str]:
        nonlocal characters
        for number, text in lines:
            characters += len(text)
            if characters > LONGEST_LINE:
                raise BeamtreeError(
                    f"{path}, line {number}: the row has more than {LONGEST_LINE:,} characters"
                )
            yield text + "\n"

    reader = csv.reader(of_a_row(), delimiter=delimiter)
    while True:
        characters = 0
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield reader.line_num + 1, str(error)
        else:
            yield reader.line_num + 1, row


def _json_rows(path: Path, columns: Sequence[tuple[str, ...]]) -> Iterator[Row]:
    for line, text in read_rows(path, wrong_bytes="surrogateescape"):
        try:
            row = parse_json(text, "the line")
        except BeamtreeError as error:
            yield line, str(error)
            continue
        if not isinstance(row, dict):
            yield line, f"a JSON object is wanted, found {shown(text)}"
            continue
        found = [next((row[name] for name in wanted if name in row), None) for wanted in columns]
        if isinstance(found[0], int):  # the label may be a number, or true or false
            found[0] = json.dumps(found[0])
        yield line, [value if isinstance(value, str) else None for value in found]
