"""The language of ListOps: tokens, values, brackets, gold trees and tags of expressions.

An expression is a digit, or `[OP`, its arguments and `]`. Nothing here recurses, so expressions may nest to
any depth. Files are read strictly; people may type `MAX(2, 9, min(4,7))`, `(max 2 9)` or `[max 2,9]`.
"""

import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from beamtree.data.formal import Language, bracketed_spans, merges_by_brackets
from beamtree.data.task import Range, Tokens
from beamtree.errors import UnreadableTextError

CLOSE = "]"
DIGITS = tuple("0123456789")


def _median(values: list[int]) -> int:
    """Return the median; of an even number of values, the mean of the middle two, rounded down."""
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) // 2


VALUE_OF: dict[str, Callable[[list[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": _median,
    "[SM": lambda values: sum(values) % 10,
}
OPERATORS = tuple(VALUE_OF)
TOKENS = (*OPERATORS, CLOSE, *DIGITS)
_TYPED = {opener[1:]: opener for opener in OPERATORS}  # as people type it -> as files write it

_NAME = f"(?ai:{'|'.join(_TYPED)})"
_INSIDE = r"[^\s\[\](),]"  # blanks and commas are separators
_WORD = re.compile(
    rf"""
    [\[(][\s,]* ({_NAME}) (?!{_INSIDE})   # the beginning of a list, `[max` or `(max`
  | ({_NAME}) [\s,]*\(                   # or `max(`
  | \[?{_INSIDE}+                        # a digit, or one unknown name
  | [\[\]()]
    """,
    re.VERBOSE,
)
_LANGUAGE = Language(TOKENS, f"ListOps has {' '.join(TOKENS[:5])} and 0 to 9, as in [MAX 2 9 [MIN 4 7 ] ]")
_DIGIT_VALUE = {digit: value for value, digit in enumerate(DIGITS)}


def split_tokens(text: str) -> Tokens:
    """Return the known tokens of an unchecked expression, without round brackets, which models never see."""
    _check_round_brackets(text)
    return _LANGUAGE.split(text, dropped="()")


def tokenize(text: str) -> Tokens:
    """Return the tokens of a valid expression, from a file or as people type it."""
    _check_round_brackets(text)
    try:
        tokens = split_tokens(text)
    except UnreadableTextError:
        tokens = _LANGUAGE.tokens(word.token for word in find_words(text))
    evaluate(tokens)
    return tokens


class Word(NamedTuple):
    """A token, or unknown text in place of one, and where it is in the text."""

    token: str
    start: int
    end: int


def find_words(text: str) -> Iterator[Word]:
    """Yield the tokens of a text, unknown ones included, without meaningless round brackets.

    A round bracket has a meaning before or after a bare name: `(max 2 9)`, `MAX(2, 9)`. Others are the second
    brackets of the published files, `( ( ( [MAX 2 ) 9 ) ] )`. Tokens come one by one, as a line may be long.
    """
    closes: list[bool] = []  # for each open round bracket: whether closing it closes a list
    for match in _WORD.finditer(text):
        word, name = match[0], match[1] or match[2]
        if "(" in (word[0], word[-1]):
            closes.append(name is not None)
        if name is not None:
            word = _TYPED[name.upper()]
        elif word == ")" and closes and closes.pop():
            word = CLOSE
        elif word in ("(", ")"):
            continue
        yield Word(word, *match.span())


def _check_round_brackets(text: str) -> None:
    if text.count("(") != text.count(")"):
        raise UnreadableTextError(
            f"unbalanced round brackets: {text.count('(')} '(' and {text.count(')')} ')'"
        )


def evaluate(tokens: Sequence[str]) -> int:
    """Return the value of an expression of known tokens; an UnreadableTextError names a misplaced one."""
    operators: list[str] = []  # the open ones, innermost last
    starts = array("q")  # where the arguments of each begin
    arguments: list[int] = []
    for position, token in enumerate(tokens, 1):
        value = _DIGIT_VALUE.get(token)
        if value is None:
            if token != CLOSE:
                operators.append(token)
                starts.append(len(arguments))
                continue
            if not operators:
                raise UnreadableTextError(
                    f"unbalanced brackets: the ']' at position {position} closes nothing", position - 1
                )
            start = starts.pop()
            values = arguments[start:]
            del arguments[start:]
            if not values:
                raise UnreadableTextError(
                    f"the {operators[-1]} closed at position {position} has no arguments", position - 1
                )
            value = VALUE_OF[operators.pop()](values)
        arguments.append(value)
    if operators:
        raise UnreadableTextError(
            f"unbalanced brackets: {_few(operators)} not closed at the end, position {len(tokens)}",
            _out_of_place(tokens),
        )
    if len(arguments) != 1:
        raise UnreadableTextError(f"expected one expression, found {len(arguments)}", _out_of_place(tokens))
    return arguments[0]


def _out_of_place(tokens: Sequence[str]) -> int | None:
    """Return the place of the innermost operator never closed, else the start of a second expression."""
    opened, wholes = array("q"), 0
    second = None
    for place, token in enumerate(tokens):
        if not opened:
            wholes += 1
            second = place if wholes == 2 else second
        if token in VALUE_OF:
            opened.append(place)
        elif token == CLOSE:
            opened.pop()
    return opened[-1] if opened else second


def _few(operators: Sequence[str]) -> str:
    return " ".join(operators[:8]) + (f" … ({len(operators):,})" if len(operators) > 8 else "")


def bracket(operator: str, arguments: Sequence[str]) -> str:
    """Return an operator with its bracketed arguments, as published: `( ( ( [MAX 2 ) 9 ) ] )`."""
    return f"{'( ' * (len(arguments) + 1)}{operator} {' ) '.join(arguments)} ) ] )"


def gold_merges(tokens: Sequence[str]) -> list[int]:
    """Return the n−1 merges of the gold tree: an operator takes in its arguments, then its bracket."""
    return merges_by_brackets(tokens, VALUE_OF, CLOSE)


def expressions_in(tokens: Sequence[str]) -> list[Range]:
    """Return the spans of a valid expression that are expressions: digits and lists."""
    digits = [(place, place + 1) for place, token in enumerate(tokens) if token in _DIGIT_VALUE]
    return digits + bracketed_spans(tokens, VALUE_OF, CLOSE)


def tag_tokens(tokens: Sequence[str]) -> tuple[list[int], list[int]]:
    """Return (values, depths): for each token of a valid expression, those of the innermost list around it.

    `[MAX` and `]` belong to the list that they open and close. The outermost list has depth 1. An expression
    that is a single digit has that value and depth 0.
    """
    values, depths = [evaluate(tokens)] * len(tokens), [0] * len(tokens)
    for start, end in reversed(bracketed_spans(tokens, VALUE_OF, CLOSE)):  # inner lists last
        values[start:end] = [evaluate(tokens[start:end])] * (end - start)
        depths[start:end] = [depth + 1 for depth in depths[start:end]]
    return values, depths
