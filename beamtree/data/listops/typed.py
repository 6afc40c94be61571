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


def find_words(text: str) -> Iterator[Word]:
    """The tokens of a text with those that are unknown; round brackets that mean nothing are left out.

    A round bracket means something around or behind a bare name: `(max 2 9)`, `MAX(2, 9)`. Elsewhere they are
    the published files' second brackets, `( ( ( [MAX 2 ) 9 ) ] )`. Found one by one: a line may be long.
    """
    closes: list[bool] = []  # of each open round bracket: whether its end is the end of a list
    pieces = _PIECE.finditer(text)
    match = next(pieces, None)
    while match is not None:
        piece, (start, end), after = match[0], match.span(), next(pieces, None)
        following = "" if after is None else after[0]
        both: str | None = None  # a token that this piece and the following one are together
        if piece in "[(" and following.upper() in _OPENS:
            both = _OPENS[following.upper()]
            if piece == "(":
                closes.append(True)
        elif piece.upper() in _OPENS and following == "(":
            both = _OPENS[piece.upper()]
            closes.append(True)
        elif piece == "(":
            closes.append(False)
        elif piece == ")":
            if closes and closes.pop():
                yield Word("]", start, end)
        elif piece == "[" and after is not None and after.start() == end and following not in "[]()":
            both = piece + following  # one unknown name
        else:
            yield Word(piece, start, end)
        if both is not None and after is not None:
            yield Word(both, start, after.end())
            after = next(pieces, None)
        match = after
