"""A table before it is Markdown or HTML: cells of text that know whether they are best, code or runs."""

from collections.abc import Sequence
from dataclasses import dataclass

NOTHING = "–"


@dataclass(frozen=True)
class Cell:
    text: str = NOTHING
    best: bool = False
    code: bool = False
    hint: str = ""  # shown on demand where the format can
    runs: tuple[int, ...] = ()  # the numbers of runs that the text names


@dataclass(frozen=True)
class Line:
    cells: Sequence[Cell]
    published: bool = False  # the paper's figures, not ours
    run: int | None = None  # the run that this line describes


@dataclass(frozen=True)
class Table:
    name: str
    title: str
    caption: str
    headers: Sequence[str]
    lines: Sequence[Line]
    words: int = 1  # columns of words, aligned left; figures follow
    remarks: Sequence[str] = ()  # sentences below it
