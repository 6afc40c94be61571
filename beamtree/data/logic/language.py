"""The language of the logic task: formulas, the worlds they hold in, relations between them, gold trees.

A formula is a variable, `( not X )` or `( X ( and Y ) )`; the round brackets are tokens of the model's input.
"""

from array import array

from beamtree.data.bracketed import known_tokens, merges_by_brackets
from beamtree.data.task import Tokens
from beamtree.errors import BeamtreeError, UnreadableTextError
from beamtree.files.bounded import shown

VARIABLES = ("a", "b", "c", "d", "e", "f")
TOKENS = ("(", ")", *VARIABLES, "and", "or", "not")
_SAME = {token: token for token in TOKENS}
_LANGUAGE = f"the tokens are {' '.join(TOKENS)}"
RELATIONS = ("=", "<", ">", "^", "|", "v", "#")

# A formula's meaning is the set of worlds where it holds: bit w of an integer, and variable i holds in
# world w if bit i of w is set.
ALL_WORLDS = 2**64 - 1
WORLDS_OF = {name: sum(1 << w for w in range(64) if w >> i & 1) for i, name in enumerate(VARIABLES)}


def relation_between(left: int, right: int) -> str:
    """The first of RELATIONS that holds between two sets of worlds."""
    if left == right:
        return "="
    if left & right == left:
        return "<"
    if left & right == right:
        return ">"
    disjoint, exhaustive = left & right == 0, left | right == ALL_WORLDS
    if disjoint:
        return "^" if exhaustive else "|"
    return "v" if exhaustive else "#"


def tokenize(formula: str) -> Tokens:
    """Split at blanks; a token that is unknown or out of place is refused with its number, from 1."""
    tokens = known_tokens(formula, _SAME, _LANGUAGE)
    worlds_of(tokens)
    return tokens


def worlds_of(tokens: Tokens) -> int:
    """The set of worlds in which a formula holds."""
    stack: list[str | int | tuple[str, int]] = []
    for place, token in enumerate(tokens, start=1):
        if token in WORLDS_OF:
            stack.append(WORLDS_OF[token])
        elif token != ")":
            if token not in TOKENS:
                raise UnreadableTextError(
                    f"unknown token {shown(token)} at position {place}; {_LANGUAGE}", place - 1
                )
            stack.append(token)
        else:
            match stack[-3:]:
                case ["(", "not", int(inner)]:
                    closed: int | tuple[str, int] = ALL_WORLDS ^ inner
                case ["(", "and" | "or" as operator, int(inner)]:
                    closed = (operator, inner)
                case ["(", int(left), ("and", int(right))]:
                    closed = left & right
                case ["(", int(left), ("or", int(right))]:
                    closed = left | right
                case _:
                    raise UnreadableTextError(_why_not_closed(stack, place), place - 1)
            stack[-3:] = [closed]
    match stack:
        case [int(worlds)]:
            return worlds
    if "(" in stack:
        raise UnreadableTextError(
            f"unbalanced brackets: {stack.count('(')} '(' never closed", _first_unclosed(tokens)
        )
    raise UnreadableTextError("not a formula: wanted is a variable, ( not X ) or ( X ( and Y ) )")


def _why_not_closed(stack: list[str | int | tuple[str, int]], place: int) -> str:
    if "(" not in stack:
        return f"unbalanced brackets: ')' at position {place} closes nothing"
    return f"')' at position {place} closes neither ( not X ) nor ( X ( and Y ) ) nor ( X ( or Y ) )"


def _first_unclosed(tokens: Tokens) -> int:
    opened = array("q")
    for place, token in enumerate(tokens):
        if token == "(":
            opened.append(place)
        elif token == ")":
            opened.pop()
    return opened[0]


def gold_merges(tokens: Tokens) -> list[int]:
    """The tree of the brackets: an open bracket takes in what follows, item by item, until it is closed.

    The position merged at each of the n−1 steps, the leftmost possible pair first.
    """
    _check_brackets(tokens)
    return merges_by_brackets(tokens, "(", ")")


def _check_brackets(tokens: Tokens) -> None:
    open_brackets = 0
    for place, token in enumerate(tokens, start=1):
        if not open_brackets and (place > 1 or token == ")"):
            raise BeamtreeError(f"unbalanced brackets: no '(' is open for {shown(token)} at position {place}")
        open_brackets += (token == "(") - (token == ")")
    if open_brackets:
        raise BeamtreeError(f"unbalanced brackets: {open_brackets} '(' never closed")
