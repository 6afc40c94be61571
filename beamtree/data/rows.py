"""Rows of labelled text: tables with a header line (tab-separated, quoted or not; CSV) and JSON lines.

Whatever is wrong with a row (a missing column, an unknown label, a byte that is not UTF-8, a control
character, no words or too many) goes to `BadRows` with file and line.

The sentences of errors that `texts_in` raises and `read_columns` yields are part of the checksum of a
`predict` job's input (`TextRow`): if they change, an interrupted job with bad rows no longer resumes.
"""

import csv
import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from beamtree.data.task import BadRows, Example, Tokens
from beamtree.data.tokenizers import MAX_WORDS, words_of
from beamtree.errors import BeamtreeError
from beamtree.files.bounded import parse_json, shown
from beamtree.files.lines import LONGEST_LINE, read_rows
from beamtree.printable import HALVES

_MOST_COLUMNS = 1_000_000  # a quoted text may hold commas
_MOST_LINES = 1 << 17  # of a row; they are in memory
_MOST_READ_AGAIN = 4 * LONGEST_LINE  # characters; otherwise time could grow with the square of the lines
_MISPLACED = 'a quotation mark is not closed, or one inside a quoted text is not doubled ("")'
_CONTROLS = "\x00-\x08\x0b\x0c\x0e-\x1f\x7f"  # all but white space
STRANGE = re.compile(f"[{_CONTROLS}{HALVES}]")

# Line number and the wanted columns, None where one is missing; or what is wrong with the row.
Row = tuple[int, Sequence[str | None] | str]


@dataclass(frozen=True)
class RowFormat:
    """Which columns of a row are the label and the sentences; a column has a name for each release."""

    label: tuple[str, ...]
    sentences: tuple[tuple[str, ...], ...]
    labels: Mapping[str, str] | None  # label in the file -> the task's label; None: any that is not empty
    undecided: tuple[str, ...] = ()  # labels of rows without a gold label: left out, not bad
    prepare: Callable[[str], str] = field(default=lambda text: text)  # called before tokenising
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
        """Yield the examples of a file whose longest sentence has `shortest` to `longest` words."""
        columns = read_columns(path, (self.label, *self.sentences), quoted=quoted)
        for example in bad_rows.sort_out(path, columns, lambda row: self.example(row, longest)):
            if example is not None and shortest <= max(map(len, example.sentences)):
                yield example

    def example(self, row: Sequence[str | None] | str, longest: int) -> Example | None:
        """Return the example of a row, or None to leave it out."""
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
            # Every word gives at least one token, so most long texts are left out without tokenising them.
            if longest < text.count(" ") + 1 <= MAX_WORDS and len(text.split()) > longest:
                return None
            sentence = self.tokenize(text)
            if len(sentence) > longest:
                return None
            sentences.append(sentence)
        return Example(tuple(sentences), label if self.labels is None else self.labels[label])


def texts_in(row: Sequence[str | None] | str, names: Sequence[str]) -> Sequence[str]:
    """Return the columns of a row; one that is not a text is an error, which gives its name from `names`."""
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
    """Raise for a byte that is not UTF-8, a control character other than white space, or a lone surrogate."""
    if text.isprintable():
        return
    # Bytes that "surrogateescape" let through come first, as the other faults may follow from a wrong
    # encoding.
    if byte := re.search("[\udc80-\udcff]", text):
        number = ord(byte[0]) - 0xDC00
        raise BeamtreeError(f"the byte 0x{number:02x} is not UTF-8 text: save the file as UTF-8")
    for kind, strange in ("a control character", _CONTROLS), ("half of a character", HALVES):
        if found := re.search(f"[{strange}]", text):
            raise BeamtreeError(f"there is {kind}, U+{ord(found[0]):04X}, in the text")


def column_names(path: Path) -> tuple[str, ...]:
    """Return the names in a table's first line, in lower case, or the keys of the first JSON line."""
    if not _is_json(path):
        return tuple(_names(_open_table(path)[0]))
    _, first = next(read_rows(path, wrong_bytes="surrogateescape"))
    row = parse_json(first, f"{path}, line 1")
    if not isinstance(row, dict):
        raise BeamtreeError(f"{path}, line 1: every line must be a JSON object, found {shown(first)}")
    return tuple(row)


def read_columns(path: Path, columns: Sequence[tuple[str, ...]], *, quoted: bool = False) -> Iterator[Row]:
    """Yield the wanted columns of every row; a column goes by the first of its names that is there."""
    return _json_rows(path, columns) if _is_json(path) else _table_rows(path, columns, quoted)


def _is_json(path: Path) -> bool:
    return bool({".jsonl", ".json"} & set(path.suffixes))


def _open_table(path: Path, quoted: bool = False) -> tuple[list[str], Iterator[tuple[int, list[str] | str]]]:
    """Return the header and an iterator over the numbered rows, whose columns may be `quoted`."""
    is_csv = ".csv" in path.suffixes
    lines = read_rows(path, wrong_bytes="surrogateescape")
    _, first = next(lines)
    delimiter = "\t"
    if is_csv:  # semicolons where a decimal comma is usual
        delimiter = ";" if ";" in first and "," not in first else ","
    lines = _bounded(path, chain([(1, first)], lines), delimiter)
    next(lines)  # the header, checked like the other lines
    if is_csv or quoted:
        try:
            header = next(csv.reader([first], delimiter=delimiter), [])
        except csv.Error as error:
            raise BeamtreeError(
                f"{path}, line 1: the column names cannot be read ({error}): save the file as UTF-8 text "
                "with a line feed at the end of every line"
            ) from None
        return header, _quoted(path, lines, delimiter, strict=is_csv)
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
    path: Path, lines: Iterator[tuple[int, str]], delimiter: str, strict: bool
) -> Iterator[tuple[int, list[str] | str]]:
    """Yield rows with the number of their last line; their quoted texts may hold delimiters and line ends.

    If `strict`, a quotation mark in the wrong place, such as one that is never closed, makes a bad row of the
    line where the row begins; the lines that it swallowed are read again as rows of their own.
    """
    taken: list[tuple[int, str]] = []  # the lines of the present row
    again: deque[tuple[int, str]] = deque()
    read_again = 0  # characters

    def texts() -> Iterator[str]:
        characters = 0
        while line := again.popleft() if again else next(lines, None):
            characters = len(line[1]) + (characters if taken else 0)
            taken.append(line)
            if characters > LONGEST_LINE or len(taken) > _MOST_LINES:
                raise BeamtreeError(
                    f"{path}, line {taken[0][0]}: the row has more than {LONGEST_LINE:,} characters or "
                    f"{_MOST_LINES:,} lines; is a quotation mark not closed?"
                )
            yield line[1] + "\n"

    while True:
        try:
            for row in csv.reader(texts(), delimiter=delimiter, strict=strict):
                yield taken[-1][0], row
                taken.clear()
            return
        except csv.Error as error:
            (number, _), *swallowed = taken
            taken.clear()
            again.extendleft(reversed(swallowed))
            read_again += sum(len(text) for _, text in swallowed)
            if read_again > _MOST_READ_AGAIN:
                raise BeamtreeError(
                    f"{path}, line {number}: too many rows have quotation marks in wrong places: check "
                    "the file"
                ) from None
            misplaced = swallowed or "expected after" in str(error) or "unexpected end" in str(error)
            yield number, _MISPLACED if misplaced else str(error)


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
        if isinstance(found[0], int):  # a label may be a number, or true or false
            found[0] = json.dumps(found[0])
        yield line, [value if isinstance(value, str) else None for value in found]
