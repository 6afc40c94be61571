"""A report as Markdown, in short and in full, and as one HTML page that needs nothing else and is in full."""

import re
from collections.abc import Sequence
from html import escape

import beamtree
from beamtree.paper.report.build import Report
from beamtree.paper.report.layout import Cell, Line, Table
from beamtree.printable import code, printable_lines, without_links

TITLE = "Results"

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


BESIDE_THE_PAPER = (
    "Accuracy in % on the test splits: the median (ListOps) or mean of our seeds, after a slash the worst of "
    "several, in brackets the paper's figure; rows with the paper's settings that have figures. "
)
IN_FULL = (
    "[In full]({full}): deviations, other settings and splits, trees against gold, every run with its "
    "commands, what missing rows would take."
)


def to_short_markdown(report: Report, command: str, full: str) -> str:
    """What most readers look for; `full` is where the rest stands."""
    from_paper = any(table.name.endswith("-short") for table in report.short)
    said = (BESIDE_THE_PAPER if from_paper else "") + IN_FULL.format(full=full)
    return _markdown_page(report.short, [said], TITLE, command)


def to_markdown(report: Report, command: str, title: str = TITLE) -> str:
    notes = [f"- {without_links(note)}" for note in report.notes]
    return _markdown_page(report.tables, notes, title, command)


def _markdown_page(tables: Sequence[Table], notes: Sequence[str], title: str, command: str) -> str:
    lines = [f"# {title}", "", f"Written by {code(command)} (beamtree {beamtree.__version__})."]
    if notes:
        lines += ["", *notes]
    for table in tables:
        lines += ["", f"## {without_links(table.title)}", "", without_links(table.caption), ""]
        lines += _markdown_table(table)
        if table.remarks:
            lines += ["", *(f"- {without_links(sentence)}" for sentence in table.remarks)]
    return "\n".join(lines) + "\n"


def _markdown_table(table: Table) -> list[str]:
    rule = ["---" if i < table.words else "---:" for i in range(len(table.headers))]
    rows = [[_markdown(cell) for cell in line.cells] for line in table.lines]
    heads = [without_links(head).replace("|", "\\|") for head in table.headers]
    return [f"| {' | '.join(row)} |" for row in (heads, rule, *rows)]


def _markdown(cell: Cell) -> str:
    if cell.code:
        return code(cell.text)
    text = _words(cell.text)
    return f"**{text}**" if cell.best else text


def _words(text: str) -> str:
    return re.sub(r"[|*_`]", r"\\\g<0>", without_links(text))


def to_html(report: Report, command: str) -> str:
    sections = "\n".join(_section(table) for table in report.tables)
    notes = "".join(f"<p>{escape(note)}</p>\n" for note in report.notes)
    page = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{TITLE}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{TITLE}</h1>
<p>Written by <code>{escape(command)}</code> (beamtree {beamtree.__version__}).</p>
{notes}{sections}
</body>
</html>
"""
    return printable_lines(page)


def _section(table: Table) -> str:
    heads = "".join(f"<th{_align(table, i)}>{escape(head)}</th>" for i, head in enumerate(table.headers))
    rows = "\n".join(_row(table, line) for line in table.lines)
    said = "".join(f"<li>{_with_code(one)}</li>" for one in table.remarks)
    remarks = f"\n<ul>{said}</ul>" if said else ""
    return (
        f'<h2 id="{escape(table.name)}">{escape(table.title)}</h2>\n<p>{escape(table.caption)}</p>\n'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}">'
        f"<table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table></div>{remarks}"
    )


def _with_code(sentence: str) -> str:
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(sentence))


def _row(table: Table, line: Line) -> str:
    anchor = "" if line.run is None else f' id="run-{line.run}"'
    cells = "".join(_cell(cell, _align(table, i, best=cell.best)) for i, cell in enumerate(line.cells))
    return f'<tr class="{"published" if line.published else "row"}"{anchor}>{cells}</tr>'


def _cell(cell: Cell, attributes: str) -> str:
    hint = f' title="{escape(cell.hint)}"' if cell.hint else ""
    if cell.runs:
        text = ", ".join(f'<a href="#run-{number}">{number}</a>' for number in cell.runs)
    else:
        text = f"<code>{escape(cell.text)}</code>" if cell.code else escape(cell.text)
    return f"<td{attributes}{hint}>{text}</td>"


def _align(table: Table, column: int, *, best: bool = False) -> str:
    names = [name for name, there in (("word", column < table.words), ("best", best)) if there]
    return f' class="{" ".join(names)}"' if names else ""
