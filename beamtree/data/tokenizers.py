"""Text → tokens: English words, in lower case or not, words between blanks, or characters.

English is split like the Penn Treebank: punctuation apart, `do n't`, `film 's`. It takes one regular
expression, no model and no download. Tokenised text stays as it is, so tokenised corpora and others are read
alike. `docs/tasks.md` says where this differs from NLTK's tokenizer.
"""

import re
import unicodedata
from collections.abc import Callable
from functools import partial
from sys import intern

from beamtree.data.task import Tokens
from beamtree.errors import BeamtreeError

MAX_WORDS = 10_000  # in a sentence; the longest review of IMDB has a quarter of that
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
    """Return the words of a text; none if it is blank."""
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


def _checked(split: Callable[[str], Tokens], text: str) -> Tokens:
    """Split a text for a model; no tokens, or too many, are an error."""
    if len(text) > _MOST_CHARACTERS:  # checked first, as its words could fill the memory
        raise BeamtreeError(f"a sentence has {len(text):,} characters, more than {_MOST_CHARACTERS:,}")
    words = split(text)
    if not words:
        raise BeamtreeError("a sentence has no words")
    if len(words) > MAX_WORDS:
        raise BeamtreeError(f"a sentence has {len(words):,} words, more than {MAX_WORDS:,}")
    return words


words_of = partial(_checked, tokenize)
TOKENIZERS: dict[str, Callable[[str], Tokens]] = {
    "words": words_of,
    "cased": partial(_checked, partial(tokenize, cased=True)),
    "blanks": partial(_checked, lambda text: tuple(text.split())),
    "characters": partial(_checked, lambda text: tuple("".join(text.split()))),
}
