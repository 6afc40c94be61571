"""Text → tokens: English words, in lower case or not, what stands between blanks, or characters.

English is split in the Penn treebank's manner, in lower case: punctuation apart, `do n't`, `film 's`. One
regular expression, no model and no download. Words of tokenised text stay as they are, so corpora that come
tokenised and corpora that do not can be read alike. `docs/tasks.md` says where it differs from NLTK's.
"""

import re
import unicodedata
from collections.abc import Callable
from functools import partial
from sys import intern

from beamtree.data.task import Tokens
from beamtree.errors import BeamtreeError

MAX_WORDS = 10_000  # in a sentence; the longest review of IMDB has a quarter of it
_MOST_CHARACTERS = 100 * MAX_WORDS
_SAME = str.maketrans({"’": "'", "‘": "'", "“": '"', "”": '"', "…": "...", "\xa0": " "})
_LATIN_CONTROLS = re.compile("[\x80-\x9f]")
_NOT = re.compile(r"n't(?![^\W_])")
_DOTS = re.compile(r"\.{2,}")
_WORD = re.compile(
    r"""
    (?:mr|mrs|ms|dr|prof|st|jr|sr|vs|etc|inc|ltd|rev|gen|col|sgt|capt|lt)\.(?![^\W_])
  | [^\W\d_](?:\.[^\W\d_])+(?![^\W_])\.?                        # initials: u.s., e.g.
  | (?:can(?=not)|gon(?=na)|wan(?=na)|got(?=ta)|gim(?=me)|lem(?=me))(?=[^\W_]{2,3}(?![^\W_]))
  | n't(?![^\W_])
  | '(?:s|m|d|ll|re|ve)(?![^\W_])
  | [^\W_]+(?:(?:[-&/]|'(?!(?:s|m|d|ll|re|ve|t)(?![^\W_]))|(?<=\d)[.,:](?=\d))[^\W_]+)*
  | \.\.\.
  | --+
  | \S
    """,
    re.VERBOSE,
)
_CASED_WORD = re.compile(_WORD.pattern, re.VERBOSE | re.IGNORECASE)
_CASED_NOT = re.compile(_NOT.pattern, re.IGNORECASE)


def tokenize(text: str, *, cased: bool = False) -> Tokens:
    """The words of a text; none if it is blank."""
    if not cased:
        text = text.lower()
    if not text.isascii():
        text = _LATIN_CONTROLS.sub(" ", unicodedata.normalize("NFC", text).translate(_SAME))
    if "`" in text or "''" in text:
        text = text.replace("``", '"').replace("''", '"').replace("`", "'")
    if cased:
        text = _CASED_NOT.sub(lambda found: f" {found[0]}", text)
    elif "n't" in text:
        text = _NOT.sub(" n't", text)
    if ".." in text:
        text = _DOTS.sub(" ... ", text)
    return tuple(map(intern, (_CASED_WORD if cased else _WORD).findall(text)))


def _some(split: Callable[[str], Tokens], text: str) -> Tokens:
    """The tokens of a text that a model may be given: one at least, and not too many."""
    if len(text) > _MOST_CHARACTERS:  # before its words fill the memory
        raise BeamtreeError(f"a sentence has {len(text):,} characters, more than {_MOST_CHARACTERS:,}")
    words = split(text)
    if not words:
        raise BeamtreeError("a sentence has no words")
    if len(words) > MAX_WORDS:
        raise BeamtreeError(f"a sentence has {len(words):,} words, more than {MAX_WORDS:,}")
    return words


words_of = partial(_some, tokenize)
TOKENIZERS: dict[str, Callable[[str], Tokens]] = {
    "words": words_of,
    "cased": partial(_some, partial(tokenize, cased=True)),  # the same words in the letters of the text
    "blanks": partial(_some, lambda text: tuple(text.split())),
    "characters": partial(_some, lambda text: tuple("".join(text.split()))),
}
