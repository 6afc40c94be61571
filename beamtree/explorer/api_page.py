"""The API described for people: one plain page made from the OpenAPI document, nothing from elsewhere."""

import json
import re
from collections.abc import Iterable, Iterator
from html import escape
from typing import Any

from beamtree.explorer.api import DOCUMENTED

STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { max-width: 60rem; margin: 0 auto; padding: 1.5rem }
h2 code, h3 code { font-size: 1em }
table { border-collapse: collapse; display: block; overflow-x: auto }
th, td { text-align: left; vertical-align: top; padding: 0.2rem 1rem 0.2rem 0; border-top: 1px solid #8884 }
pre { overflow-x: auto; padding: 0.75rem; border: 1px solid #8884 }
code, pre { font: 0.9rem ui-monospace, monospace }
"""
STYLE_ADDRESS = "/api/page.css"


def write_api_page(document: dict[str, Any]) -> str:
    """HTML for an OpenAPI document."""
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(document['info']['title'])}</title>",
            f'<link rel="stylesheet" href="{STYLE_ADDRESS}">\n</head>\n<body>\n<main>',
            f"<h1>{escape(document['info']['title'])}</h1>",
            f"<p>{escape(document['info']['description'])}</p>",
            '<p><a href="/">The explorer</a> · <a href="/openapi.json">this page as OpenAPI JSON</a></p>',
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
                [(str(e.status), f"<code>{e.code}</code>", _prose(e.when)) for e in DOCUMENTED],
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
        needed = "" if parameter["required"] else " (may be left out)"
        description = escape(parameter.get("description", ""))
        yield f"<p>Parameter <code>{escape(parameter['name'])}</code>{needed}: {description}</p>"
    if "requestBody" in operation:
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        yield f"<p>Body: {_kind(schema)}</p>"
    rows = []
    for status, answer in operation["responses"].items():
        content = answer.get("content", {}).get("application/json", {}).get("schema", {})
        rows.append((status, _kind(content), _prose(answer["description"])))
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
            _prose(kind.get("description", "")),
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


def _prose(text: str) -> str:
    return re.sub(r"`(.+?)`", r"<code>\1</code>", escape(text))


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Cells are HTML."""
    yield "<table>\n<tr>" + "".join(f"<th>{head}</th>" for head in heads) + "</tr>"
    for row in rows:
        yield "<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>"
    yield "</table>"
