"""A table of results, written as Markdown, as HTML or to a terminal, and pages of tables."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

import beamtree
from beamtree.printable import code, html_with_code, printable_lines, without_links

if TYPE_CHECKING:
    from rich.console import Console

NOTHING = "–"


@dataclass(frozen=True)
class TableCell:
    text: str = NOTHING
    best: bool = False
    code: bool = False
    hint: str = ""  # shown on demand, if the format can
    runs: tuple[int, ...] = ()  # the numbers of runs that the text names
    describes: int | None = None  # the run that this line is about, to which those numbers link


Line = Sequence[TableCell | str]


@dataclass(frozen=True)
class Table:
    name: str
    title: str
    caption: str
    headers: Sequence[str]
    lines: Sequence[Line]  # a line without a name has the paper's figures for the line above
    words: Collection[int] = (0,)  # the columns of words, aligned left; the others are figures
    remarks: Sequence[str] = ()  # sentences below the table

    @property
    def rows(self) -> list[list[TableCell]]:
        return [[TableCell(cell) if isinstance(cell, str) else cell for cell in line] for line in self.lines]

    @property
    def texts(self) -> list[list[str]]:
        """The texts of the cells, line by line."""
        return [[cell.text for cell in row] for row in self.rows]

    def to_markdown(self) -> list[str]:
        """The lines of the table, without title, caption and remarks."""
        heads = [without_links(head).replace("|", "\\|") for head in self.headers]
        rule = ["---" if column in self.words else "---:" for column in range(len(heads))]
        rows = [map(_markdown, row) for row in self.rows]
        return [f"| {' | '.join(row)} |" for row in (heads, rule, *rows)]

    def to_html(self) -> str:
        """A section with title, caption and remarks; the numbers of runs are links to their lines."""
        heads = "".join(f"<th{self._class(i)}>{escape(head)}</th>" for i, head in enumerate(self.headers))
        rows = "\n".join(map(self._html_row, self.rows))
        said = "".join(f"<li>{html_with_code(sentence)}</li>" for sentence in self.remarks)
        remarks = f"\n<ul>{said}</ul>" if said else ""
        return (
            f'<h2 id="{escape(self.name)}">{escape(self.title)}</h2>\n<p>{escape(self.caption)}</p>\n'
            f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(self.title)}">'
            f"<table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table></div>{remarks}"
        )

    def _html_row(self, row: Sequence[TableCell]) -> str:
        anchor = "" if row[0].describes is None else f' id="run-{row[0].describes}"'
        kind = "row" if row[0].text else "published"  # the paper's figures have no name of their own
        cells = []
        for column, cell in enumerate(row):
            hint = f' title="{escape(cell.hint)}"' if cell.hint else ""
            text = f"<code>{escape(cell.text)}</code>" if cell.code else escape(cell.text)
            if cell.runs:
                text = ", ".join(f'<a href="#run-{number}">{number}</a>' for number in cell.runs)
            cells.append(f"<td{self._class(column, best=cell.best)}{hint}>{text}</td>")
        return f'<tr class="{kind}"{anchor}>{"".join(cells)}</tr>'

    def _class(self, column: int, *, best: bool = False) -> str:
        names = [*(["word"] if column in self.words else []), *(["best"] if best else [])]
        return f' class="{" ".join(names)}"' if names else ""

    def print_to(self, console: "Console") -> None:
        from rich import box
        from rich.console import Console
        from rich.table import Table as RichTable

        columns = list(zip(self.headers, *self.texts, strict=True))
        wide = sum(max(map(len, column)) + 2 for column in columns)
        is_narrow = wide > console.width  # then heads are wrapped between words, figures never cut
        padding = 0 if is_narrow else 1
        table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, padding=(0, padding))
        for place, column in enumerate(columns):
            if place in self.words:
                table.add_column(column[0], no_wrap=True)
            else:
                longest = max(map(len, " ".join(column).split()))
                table.add_column(column[0], justify="right", width=longest if is_narrow else None)
        for texts in self.texts:
            table.add_row(*texts)
        console.print(f"\n{self.title}", style="bold", highlight=False, markup=False)
        Console(file=console.file, width=max(wide, console.width)).print(table)
        for sentence in self.remarks:
            console.print(sentence, highlight=False, markup=False)


def _markdown(cell: TableCell) -> str:
    if cell.code:
        return code(cell.text)
    text = re.sub(r"[|*_`]", r"\\\g<0>", without_links(cell.text))
    return f"**{text}**" if cell.best else text


_STYLE = """
:root { color-scheme: light dark; --text: #1c1e21; --muted: #6a7078; --page: #ffffff; --line: #dfe2e6;
  --band: #f5f6f8; --best: #0b6e4f; --link: #1f5fbf; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e4e6ea; --muted: #9aa1ab; --page: #15171a; --line: #33373d; --band: #1d2024;
    --best: #5fd3a6; --link: #8ab4f8; }
}
body { margin: 0 auto; padding: 2.5rem 1.5rem; max-width: 88rem; background: var(--page); color: var(--text);
  font: 14px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.7rem; margin: 0 0 .3rem; }
h2 { font-size: 1.15rem; margin: 2.6rem 0 .2rem; }
p { margin: .2rem 0 .8rem; color: var(--muted); max-width: 60rem; }
ul { margin: 0; padding-left: 1.2rem; color: var(--muted); max-width: 60rem; }
a { color: var(--link); text-decoration: none; }
a:hover, a:focus { text-decoration: underline; }
.scroll { margin-bottom: .8rem; overflow-x: auto; border: 1px solid var(--line); border-radius: 8px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .38rem .6rem; text-align: right; white-space: nowrap; }
th { font-weight: 600; background: var(--band); border-bottom: 1px solid var(--line); }
.word { text-align: left; }
tr.row td { border-top: 1px solid var(--line); }
tr.published td { color: var(--muted); padding-top: 0; font-size: .9em; }
tr:target td { background: var(--band); }
td.best { font-weight: 700; }
tr:not(.published) td.best { color: var(--best); }
td[title]:not([title=""]) { cursor: help; }
code { font: .88em ui-monospace, monospace; }
"""


def write_markdown_page(title: str, command: str, notes: Sequence[str], tables: Sequence[Table]) -> str:
    lines = [f"# {title}", "", f"Written by {code(command)} (beamtree {beamtree.__version__})."]
    if notes:
        lines += ["", *notes]
    for table in tables:
        lines += ["", f"## {without_links(table.title)}", "", without_links(table.caption), ""]
        lines += table.to_markdown()
        if table.remarks:
            lines += ["", *(f"- {without_links(sentence)}" for sentence in table.remarks)]
    return "\n".join(lines) + "\n"


def write_html_page(title: str, command: str, notes: Sequence[str], tables: Sequence[Table]) -> str:
    """A page in a single file that needs no others."""
    sections = "\n".join(table.to_html() for table in tables)
    said = "".join(f"<p>{escape(note)}</p>\n" for note in notes)
    page = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{title}</h1>
<p>Written by <code>{escape(command)}</code> (beamtree {beamtree.__version__}).</p>
{said}{sections}
</body>
</html>
"""
    return printable_lines(page)
