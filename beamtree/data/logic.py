"""Logical inference (Bowman et al. 2015): which of seven relations holds between two propositional formulas.

A formula is a variable, `( not X )`, `( X ( and Y ) )` or `( X ( or Y ) )`; the brackets are tokens of the
model's input. Files train0 … train12, test0 … test12 are published or generated: the number is that of the
operators in the longer formula, and 12 means 12 or more. A line is `relation⇥formula⇥formula`.
"""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

from beamtree.data.formal import (
    Bits,
    Language,
    bracketed_spans,
    merges_by_brackets,
    never_closed,
    read_example,
    refuse_to_overwrite,
)
from beamtree.data.task import REFUSE, BadRows, Example, Range, Task, Tokens, require_split
from beamtree.errors import BeamtreeError, UnreadableTextError
from beamtree.files.lines import find_file, read_rows, write_lines

VARIABLES = ("a", "b", "c", "d", "e", "f")
TOKENS = ("(", ")", *VARIABLES, "and", "or", "not")
_LANGUAGE = Language(TOKENS, f"the tokens are {' '.join(TOKENS)}", r"[()]|[^\s()]+")
RELATIONS = ("=", "<", ">", "^", "|", "v", "#")

# The meaning of a formula is the set of worlds where it is true, as the bits of an integer; variable i is
# true in world w if bit i of w is set.
ALL_WORLDS = 2**64 - 1
WORLDS_OF = {name: sum(1 << w for w in range(64) if w >> i & 1) for i, name in enumerate(VARIABLES)}


def relation_between(left: int, right: int) -> str:
    """Return the first of RELATIONS that holds between two sets of worlds."""
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
    """Return the tokens of a valid formula, from a file or as people type it: `(A (and b))`.

    The error for an unknown or misplaced token names its position, from 1.
    """
    tokens = _LANGUAGE.split_typed(formula)
    worlds_of(tokens)
    return tokens


def worlds_of(tokens: Tokens) -> int:
    """Return the set of worlds in which a formula is true."""
    stack: list[str | int | tuple[str, int]] = []
    for place, token in enumerate(tokens, start=1):
        if token in WORLDS_OF:
            stack.append(WORLDS_OF[token])
        elif token != ")":
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
        raise never_closed(tokens)
    raise UnreadableTextError("not a formula: expected a variable, ( not X ) or ( X ( and Y ) )")


def _why_not_closed(stack: list[str | int | tuple[str, int]], place: int) -> str:
    if "(" not in stack:
        return f"unbalanced brackets: ')' at position {place} closes nothing"
    return f"')' at position {place} closes neither ( not X ) nor ( X ( and Y ) ) nor ( X ( or Y ) )"


def formulas_in(tokens: Tokens) -> list[Range]:
    """Return the spans of a formula that are formulas: variables and brackets, except `( and Y )`."""
    variables = [(place, place + 1) for place, token in enumerate(tokens) if token in WORLDS_OF]
    bracketed = bracketed_spans(tokens, "(", ")")
    return variables + [span for span in bracketed if tokens[span[0] + 1] not in ("and", "or")]


def gold_merges(tokens: Tokens) -> list[int]:
    """Return the merges of the brackets' tree: an open one takes in what follows until it is closed."""
    return merges_by_brackets(tokens, "(", ")")


LAST_INDEX = 12  # of a file: 12 operators or more in the longer formula
_TRAINED_INDICES = range(7)
_DEV_EVERY = 10

SPLITS = {
    "train": "train0 … train6 without every tenth pair",
    "dev": "every tenth pair of train0 … train6",
    **{f"test{index}": f"{index} operators in the longer formula" for index in range(LAST_INDEX)},
    f"test{LAST_INDEX}": f"{LAST_INDEX} operators or more in the longer formula",
}


def read_file(path: Path, bad_rows: BadRows = REFUSE) -> Iterator[Example]:
    """Yield the pairs of one file; every relation is checked against the truth tables."""
    return bad_rows.sort_out(path, read_rows(path), _read_pair)


def read(folder: Path, split: str, bad_rows: BadRows = REFUSE) -> Iterator[Example]:
    """Yield the pairs of a split; every tenth line of train0 … train6 is for dev."""
    require_split("logic", split, SPLITS)
    if split.startswith("test"):
        yield from read_file(_find(folder, split), bad_rows)
        return
    count = itertools.count(1)  # lines of all files
    for path in [_find(folder, f"train{index}") for index in _TRAINED_INDICES]:
        rows = (row for row in read_rows(path) if (next(count) % _DEV_EVERY == 0) == (split == "dev"))
        yield from bad_rows.sort_out(path, rows, _read_pair)


def _find(folder: Path, name: str) -> Path:
    return find_file(folder, (name, f"{name}.txt"))


def _read_pair(line: str) -> Example:
    return read_example(line, ("relation", "formula", "formula"), tokenize, _answer)


def _answer(sentences: tuple[Tokens, ...]) -> str:
    return relation_between(*map(worlds_of, sentences))


TASK = Task(
    name="logic",
    tokens=TOKENS,
    labels=RELATIONS,
    sentences=2,
    splits=SPLITS,
    tokenize=tokenize,
    read=read,
    read_file=read_file,
    gold_merges=gold_merges,
    answer=_answer,
    texts_in=formulas_in,
    find_words=_LANGUAGE.find_words,
)


def generate_logic(
    out: Path,
    *,
    seed: int,
    pairs: int = 500_000,
    progress: Callable[[int, int], None] | None = None,
    overwrite: bool = False,
) -> dict[str, Path]:
    """Draw `pairs` pairs, drop repetitions, write train0 … test12 and return the files by name.

    The random process is the published one; the same seed gives the same bytes everywhere. `progress` is
    called with (pairs drawn, pairs in all).
    """
    if not overwrite:
        refuse_to_overwrite(
            out, [f"{part}{index}" for part in ("train", "test") for index in range(LAST_INDEX + 1)]
        )
    by_index: list[dict[str, None]] = [{} for _ in range(LAST_INDEX + 1)]
    draw = _draw_pairs(seed)
    for done in range(1, pairs + 1):
        index, line = next(draw)
        by_index[index][line] = None
        if progress is not None and (done % 1000 == 0 or done == pairs):
            progress(done, pairs)

    contents: dict[str, list[str]] = {}
    for index, distinct in enumerate(by_index):
        lines = list(distinct)
        cut = len(lines) * 85 // 100
        contents[f"train{index}"], contents[f"test{index}"] = lines[:cut], lines[cut:]
    empty = [name for name, lines in contents.items() if not lines]
    if empty:
        raise BeamtreeError(
            f"{pairs} pairs leave {', '.join(empty)} empty: draw more (the published set has 500000)"
        )
    for name, lines in contents.items():
        write_lines(out / name, lines)
    return {name: out / name for name in contents}


def _draw_pairs(seed: int) -> Iterator[tuple[int, str]]:
    """Yield (file index, line) without end."""
    below = Bits(seed).below

    def formula(budget: int, variables: Tokens) -> tuple[str, int, int]:
        """Draw (text, worlds, number of operators); `budget` halves at each level: at most four levels."""
        kind = below(9)
        if kind >= 4 or budget < 2:
            text = variables[below(4)]
            worlds, operators = WORLDS_OF[text], 0
        else:
            left, left_worlds, left_operators = formula(budget // 2, variables)
            right, right_worlds, right_operators = formula(budget // 2, variables)
            operators = left_operators + right_operators + 1
            if kind < 2:
                text, worlds = f"( {left} ( and {right} ) )", left_worlds & right_worlds
            else:
                text, worlds = f"( {left} ( or {right} ) )", left_worlds | right_worlds
        if below(3) == 0:
            return f"( not {text} )", ALL_WORLDS ^ worlds, operators + 1
        return text, worlds, operators

    choices = list(itertools.combinations(VARIABLES, 4))
    trivial = (0, ALL_WORLDS)
    while True:
        variables = choices[below(15)]
        left, left_worlds, left_operators = formula(12, variables)
        right, right_worlds, right_operators = formula(12, variables)
        if left_worlds in trivial or right_worlds in trivial:
            continue
        relation = relation_between(left_worlds, right_worlds)
        yield min(LAST_INDEX, max(left_operators, right_operators)), f"{relation}\t{left}\t{right}"
