"""A table of results, and how it is written: as Markdown, as HTML and to a terminal."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from beamtree.printable import code, without_links

if TYPE_CHECKING:
    from rich.console import Console

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
    words: Collection[int] = (0,)  # the columns of words, aligned left; the others are figures
    remarks: Sequence[str] = ()  # sentences below it

    @property
    def texts(self) -> list[list[str]]:
        """What the cells say, line by line."""
        return [[cell.text for cell in line.cells] for line in self.lines]

    def to_markdown(self) -> list[str]:
        """The lines of the table alone."""
        heads = [without_links(head).replace("|", "\\|") for head in self.headers]
        rule = ["---" if column in self.words else "---:" for column in range(len(heads))]
        rows = [[_markdown(cell) for cell in line.cells] for line in self.lines]
        return [f"| {' | '.join(row)} |" for row in (heads, rule, *rows)]

    def to_html(self) -> str:
        """A section with title, caption and remarks; the numbers of runs are links to their lines."""
        heads = "".join(f"<th{self._class(i)}>{escape(head)}</th>" for i, head in enumerate(self.headers))
        rows = "\n".join(map(self._html_line, self.lines))
        said = "".join(f"<li>{_with_code(sentence)}</li>" for sentence in self.remarks)
        remarks = f"\n<ul>{said}</ul>" if said else ""
        return (
            f'<h2 id="{escape(self.name)}">{escape(self.title)}</h2>\n<p>{escape(self.caption)}</p>\n'
            f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(self.title)}">'
            f"<table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table></div>{remarks}"
        )

    def _html_line(self, line: Line) -> str:
        anchor = "" if line.run is None else f' id="run-{line.run}"'
        cells = []
        for column, cell in enumerate(line.cells):
            hint = f' title="{escape(cell.hint)}"' if cell.hint else ""
            text = f"<code>{escape(cell.text)}</code>" if cell.code else escape(cell.text)
            if cell.runs:
                text = ", ".join(f'<a href="#run-{number}">{number}</a>' for number in cell.runs)
            cells.append(f"<td{self._class(column, best=cell.best)}{hint}>{text}</td>")
        return f'<tr class="{"published" if line.published else "row"}"{anchor}>{"".join(cells)}</tr>'

    def _class(self, column: int, *, best: bool = False) -> str:
        names = [*(["word"] if column in self.words else []), *(["best"] if best else [])]
        return f' class="{" ".join(names)}"' if names else ""

    def print_to(self, console: "Console") -> None:
        from rich import box
        from rich.table import Table as RichTable

        table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        for column, header in enumerate(self.headers):
            is_word = column in self.words
            table.add_column(header, justify="left" if is_word else "right", no_wrap=is_word)
        for texts in self.texts:
            table.add_row(*texts)
        console.print(f"\n{self.title}", style="bold", highlight=False, markup=False)
        console.print(table)
        for sentence in self.remarks:
            console.print(sentence, highlight=False, markup=False)


def _markdown(cell: Cell) -> str:
    if cell.code:
        return code(cell.text)
    text = re.sub(r"[|*_`]", r"\\\g<0>", without_links(cell.text))
    return f"**{text}**" if cell.best else text


def _with_code(sentence: str) -> str:
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(sentence))
