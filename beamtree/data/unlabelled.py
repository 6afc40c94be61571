"""Texts to label, one at a time: rows of a table, with columns found by name, or plain lines."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from beamtree.data.own import find_columns, find_texts, is_table, other_names
from beamtree.data.rows import STRANGE, column_names, read_columns, texts_in
from beamtree.data.task import Task
from beamtree.errors import BeamtreeError, nearest
from beamtree.files.lines import read_lines
from beamtree.printable import printable

_IDS = ("id", "idx", "index")
_ENDS = re.compile(r"[\t\n\r\v\f\x1c-\x1e\x85\u2028\u2029]+")  # ends of columns and lines


@dataclass(frozen=True, slots=True)
class TextRow:
    """A text or a pair of texts, or what is wrong with it."""

    number: int  # its line in the file, from 1
    line: str  # the sentences of a pair have a tab between
    id: str | None = None
    wrong: str = ""  # the error of a bad row

    def __len__(self) -> int:
        return len(self.line) + len(self.id or "")

    def __str__(self) -> str:
        """Return everything except the number, as one string; a plain line is the line itself."""
        return "\0".join((self.line, *(() if self.id is None else (self.id,)), *filter(None, (self.wrong,))))


@dataclass(frozen=True)
class Unlabelled:
    """A file of texts, with the columns to read; without columns every line is a text."""

    path: Path
    texts: tuple[str, ...] = ()
    id: str | None = None

    def read(self) -> Iterator[TextRow]:
        """Yield the rows from the start, with one in memory at a time."""
        if not self.texts:
            yield from (TextRow(number, line) for number, line in read_lines(self.path))
            return
        ids = () if self.id is None else (self.id,)
        for number, row in read_columns(self.path, [(name,) for name in (*ids, *self.texts)]):
            values = [] if isinstance(row, str) else [_in_one_line(value or "") for value in row]
            wrong = ""
            try:
                texts_in(row if isinstance(row, str) else row[len(ids) :], self.texts)
            except BeamtreeError as error:
                wrong = str(error)
            id = None if self.id is None else "".join(values[:1])
            yield TextRow(number, "\t".join(values[len(ids) :]), id, wrong)


def find_rows(
    path: Path, task: Task, *, text: str = "", id: str = "", plain_tables: bool = False
) -> Unlabelled:
    """Return how to read a file for a model of this task: as a table if its name says so, else as plain
    lines.

    `text` and `id` name the columns if they differ from those of training and have no usual name. With
    `plain_tables`, a .tsv without such columns but with the right number of them is read as plain lines.
    """
    chosen = tuple(name.strip() for name in text.split(",")) if text else ()
    if chosen and len(chosen) != task.sentences:
        wanted = "one column" if task.sentences == 1 else "two columns with a comma between"
        raise BeamtreeError(f"--text must name {wanted} for this model, got {text!r}")
    if not is_table(path):
        if text or id:
            raise BeamtreeError(
                f"--{'text' if text else 'id'} names a column, but {path} is read as plain lines: the name "
                "of a table ends in .tsv, .csv or .jsonl"
            )
        return Unlabelled(path)
    present = column_names(path)
    trained = tuple((task.own or {}).get("texts", ()))
    texts = find_columns(present, *([name] for name in chosen) if chosen else map(other_names, trained))
    if not texts and not chosen:
        texts = find_texts(present, task.sentences)
    if not texts:
        if plain_tables and ".tsv" in path.suffixes and not text and len(present) == task.sentences:
            return Unlabelled(path)
        usual = ("text",) if task.sentences == 1 else ("text1", "text2")
        names = chosen or trained or usual
        missing = next((name for name in names if not find_columns(present, (name,))), names[0])
        remedy = "--text NAME chooses it" if task.sentences == 1 else "--text NAME,NAME chooses both"
        if len(present) == 1:
            remedy = (
                "columns are separated by tabs, in a .csv by commas or semicolons; "
                "plain lines belong in a .txt"
            )
        raise BeamtreeError(f"{path}, line 1: no text column {missing!r}{_like(missing, present)}; {remedy}")
    if id and not (found := find_columns(present, (id,))):
        raise BeamtreeError(f"{path}, line 1: no column {id!r} for --id{_like(id, present)}")
    usual_id = next((name for name in present if name.lower() in _IDS and name not in texts), None)
    return Unlabelled(path, texts, found[0] if id else usual_id)


def _like(name: str, present: Sequence[str]) -> str:
    return nearest(name, [printable(other[:80]) for other in present])


def _in_one_line(text: str) -> str:
    """Replace what a column cannot hold, in ways that make no difference to any tokenizer."""
    return STRANGE.sub("\ufffd", _ENDS.sub(" ", text)).strip()
