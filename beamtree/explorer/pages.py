"""The pages: the explorer's files for a server, read once; the explorer as a single file with its views
inside, which needs no server; and a page that describes the API.

The page's modules import each other with lines `import { … } from "./name.js";`, and no two declare the same
name. So bundling only means concatenating them without imports and `export`.
"""

import base64
import hashlib
import json
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
from beamtree.printable import html_with_code, printable, write_json

PAGE = Path(__file__).resolve().parent / "page"
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+\.js)";\n', re.MULTILINE)
# Parts of index.html that are replaced in the single file.
_STYLE = '<link rel="stylesheet" href="static/style.css">'
_SCRIPT = '<script type="module" src="static/app.js"></script>'
_ICON = '<link rel="icon" href="static/icon.svg" type="image/svg+xml">'
_BODY = "<body>"
_END = "</body>\n</html>"


class Asset(NamedTuple):
    kind: str
    content: bytes


def read_assets(folder: Path = PAGE) -> dict[str, Asset]:
    """Read the files of known kinds in a folder, by path, so that no request touches the disk."""
    return {
        path.relative_to(folder).as_posix(): Asset(_KINDS[path.suffix], path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.suffix in _KINDS and path.is_file()
    }


@dataclass(frozen=True)
class Viewed:
    """A line that was read, and its view."""

    line: int  # from 1
    text: str
    view: dict[str, Any]


def view_lines(
    model: Classifier, lines: Iterable[str | TextRow], *, name: str, max_length: int = MAX_LENGTH
) -> Iterator[Viewed | Unparsed]:
    """Yield one record for each line, in order. The sentences of a pair are separated by a tab."""
    for row in numbered(lines):
        try:
            read_sentences(model.task, row, max_length)
            yield Viewed(row.number, row.line, make_view(model, row.line.split("\t"), name=name))
        except BeamtreeError as error:
            yield Unparsed(row.number, row.line, str(error))


def write_page(
    records: Iterable[Viewed | Unparsed], title: str, *, opens_story: bool = False
) -> Iterator[str]:
    """Yield the page in pieces: everything before the records, each record, the script.

    With `opens_story`, the search of the first record plays by itself until the page is touched.
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
        page = page.replace(wanted, inlined, 1)
    yield page.rstrip("\n")
    for record in records:
        yield _write_record(record)
    yield f'<script type="module">{script}</script>\n{_END}'


def bundle_modules(folder: Path) -> str:
    """app.js and everything it imports as one script, each module after those it imports."""
    placed: dict[str, str] = {}

    def place(name: str) -> None:
        if name in placed:
            return
        placed[name] = ""  # ends cycles of imports
        source = (folder / name).read_text(encoding="utf-8")
        for needed in _IMPORT.findall(source):
            place(needed)
        del placed[name]
        placed[name] = re.sub(r"^export ", "", _IMPORT.sub("", source), flags=re.MULTILINE)

    place("app.js")
    return "\n".join(placed.values())


def _write_record(record: Viewed | Unparsed) -> str:
    facts = {"line": str(record.line), "text": record.text.replace("\t", "  ·  ")}
    if isinstance(record, Unparsed):
        content: dict[str, Any] = {"error": {"message": f"Line {record.line}: {record.reason}"}}
    else:
        content, said = record.view, record.view["prediction"]
        facts |= {"label": said["label"], "probability": str(said["probability"])}
    attributes = " ".join(f'data-{key}="{escape(printable(value))}"' for key, value in facts.items())
    # Only `<` could end a script element early.
    data = write_json(content, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" class="record" {attributes}>{data}</script>'


def _digest(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


def write_api_page(document: dict[str, Any], errors: Iterable[Any]) -> str:
    """Describe the API for people, from its OpenAPI document: one plain page that loads nothing else."""
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(document['info']['title'])}</title>",
            '<link rel="stylesheet" href="static/api.css">\n</head>\n<body>\n<main>',
            f"<h1>{escape(document['info']['title'])}</h1>",
            f"<p>{escape(document['info']['description'])}</p>",
            '<p><a href="/">The explorer</a> · <a href="/openapi.json">the same as OpenAPI JSON</a></p>',
            *(
                line
                for address, methods in document["paths"].items()
                for method, operation in methods.items()
                for line in _operation(address, method, operation)
            ),
            "<h2>Errors</h2>",
            "<p>Every error is JSON: <code>{&quot;error&quot;: {status, code, message, where}}</code>.</p>",
            *_table(
                ("status", "code", "when"),
                [(str(e.status), f"<code>{e.code}</code>", html_with_code(e.when)) for e in errors],
            ),
            "<h2>Schemas</h2>",
            *(
                line
                for name, schema in sorted(document["components"]["schemas"].items())
                for line in _schema(name, schema)
            ),
            "</main>\n</body>\n</html>",
        ]
    )


def _operation(address: str, method: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"<h2><code>{method.upper()} {escape(address)}</code></h2>"
    yield f"<p>{escape(operation.get('description', operation['summary']))}</p>"
    for parameter in operation.get("parameters", ()):
        needed = "" if parameter["required"] else " (optional)"
        description = escape(parameter.get("description", ""))
        yield f"<p>Parameter <code>{escape(parameter['name'])}</code>{needed}: {description}</p>"
    if "requestBody" in operation:
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        yield f"<p>Body: {_kind(schema)}</p>"
    rows = []
    for status, answer in operation["responses"].items():
        content = answer.get("content", {}).get("application/json", {}).get("schema", {})
        rows.append((status, _kind(content), html_with_code(answer["description"])))
    yield from _table(("status", "answer", "when"), rows)


def _schema(name: str, schema: dict[str, Any]) -> Iterator[str]:
    yield f'<h3 id="{escape(name)}"><code>{escape(name)}</code></h3>'
    if "description" in schema:
        yield f"<p>{escape(schema['description'])}</p>"
    required = schema.get("required", ())
    rows = [
        (
            f"<code>{escape(field)}</code>",
            _kind(kind) + ("" if field in required else ", optional"),
            html_with_code(kind.get("description", "")),
        )
        for field, kind in schema.get("properties", {}).items()
    ]
    yield from _table(("field", "type", "meaning"), rows)


def _kind(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = escape(schema["$ref"].rsplit("/", 1)[-1])
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(_kind(one) for one in schema["anyOf"])
    if schema.get("type") == "array" and "items" in schema:
        return f"list of {_kind(schema['items'])}"
    if "enum" in schema:
        return " or ".join(f"<code>{escape(json.dumps(value))}</code>" for value in schema["enum"])
    return escape(str(schema.get("type", "anything")))


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Write a table. Its cells are HTML."""
    yield "<table>\n<tr>" + "".join(f"<th>{head}</th>" for head in heads) + "</tr>"
    for row in rows:
        yield "<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>"
    yield "</table>"
