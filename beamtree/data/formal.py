"""What the formal languages share: known tokens, brackets, lines between tabs, and draws that are the same
for the same seed everywhere."""

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

_LONG = 1 << 20  # characters, which split() may make thirty times as many bytes of


class Language:
    """The tokens of a formal language; `says` tells of them where one is unknown, `word` is one as typed.

    Every text shares one object a token: the 4 million tokens of ListOps are 15 strings.
    """

    def __init__(self, tokens: Tokens, says: str, word: str = r"\S+") -> None:
        self._known = {token: token for token in tokens}
        self._says, self._word = says, re.compile(word)

    def split(self, text: str, *, dropped: str = "") -> Tokens:
        """What stands between blanks and characters that are `dropped`; what is unknown is refused."""
        try:
            return tuple(map(self._known.__getitem__, _words(text, dropped)))
        except KeyError:
            return self.tokens(_words(text, dropped))

    def split_typed(self, text: str) -> Tokens:
        """`split` for people, who are forgiven capitals and missing blanks."""
        try:
            return self.split(text)
        except UnreadableTextError:
            return self.tokens(match[0].lower() for match in self._word.finditer(text))

    def tokens(self, words: Iterable[str]) -> Tokens:
        """Words that are parted already."""
        tokens = []
        for place, word in enumerate(words):
            if word not in self._known:
                message = f"unknown token {shown(word)} at position {place + 1}; {self._says}"
                raise UnreadableTextError(message, place)
            tokens.append(self._known[word])
        return tuple(tokens)

    def find_words(self, text: str) -> list[Range]:
        """Where the tokens of a typed text stand, unknown ones too."""
        return [match.span() for match in self._word.finditer(text)]


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


def read_example(
    line: str,
    columns: Sequence[str],
    tokenize: Callable[[str], Tokens],
    answer: Callable[[tuple[Tokens, ...]], str],
    *,
    label_at: int = 0,
) -> Example:
    """The example of a line with tabs between its columns; a label that is not the answer is refused."""
    count = line.count("\t") + 1  # before a line of nothing but tabs fills the memory
    if count != len(columns):
        wanted = f"{', '.join(columns[:-1])} and {columns[-1]}"
        raise BeamtreeError(f"{wanted} with a tab between are wanted, {count} column(s) found")
    texts = line.split("\t")
    label = texts.pop(label_at)
    sentences = tuple(map(tokenize, texts))
    right = answer(sentences)
    if label != right:
        raise BeamtreeError(f"the {columns[label_at]} is {shown(label)}, but {right!r} is right")
    return Example(sentences, label)


def refuse_to_overwrite(folder: Path, names: Iterable[str]) -> None:
    """Raise if a folder has one of these files, packed or not."""
    possible = (name + ending for name in names for ending in COMPRESSIONS)
    existing = [name for name in dict.fromkeys(possible) if (folder / name).exists()]
    if existing:
        raise BeamtreeError(
            f"{folder} already has {', '.join(existing)}: choose another folder (--out), or "
            "replace the files (--overwrite)"
        )


class Bits:
    """Random bits by name: Mersenne Twister words, the same on every platform and Python version.

    Python promises the bits of a seed, not what randrange or shuffle make of them.
    """

    def __init__(self, seed: int | str) -> None:
        if isinstance(seed, str):
            seed = int.from_bytes(hashlib.sha256(seed.encode()).digest(), "big")
        self.getrandbits = random.Random(seed).getrandbits

    def below(self, n: int) -> int:
        bits = (n - 1).bit_length()
        while (drawn := self.getrandbits(bits)) >= n:
            pass
        return drawn

    def coin(self) -> bool:
        return self.getrandbits(1) == 1
