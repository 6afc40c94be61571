"""Filters: conditions as a query engine sees them once every field has its value. Which are true?

`7 < 5 and not ( blue = red or 2 > 3 )`: a comparison binds tighter than `not`, this tighter than `and`, and
that tighter than `or`, as in SQL and in Python; brackets come before all of them. A condition is read once,
from left to right and without recursion, which gives its value and its gold tree.

The depth of a condition is the most brackets that are open at once. Training has depths 0 to 4, dev 1 to 4, a
test split one depth. A line is `label⇥condition`, and every label is checked by evaluation.
"""

import operator
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from beamtree.data.formal import Language, first_unclosed, read_example
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
    "<": operator.lt,  # of digits, whose characters are ordered as their values are
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


def tokenize(text: str) -> Tokens:
    """The tokens of a sound condition, in files or as people type it: `7<5 AND not(blue=red)`.

    One that is unknown or out of place is refused with its number.
    """
    tokens = _LANGUAGE.split_typed(text)
    read_condition(tokens)
    return tokens


def evaluate(tokens: Sequence[str]) -> bool:
    return read_condition(tokens)[0]


def gold_merges(tokens: Sequence[str]) -> list[int]:
    """The n−1 merges of the tree that the precedence means, leftmost first, as BeamTrees.merges.

    Of `X and Y` first `X and` merges, of `7 < 5` first `7 <`, of `( X )` first `( X`.
    """
    return read_condition(tokens)[1]


def read_condition(tokens: Sequence[str]) -> tuple[bool, list[int]]:
    """Whether a condition holds, and the merges of its tree; an UnreadableTextError names a wrong token."""
    # What is left of the next token is a row of open parts; only the last two of them ever merge.
    kinds: list[str] = []  # "(", "not", "and" for `X and`, "or" for `X or`, "" for what has a value
    holds: list[bool] = []
    merges: list[int] = []

    def merge(value: bool) -> None:
        """The last two parts become one that has a value."""
        del kinds[-1], holds[-1]
        kinds[-1], holds[-1] = "", value
        merges.append(len(kinds) - 1)

    def close_operand() -> None:
        while kinds[-2:-1] == ["not"]:
            merge(not holds[-1])
        if kinds[-2:-1] == ["and"]:
            merge(holds[-2] and holds[-1])

    place, n = 0, len(tokens)
    while place < n:  # at the beginning of an operand
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
        while place < n:  # behind an operand
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
                raise _out_of_place(tokens, place, "and, or, or a ')' that closes a '(' is wanted")
            merge(holds[-1])
            merges.append(len(kinds) - 1)
            close_operand()
            place += 1
        place += 1
    if not kinds or kinds[-1] != "":
        raise UnreadableTextError(
            "the condition ends where a comparison, not or ( is wanted", n - 1 if n else None
        )
    if kinds[-2:-1] == ["or"]:
        merge(holds[-2] or holds[-1])
    if len(kinds) > 1:
        raise UnreadableTextError(
            f"unbalanced brackets: {kinds.count('(')} '(' never closed", first_unclosed(tokens)
        )
    return holds[0], merges


def _compare(tokens: Sequence[str], place: int) -> bool:
    """The value of the comparison that begins at a place."""
    left, sign, right = (*tokens[place : place + 3], "", "")[:3]
    if left not in _VALUES:
        raise _out_of_place(tokens, place, "a comparison, not or ( is wanted")
    if sign not in (_COMPARE if left in _NUMBERS else EQUALITIES):
        wanted = "< > = or !=" if left in _NUMBERS else "= or !="
        raise _out_of_place(tokens, place + 1, f"after {left} {wanted} is wanted")
    if right not in _VALUES or (left in _NUMBERS) != (right in _NUMBERS):
        wanted = "a number" if left in _NUMBERS else "a colour"
        raise _out_of_place(tokens, place + 2, f"{wanted} is wanted to compare {left} with")
    return _COMPARE[sign](left, right)


def _out_of_place(tokens: Sequence[str], place: int, wanted: str) -> UnreadableTextError:
    if place >= len(tokens):
        return UnreadableTextError(f"the condition ends too early: {wanted}", len(tokens) - 1)
    return UnreadableTextError(f"{tokens[place]!r} at position {place + 1} is out of place: {wanted}", place)


TRAINED = range(5)  # depths; without brackets there are too few short conditions to hold some out
DEV_DEPTHS = TRAINED[1:]
TESTED = range(1, 11)
SPLITS = {
    "train": f"depths {TRAINED[0]} to {TRAINED[-1]}",
    "dev": f"depths {DEV_DEPTHS[0]} to {DEV_DEPTHS[-1]}",
    **{f"depth{depth}": f"depth {depth}" for depth in TESTED},
}


def file_of(split: str) -> str:
    return f"{split}.tsv"


def read_file(path: Path, bad_rows: BadRows = REFUSE) -> Iterator[Example]:
    """The conditions of one file."""
    read_line = partial(read_example, columns=("label", "condition"), tokenize=tokenize, answer=_answer)
    return bad_rows.sort_out(path, read_rows(path), read_line)


def read(folder: Path, split: str, bad_rows: BadRows = REFUSE) -> Iterator[Example]:
    """The conditions of a split, from the folder's file of its name, plain, .gz or .xz."""
    require_split("filters", split, SPLITS)
    return read_file(find_file(folder, [file_of(split)]), bad_rows)


def label_of(holds: bool) -> str:
    return LABELS[holds]


def _answer(sentences: tuple[Tokens, ...]) -> str:
    return label_of(evaluate(sentences[0]))


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
