"""English text → lower-case words in the Penn treebank's manner: punctuation apart, `do n't`, `film 's`.

One regular expression, no model and no download. Words of tokenised text stay as they are, so corpora that
come tokenised and corpora that do not can be read alike. `docs/tasks.md` says where it differs from NLTK's.
"""

import re
import unicodedata
from sys import intern

from beamtree.data.task import Tokens

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


def tokenize(text: str) -> Tokens:
    """The words of a text; none if it is blank."""
    text = text.lower()
    if not text.isascii():
        text = _LATIN_CONTROLS.sub(" ", unicodedata.normalize("NFC", text).translate(_SAME))
    if "`" in text or "''" in text:
        text = text.replace("``", '"').replace("''", '"').replace("`", "'")
    if "n't" in text:
        text = _NOT.sub(" n't", text)
    if ".." in text:
        text = _DOTS.sub(" ... ", text)
    return tuple(map(intern, _WORD.findall(text)))
