"""Reads texts as tokens with their places; an error says which place cannot be read."""

import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

from beamtree.data.task import Range, Task, Tokens
from beamtree.errors import BeamtreeError

_LOOK_AHEAD = 8  # characters that may be between two tokens of a normalised text
# Accents on one character, as in Unicode's stream-safe format. Sorting them takes quadratic time.
_MAX_MARKS = 30


class Where(NamedTuple):
    text: int  # number of the text, from 0
    token: int | None  # from 0; None if no single token is to blame
    start: int
    end: int


class Reading(NamedTuple):
    text: str
    tokens: Tokens
    ranges: list[Range]


class UnreadableInputError(BeamtreeError):
    """`code` is that of the error in the API; if a text is too long, `where` is the first token too many."""

    def __init__(self, message: str, where: Where | None = None, code: str = "unreadable") -> None:
        super().__init__(message)
        self.where, self.code = where, code


def read_texts(task: Task, texts: Sequence[str], max_tokens: int | None = None) -> list[Reading]:
    """Read the sentences of one input, as many as the task takes."""
    if len(texts) != task.sentences:
        wanted = "one text" if task.sentences == 1 else f"{task.sentences} texts, one for each sentence"
        raise UnreadableInputError(f"the task {task.name!r} takes {wanted}, got {len(texts)}", code="invalid")
    for number, text in enumerate(texts):
        if not text.strip():
            raise UnreadableInputError(
                "there is nothing to read: the text is empty", Where(number, None, 0, len(text))
            )
    return [_read(task, number, text, max_tokens) for number, text in enumerate(texts)]


def _read(task: Task, number: int, text: str, max_tokens: int | None) -> Reading:
    _check_marks(number, text)
    words = task.find_words(text)
    _check_count(number, words, max_tokens)  # before tokenising a text that is too long anyway
    try:
        tokens = task.tokenize(text)
    except BeamtreeError as error:
        token = getattr(error, "token", None)
        start, end = (0, len(text)) if token is None else words[token]
        raise UnreadableInputError(str(error), Where(number, token, start, end)) from error
    ranges = _find_tokens(text, tokens, words)
    _check_count(number, ranges, max_tokens)
    return Reading(text, tokens, ranges)


def _check_marks(number: int, text: str) -> None:
    marks = 0
    for place, character in enumerate("" if text.isascii() else text):
        marks = marks + 1 if unicodedata.combining(character) else 0
        if marks > _MAX_MARKS:
            raise UnreadableInputError(
                f"more than {_MAX_MARKS} accents on one character",
                Where(number, None, max(0, place - marks), place + 1),
            )


def _check_count(number: int, ranges: list[Range], max_tokens: int | None) -> None:
    if max_tokens is not None and len(ranges) > max_tokens:
        raise UnreadableInputError(
            f"{len(ranges):,} tokens exceed the limit of {max_tokens:,}",
            Where(number, max_tokens, *ranges[max_tokens]),
            code="too_long",
        )


def _find_tokens(text: str, tokens: Tokens, words: list[Range]) -> list[Range]:
    """The place of each token: its word, or the part of a word that matches it; [p, p) if nothing does."""
    if len(words) == len(tokens):
        return words
    lowered = text.lower() if len(text.lower()) == len(text) else text
    ranges, place = [], 0
    for token in tokens:
        start = lowered.find(token, place, place + len(token) + _LOOK_AHEAD)
        found = (start, start + len(token)) if start >= 0 else (place, place)
        ranges.append(found)
        place = found[1]
    return ranges
