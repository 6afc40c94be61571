"""What the formal languages share: known tokens, brackets, lines with tabs, and draws that are the same for
the same seed everywhere."""

import hashlib
import random
import re
from array import array
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

from beamtree.data.task import Example, Range, Tokens
from beamtree.errors import BeamtreeError, UnreadableTextError
from beamtree.files.bounded import shown
from beamtree.files.lines import COMPRESSIONS

_LONG = 1 << 20  # characters; split() can need thirty times as many bytes


class Language:
    """The tokens of a formal language.

    `hint` lists the tokens in error messages; the pattern `word` matches a token as people type it. All texts
    share one string per token: the 4 million tokens of ListOps are 15 strings.
    """

    def __init__(self, tokens: Tokens, hint: str, word: str = r"\S+") -> None:
        self._known = {token: token for token in tokens}
        self._hint, self._word = hint, re.compile(word)

    def split(self, text: str, *, dropped: str = "") -> Tokens:
        """Split at white space and at `dropped` characters; an unknown token is an error."""
        try:
            return tuple(map(self._known.__getitem__, _words(text, dropped)))
        except KeyError:
            return self.tokens(_words(text, dropped))

    def split_typed(self, text: str) -> Tokens:
        """Split a text as people type it: capitals and missing blanks are allowed."""
        try:
            return self.split(text)
        except UnreadableTextError:
            return self.tokens(match[0].lower() for match in self._word.finditer(text))

    def tokens(self, words: Iterable[str]) -> Tokens:
        """Return words that are split already as tokens; an unknown one is an error."""
        tokens = []
        for place, word in enumerate(words):
            if word not in self._known:
                message = f"unknown token {shown(word)} at position {place + 1}; {self._hint}"
                raise UnreadableTextError(message, place)
            tokens.append(self._known[word])
        return tuple(tokens)

    def find_words(self, text: str) -> list[Range]:
        """Return where the tokens of a typed text are, unknown ones included."""
        return [match.span() for match in self._word.finditer(text)]


def _words(text: str, dropped: str) -> Iterable[str]:
    if len(text) > _LONG or not text.isascii():
        return (match[0] for match in re.finditer(rf"[^\s{re.escape(dropped)}]+", text))
    for character in dropped:
        text = text.replace(character, " ")
    return text.split()


def merges_by_brackets(tokens: Sequence[str], openers: Collection[str], closer: str) -> list[int]:
    """Return the n−1 merges of the tree that balanced brackets describe, leftmost first, as positions in the
    shrinking sequence.

    To the left of the next token there are only open brackets with what they have taken in. A token that is
    not an opener merges into the last of them; a closer completes it, and it merges into the one before.
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
    """Return the span of each bracket and the one that closes it, inner ones first."""
    spans, opened = [], array("q")
    for place, token in enumerate(tokens):
        if token in openers:
            opened.append(place)
        elif token == closer:
            spans.append((opened.pop(), place + 1))
    return spans


def nesting(tokens: Sequence[str]) -> int:
    """Return how deep a bracketed text nests: the largest number of brackets open at once."""
    depth = deepest = 0
    for token in tokens:
        if token[0] in "([":
            depth += 1
            deepest = max(deepest, depth)
        elif token in (")", "]"):
            depth -= 1
    return deepest


def never_closed(tokens: Iterable[str]) -> UnreadableTextError:
    """Return the error for a text with unclosed round brackets; it points at the outermost one."""
    opened = array("q")
    for place, token in enumerate(tokens):
        if token == "(":
            opened.append(place)
        elif token == ")":
            opened.pop()
    return UnreadableTextError(f"unbalanced brackets: {len(opened)} '(' never closed", opened[0])


def read_example(
    line: str,
    columns: Sequence[str],
    tokenize: Callable[[str], Tokens],
    answer: Callable[[tuple[Tokens, ...]], str],
    *,
    label_at: int = 0,
) -> Example:
    """Return the example of a line with tabs between its columns; its label must be the right answer."""
    count = line.count("\t") + 1  # counted first, as a line of nothing but tabs could fill the memory
    if count != len(columns):
        expected = f"{', '.join(columns[:-1])} and {columns[-1]}"
        raise BeamtreeError(f"expected {expected}, separated by tabs; found {count} column(s)")
    texts = line.split("\t")
    label = texts.pop(label_at)
    sentences = tuple(map(tokenize, texts))
    right = answer(sentences)
    if label != right:
        raise BeamtreeError(f"the {columns[label_at]} is {shown(label)}, but {right!r} is right")
    return Example(sentences, label)


def refuse_to_overwrite(folder: Path, names: Iterable[str]) -> None:
    """Raise if a folder has one of these files, compressed or not."""
    possible = (name + ending for name in names for ending in COMPRESSIONS)
    existing = [name for name in dict.fromkeys(possible) if (folder / name).exists()]
    if existing:
        raise BeamtreeError(
            f"{folder} already has {', '.join(existing)}: choose another folder (--out), or "
            "replace the files (--overwrite)"
        )


class Bits:
    """Random bits from a seed or a name, the same on every platform and Python version.

    Python guarantees the bits that the Mersenne Twister draws from a seed, not what randrange or shuffle make
    of them.
    """

    def __init__(self, seed: int | str) -> None:
        if isinstance(seed, str):
            seed = int.from_bytes(hashlib.sha256(seed.encode()).digest(), "big")
        self.getrandbits = random.Random(seed).getrandbits

    def below(self, n: int) -> int:
        """Draw a number from 0 to n − 1."""
        bits = (n - 1).bit_length()
        while (drawn := self.getrandbits(bits)) >= n:
            pass
        return drawn

    def coin(self) -> bool:
        return self.getrandbits(1) == 1
