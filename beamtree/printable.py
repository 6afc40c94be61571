"""Text of strangers on its way to a terminal, an error line, JSON or Markdown: what could steer these is
spelt out.

Letters of every language, marks, emoji and the joiners inside them stay as they are.
"""

import json
import math
import re
from typing import Any

CONTROLS = "\x00-\x1f\x7f-\x9f"  # escape sequences begin with one of them
HALVES = "\ud800-\udfff"  # of a character: no file can hold one
# Separators of lines, what turns the direction of writing, annotations, and what is no character.
_OTHERS = "\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufff9-\ufffb\ufffe\uffff"
_STEERING = re.compile(f"[{CONTROLS}{HALVES}{_OTHERS}]")
_STEERING_IN_JSON = re.compile(f"[\x7f-\x9f{HALVES}{_OTHERS}]")  # whose text has no other controls
# Of Markdown; but , - and _ in a word mean nothing.
_MARKS = re.compile(r"[!-+./:-@\[-^`{-~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_LINKS = re.compile(r"[\\<]|\]\(|://")


def printable(text: str) -> str:
    """The text in one line that can be printed: `\\n`, `\\x1b`, `\\u202e` for what would not only be seen."""
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def printable_lines(text: str) -> str:
    """The same for a text of several lines, which stay lines."""
    return "\n".join(map(printable, text.split("\n")))


def write_json(value: Any, **options: Any) -> str:
    """JSON that can be printed and that every reader takes: null for numbers that are not finite.

    Nothing else is lost, as JSON can spell every character. `options` are those of `json.dumps`.
    """
    try:
        text = json.dumps(value, allow_nan=False, **options)
    except ValueError:
        text = json.dumps(finite(value), allow_nan=False, **options)
    return _STEERING_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def finite(value: Any) -> Any:
    """The same lists and tables, with None for numbers that JSON does not have."""
    if isinstance(value, dict):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return list(map(finite, value))
    return None if isinstance(value, float) and not math.isfinite(value) else value


def plain(text: str) -> str:
    """Words in Markdown: none of their characters means anything."""
    return _MARKS.sub(r"\\\g<0>", printable(text))


def code(text: str) -> str:
    """A name in Markdown's type of code, where it has no marks that would end that."""
    text = printable(text)
    if text.strip() != text or not text or re.search(r"[`\\]", text):
        return plain(text)
    return "`" + text.replace("|", r"\|") + "`"


def without_links(text: str) -> str:
    """A sentence of ours that may quote strangers: Markdown, but for links and HTML."""
    return _LINKS.sub(r"\\\g<0>", printable(text))
