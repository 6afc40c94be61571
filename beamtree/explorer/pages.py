"""The page: its files for a server, read once, and as one file that needs no server, all of it and the views
inlined.

The page's modules import each other by lines `import { … } from "./name.js";` and no two declare the same
name, so putting one after the other, imports and `export` left out, is all the bundling there is.
"""

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from beamtree.classifier.classifier import Classifier
from beamtree.classifier.parsing import MAX_LENGTH, Unparsed, numbered, read_sentences
from beamtree.data.unlabelled import TextRow
from beamtree.errors import BeamtreeError
from beamtree.explorer.view import make_view
from beamtree.printable import printable, write_json

PAGE = Path(__file__).resolve().parent / "page"
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+\.js)";\n', re.MULTILINE)
_STYLE = '<link rel="stylesheet" href="static/style.css">'
_SCRIPT = '<script type="module" src="static/app.js"></script>'
_ICON = '<link rel="icon" href="static/icon.svg" type="image/svg+xml">'
_BODY = "<body>"
_END = "</body>\n</html>"


class Asset(NamedTuple):
    kind: str
    content: bytes


def read_assets(folder: Path = PAGE) -> dict[str, Asset]:
    """The files of a folder by their paths in it, of known kinds only: no request touches the disk."""
    return {
        path.relative_to(folder).as_posix(): Asset(_KINDS[path.suffix], path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.suffix in _KINDS and path.is_file()
    }


@dataclass(frozen=True)
class Viewed:
    """A line that was read, and all there is to see of it."""

    line: int  # from 1
    text: str
    view: dict[str, Any]


def view_lines(
    model: Classifier, lines: Iterable[str | TextRow], *, name: str, max_length: int = MAX_LENGTH
) -> Iterator[Viewed | Unparsed]:
    """One record for each line, in order; the sentences of a pair stand in one line with a tab between."""
    for number, line in enumerate(lines, start=1):
        (row,) = numbered([line], number)
        try:
            read_sentences(model.task, row, max_length)
            yield Viewed(row.number, row.line, make_view(model, row.line.split("\t"), name=name))
        except BeamtreeError as error:
            yield Unparsed(row.number, row.line, str(error))


def write_page(
    records: Iterable[Viewed | Unparsed], title: str, *, opens_story: bool = False
) -> Iterator[str]:
    """The page piece by piece: what comes before the records, each of them, the script.

    With `opens_story` the first record's search plays by itself until somebody touches the page.
    """
    style = (PAGE / "style.css").read_text(encoding="utf-8")
    script = bundle_modules(PAGE)
    sources = "default-src 'none'; img-src data: blob:; "
    sources += f"script-src '{_digest(script)}'; style-src '{_digest(style)}'"
    icon = base64.b64encode((PAGE / "icon.svg").read_bytes()).decode()
    page = (PAGE / "index.html").read_text(encoding="utf-8")
    for wanted, inlined in (
        (_STYLE, f'<meta http-equiv="Content-Security-Policy" content="{sources}">\n<style>{style}</style>'),
        (_ICON, f'<link rel="icon" href="data:image/svg+xml;base64,{icon}">'),
        (_SCRIPT, ""),
        (_BODY, '<body data-opens="story">' if opens_story else _BODY),
        ("<title>beamtree explorer</title>", f"<title>{escape(printable(title))}</title>"),
        (_END, ""),
    ):
        head, found, tail = page.partition(wanted)
        if not found:
            raise ValueError(f"index.html must contain {wanted}")
        page = head + inlined + tail
    yield page.rstrip("\n")
    for record in records:
        yield _write_record(record)
    yield f'<script type="module">{script}</script>\n{_END}'


def bundle_modules(folder: Path, entry: str = "app.js") -> str:
    """The entry module and all it imports as one script, each after those it needs."""
    placed: dict[str, str] = {}

    def place(name: str) -> None:
        if name in placed:
            return
        placed[name] = ""  # so that a circle of imports ends
        source = (folder / name).read_text(encoding="utf-8")
        for needed in _IMPORT.findall(source):
            place(needed)
        del placed[name]
        placed[name] = re.sub(r"^export ", "", _IMPORT.sub("", source), flags=re.MULTILINE)

    place(entry)
    return "\n".join(placed.values())


def _write_record(record: Viewed | Unparsed) -> str:
    facts = {"line": str(record.line), "text": record.text}
    if isinstance(record, Unparsed):
        content: dict[str, Any] = {"error": {"message": f"Line {record.line}: {record.reason}"}}
    else:
        content, said = record.view, record.view["prediction"]
        facts |= {"label": said["label"], "probability": str(said["probability"])}
    attributes = " ".join(f'data-{key}="{escape(printable(value))}"' for key, value in facts.items())
    # Within a script element only `<` could end it early.
    data = write_json(content, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" class="record" {attributes}>{data}</script>'


def _digest(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
