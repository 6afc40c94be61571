"""What the formal languages share: texts as known tokens, gold trees and nesting by their brackets."""

import re
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence

from beamtree.data.task import Range, Tokens
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
        return known_words(_words(text, dropped), same, says)


def known_words(words: Iterable[str], same: Mapping[str, str], says: str) -> Tokens:
    """The same of words that are parted already."""
    tokens = []
    for position, word in enumerate(words, start=1):
        if word not in same:
            raise UnreadableTextError(
                f"unknown token {shown(word)} at position {position}; {says}", position - 1
            )
        tokens.append(same[word])
    return tuple(tokens)


def _words(text: str, dropped: str) -> Iterable[str]:
    if len(text) > _LONG or not text.isascii():
        return (match[0] for match in re.finditer(rf"[^\s{re.escape(dropped)}]+", text))
    for character in dropped:
        text = text.replace(character, " ")
    return text.split()


def merges_by_brackets(tokens: Sequence[str], openers: Collection[str], closer: str) -> list[int]:
    """The n−1 merges of the tree that balanced brackets mean, leftmost first, as positions in the shrinking
    sequence.

    What stands left of the next token is always a row of open items: any other token merges into the last of
    them, and a closer makes it a whole, which merges into the one before.
    """
    merges: list[int] = []
    opened = 0
    for token in tokens:
        if token in openers:
            opened += 1
        elif opened:
            merges.append(opened - 1)
            if token == closer:
                opened -= 1
                if opened:
                    merges.append(opened - 1)
    return merges


def bracketed_spans(tokens: Sequence[str], openers: Collection[str], closer: str) -> list[Range]:
    """From each bracket to behind the one that closes it, inner ones first."""
    spans, opened = [], array("q")
    for place, token in enumerate(tokens):
        if token in openers:
            opened.append(place)
        elif token == closer:
            spans.append((opened.pop(), place + 1))
    return spans


def nesting(tokens: Sequence[str]) -> int:
    """How deep a bracketed text nests: the most brackets that are open at once."""
    depth = deepest = 0
    for token in tokens:
        if token[0] in "([":
            depth += 1
            deepest = max(deepest, depth)
        elif token in (")", "]"):
            depth -= 1
    return deepest


def first_unclosed(tokens: Iterable[str]) -> int:
    """Where the outermost round bracket that is never closed stands, in a text that has one."""
    opened = array("q")
    for place, token in enumerate(tokens):
        if token == "(":
            opened.append(place)
        elif token == ")":
            opened.pop()
    return opened[0]
