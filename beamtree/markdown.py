"""Text of strangers in Markdown: it is seen as it is, and is no heading, link, HTML or border of a table."""

import re

from beamtree.printable import printable

_MARKS = re.compile(r"[!-+./:-@\[-^`{-~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")  # but , - and _ in a word
_LINKS = re.compile(r"[\\<]|\]\(|://")


def plain(text: str) -> str:
    """Words: none of their characters means anything."""
    return _MARKS.sub(r"\\\g<0>", printable(text))


def code(text: str) -> str:
    """A name in the type of code, where it has no marks that would end that."""
    text = printable(text)
    if text.strip() != text or not text or re.search(r"[`\\]", text):
        return plain(text)
    return "`" + text.replace("|", r"\|") + "`"


def without_links(text: str) -> str:
    """A sentence of ours that may quote strangers: Markdown, but for links and HTML."""
    return _LINKS.sub(r"\\\g<0>", printable(text))
