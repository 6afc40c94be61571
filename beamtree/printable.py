"""Makes untrusted text safe to show in a terminal, an error message, JSON or Markdown.

Control characters, characters that change the direction of writing and the like are escaped. Letters of every
language, combining marks, emoji and the joiners inside them are kept.
"""

import json
import math
import re
from html import escape
from typing import Any

CONTROLS = "\x00-\x1f\x7f-\x9f"  # terminal escape sequences begin with one of these
HALVES = "\ud800-\udfff"  # lone surrogates: UTF-8 cannot encode them
# Line separators, direction controls, interlinear annotations and noncharacters.
_OTHERS = "\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufff9-\ufffb\ufffe\uffff"
_STEERING = re.compile(f"[{CONTROLS}{HALVES}{_OTHERS}]")
_STEERING_IN_JSON = re.compile(f"[\x7f-\x9f{HALVES}{_OTHERS}]")  # json.dumps escapes the other controls
# Characters with a meaning in Markdown; the comma, the hyphen and _ inside a word have none.
_MARKS = re.compile(r"[!-+./:-@\[-^`{-~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_LINKS = re.compile(r"[\\<]|\]\(|://")


def printable(text: str) -> str:
    """Return the text as one printable line; control characters become `\\n`, `\\x1b`, `\\u202e`, …"""
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def printable_lines(text: str) -> str:
    """Return the text with control characters escaped, except for newlines."""
    return "\n".join(map(printable, text.split("\n")))


def write_json(value: Any, **options: Any) -> str:
    """Return a value as printable JSON that every parser accepts: NaN and infinities become null.

    Nothing else is lost, as JSON can escape every character. `options` are passed to `json.dumps`.
    """
    try:
        text = json.dumps(value, allow_nan=False, **options)
    except ValueError:
        text = json.dumps(finite(value), allow_nan=False, **options)
    return _STEERING_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def finite(value: Any) -> Any:
    """Return the value with None in place of NaN and infinities, in nested lists and dicts too."""
    if isinstance(value, dict):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return list(map(finite, value))
    return None if isinstance(value, float) and not math.isfinite(value) else value


def plain(text: str) -> str:
    """Escape text for Markdown, so that it is shown literally."""
    return _MARKS.sub(r"\\\g<0>", printable(text))


def code(text: str) -> str:
    """Format a name as inline code in Markdown, or as escaped text if inline code cannot hold it."""
    text = printable(text)
    if text.strip() != text or not text or re.search(r"[`\\]", text):
        return plain(text)
    return "`" + text.replace("|", r"\|") + "`"


def html_with_code(sentence: str) -> str:
    """Escape a sentence for HTML; what it has between backticks becomes code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(sentence))


def without_links(text: str) -> str:
    """Escape links and HTML in a Markdown sentence that may quote untrusted text; other Markdown is kept."""
    return _LINKS.sub(r"\\\g<0>", printable(text))
