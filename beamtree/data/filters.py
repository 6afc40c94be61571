"""Filters: conditions as a query engine sees them once every field has its value. Which are true?

`7 < 5 and not ( blue = red or 2 > 3 )`: a comparison binds tighter than `not`, which binds tighter than
`and`, which binds tighter than `or`, as in SQL and Python; brackets come first. One pass from left to right,
without recursion, gives the value of a condition and its gold tree.

The depth of a condition is the largest number of brackets open at once. Training has depths 0 to 4, dev 1 to
4, each test split one depth. A line is `label⇥condition`; every label is checked by evaluation.
"""

import operator
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from beamtree.data.formal import Language, never_closed, read_example
from beamtree.data.task import REFUSE, BadRows, Example, Task, Tokens, require_split
from beamtree.errors import UnreadableTextError
from beamtree.files.lines import find_file, read_rows

NUMBERS = tuple("0123456789")
COLOURS = ("red", "green", "blue", "black", "white", "grey")
ORDERS = ("<", ">")
EQUALITIES = ("=", "!=")
CONNECTIVES = ("and", "or")
TOKENS = ("(", ")", "not", *CONNECTIVES, *ORDERS, *EQUALITIES, *NUMBERS, *COLOURS)
LABELS = ("false", "true")

_COMPARE: dict[str, Callable[[str, str], bool]] = {
    "<": operator.lt,  # characters of digits are in the order of their values
    ">": operator.gt,
    "=": operator.eq,
    "!=": operator.ne,
}
_LANGUAGE = Language(
    TOKENS,
    "conditions have ( ) not and or < > = !=, the numbers 0 to 9 and the colours "
    f"{' '.join(COLOURS)}, with a blank between tokens",
    r"[()]|[<>=!]+|[^\s()<>=!]+",
)
_NUMBERS, _VALUES = frozenset(NUMBERS), frozenset((*NUMBERS, *COLOURS))
_OPERAND = "a comparison, not or ("


def tokenize(text: str) -> Tokens:
    """Return the tokens of a valid condition, from a file or as people type it: `7<5 AND not(blue=red)`.

    The error for an unknown or misplaced token names its position.
    """
    tokens = _LANGUAGE.split_typed(text)
    read_condition(tokens)
    return tokens


def evaluate(tokens: Sequence[str]) -> bool:
    """Return whether a condition is true."""
    return read_condition(tokens)[0]


def gold_merges(tokens: Sequence[str]) -> list[int]:
    """Return the n−1 merges of the tree that precedence gives, leftmost first, like BeamTrees.merges.

    In `X and Y`, `X and` merges first; in `7 < 5`, `7 <`; in `( X )`, `( X`.
    """
    return read_condition(tokens)[1]


def read_condition(tokens: Sequence[str]) -> tuple[bool, list[int]]:
    """Return whether a condition is true and the merges of its tree; the error names a wrong token."""
    # To the left of the next token is a row of open parts; only the last two of them ever merge.
    kinds: list[str] = []  # "(", "not", "and" for `X and`, "or" for `X or`, "" for a part with a value
    holds: list[bool] = []
    merges: list[int] = []

    def merge(value: bool) -> None:
        """Merge the last two parts into one with a value."""
        del kinds[-1], holds[-1]
        kinds[-1], holds[-1] = "", value
        merges.append(len(kinds) - 1)

    def close_operand() -> None:
        while kinds[-2:-1] == ["not"]:
            merge(not holds[-1])
        if kinds[-2:-1] == ["and"]:
            merge(holds[-2] and holds[-1])

    place, n = 0, len(tokens)
    while place < n:  # at the start of an operand
        token = tokens[place]
        if token in ("(", "not"):
            kinds.append(token)
            holds.append(False)
            place += 1
            continue
        kinds.append("")
        holds.append(_compare(tokens, place))
        merges += [len(kinds) - 1] * 2
        close_operand()
        place += 3
        while place < n:  # after an operand
            token = tokens[place]
            if token == "and":
                kinds[-1] = token
                merges.append(len(kinds) - 1)
                break
            if kinds[-2:-1] == ["or"]:
                merge(holds[-2] or holds[-1])
            if token == "or":
                kinds[-1] = token
                merges.append(len(kinds) - 1)
                break
            if token != ")" or kinds[-2:-1] != ["("]:
                raise _out_of_place(tokens, place, "and, or, or a ')' that closes a '('")
            merge(holds[-1])
            merges.append(len(kinds) - 1)
            close_operand()
            place += 1
        place += 1
    if not kinds or kinds[-1] != "":
        raise _out_of_place(tokens, n, _OPERAND)
    if kinds[-2:-1] == ["or"]:
        merge(holds[-2] or holds[-1])
    if len(kinds) > 1:
        raise never_closed(tokens)
    return holds[0], merges


def _compare(tokens: Sequence[str], place: int) -> bool:
    """Return the value of the comparison that starts at `place`."""
    left, sign, right = (*tokens[place : place + 3], "", "")[:3]
    if left not in _VALUES:
        raise _out_of_place(tokens, place, _OPERAND)
    is_number = left in _NUMBERS
    if sign not in (_COMPARE if is_number else EQUALITIES):
        raise _out_of_place(tokens, place + 1, f"{'< > = or !=' if is_number else '= or !='} after {left}")
    if right not in _VALUES or is_number != (right in _NUMBERS):
        kind = "number" if is_number else "colour"
        raise _out_of_place(tokens, place + 2, f"a {kind} to compare {left} with")
    return _COMPARE[sign](left, right)


def _out_of_place(tokens: Sequence[str], place: int, expected: str) -> UnreadableTextError:
    """Return the error for a token that is wrong or, if `place` is the end, missing."""
    if place >= len(tokens):
        message = f"the condition ends too early: expected {expected}"
        return UnreadableTextError(message, len(tokens) - 1 if tokens else None)
    message = f"{tokens[place]!r} at position {place + 1} is out of place: expected {expected}"
    return UnreadableTextError(message, place)


TRAINED = range(5)  # depths; dev lacks depth 0, where there are too few short conditions to hold some out
DEV_DEPTHS = TRAINED[1:]
TESTED = range(1, 11)
SPLITS = {
    "train": f"depths {TRAINED[0]} to {TRAINED[-1]}",
    "dev": f"depths {DEV_DEPTHS[0]} to {DEV_DEPTHS[-1]}",
    **{f"depth{depth}": f"depth {depth}" for depth in TESTED},
}


def read_file(path: Path, bad_rows: BadRows = REFUSE) -> Iterator[Example]:
    """Yield the conditions of one file."""
    read_line = partial(read_example, columns=("label", "condition"), tokenize=tokenize, answer=_answer)
    return bad_rows.sort_out(path, read_rows(path), read_line)


def read(folder: Path, split: str, bad_rows: BadRows = REFUSE) -> Iterator[Example]:
    """Yield the conditions of a split, from the file of that name, plain, .gz or .xz."""
    require_split("filters", split, SPLITS)
    return read_file(find_file(folder, [f"{split}.tsv"]), bad_rows)


def _answer(sentences: tuple[Tokens, ...]) -> str:
    return LABELS[evaluate(sentences[0])]


TASK = Task(
    name="filters",
    tokens=TOKENS,
    labels=LABELS,
    sentences=1,
    splits=SPLITS,
    tokenize=tokenize,
    read=read,
    read_file=read_file,
    gold_merges=gold_merges,
    answer=_answer,
    find_words=_LANGUAGE.find_words,
)
