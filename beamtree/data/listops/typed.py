"""ListOps as people type it: `MAX(2, 9, min(4,7))`, `(max 2 9)`, `[MAX 2 9]`, with commas and without blanks.

Files are read strictly (`language.split_tokens`); this is for a text that somebody wrote by hand.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

_PIECE = re.compile(r"[^\s\[\](),]+|[\[\]()]")  # blanks and commas only part what stands around them
_OPENS = {"MIN": "[MIN", "MAX": "[MAX", "MED": "[MED", "SM": "[SM"}


class Word(NamedTuple):
    """A token, or what stands where one should, and its place in the text."""

    token: str
    start: int
    end: int


def find_words(text: str) -> list[Word]:
    """The tokens of a text with those that are unknown; round brackets that mean nothing are left out.

    A round bracket means something around or behind a bare name: `(max 2 9)`, `MAX(2, 9)`. Elsewhere they are
    the published files' second brackets, `( ( ( [MAX 2 ) 9 ) ] )`.
    """
    return list(_words([(match[0], *match.span()) for match in _PIECE.finditer(text)]))


def _words(pieces: list[tuple[str, int, int]]) -> Iterator[Word]:
    closes: list[bool] = []  # of each open round bracket: whether its end is the end of a list
    at = 0
    while at < len(pieces):
        piece, start, end = pieces[at]
        following, next_start, next_end = pieces[at + 1] if at + 1 < len(pieces) else ("", -1, -1)
        at += 1
        if piece in "[(" and following.upper() in _OPENS:
            if piece == "(":
                closes.append(True)
            at += 1
            yield Word(_OPENS[following.upper()], start, next_end)
        elif piece.upper() in _OPENS and following == "(":
            closes.append(True)
            at += 1
            yield Word(_OPENS[piece.upper()], start, next_end)
        elif piece == "(":
            closes.append(False)
        elif piece == ")":
            if closes and closes.pop():
                yield Word("]", start, end)
        elif piece == "[" and next_start == end and following not in "[]()":
            at += 1
            yield Word(piece + following, start, next_end)  # one unknown name
        else:
            yield Word(piece, start, end)
