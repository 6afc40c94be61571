"""Texts of a formal language as its tokens; a long text is not split before it is known to be one."""

import re
from collections.abc import Iterable, Mapping

from beamtree.data.task import Tokens
from beamtree.errors import UnreadableTextError
from beamtree.files.bounded import shown

_LONG = 1 << 20  # characters, which split() may make thirty times as many bytes of


def known_tokens(text: str, same: Mapping[str, str], says: str, *, dropped: str = "") -> Tokens:
    """What stands between blanks and characters that are `dropped`: one object a token, by the table `same`.

    The first that is unknown is refused; `says` tells what the language has.
    """
    try:
        return tuple(map(same.__getitem__, _words(text, dropped)))
    except KeyError:
        words = enumerate(_words(text, dropped), start=1)
        position, word = next((place, word) for place, word in words if word not in same)
        raise UnreadableTextError(
            f"unknown token {shown(word)} at position {position}; {says}", position - 1
        ) from None


def _words(text: str, dropped: str) -> Iterable[str]:
    if len(text) > _LONG or not text.isascii():
        return (match[0] for match in re.finditer(rf"[^\s{re.escape(dropped)}]+", text))
    for character in dropped:
        text = text.replace(character, " ")
    return text.split()
