"""Generates the files of the logic task by the published random process: the same bytes for the same seed."""

from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from random import Random

from beamtree.data.logic.language import ALL_WORLDS, VARIABLES, WORLDS_OF, relation_between
from beamtree.data.task import Tokens
from beamtree.errors import BeamtreeError
from beamtree.files.lines import write_lines

LAST_INDEX = 12  # of a file's name: 12 operators and more in the longer formula


def generate_logic(
    out: Path, *, seed: int, pairs: int = 500_000, progress: Callable[[int, int], None] | None = None
) -> dict[str, Path]:
    """Draw `pairs` pairs, drop repetitions, write train0 … test12; returns the files by name.

    The same seed gives the same bytes everywhere. `progress` is called with (pairs drawn, pairs wanted).
    """
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
            f"{pairs} pairs leave {', '.join(empty)} empty: draw more (the published set: 500000)"
        )
    for name, lines in contents.items():
        write_lines(out / name, lines)
    return {name: out / name for name in contents}


def _draw_pairs(seed: int) -> Iterator[tuple[int, str]]:
    """An endless stream of (file index, line)."""
    getrandbits = Random(seed).getrandbits

    # Python promises the bit stream of a seed, not what randrange makes of it.
    def below(n: int) -> int:
        bits = (n - 1).bit_length()
        while (drawn := getrandbits(bits)) >= n:
            pass
        return drawn

    def formula(budget: int, variables: Tokens) -> tuple[str, int, int]:
        """(text, worlds, number of operators); `budget` halves at every level, so this nests four deep."""
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

    choices = list(combinations(VARIABLES, 4))
    trivial = (0, ALL_WORLDS)
    while True:
        variables = choices[below(15)]
        left, left_worlds, left_operators = formula(12, variables)
        right, right_worlds, right_operators = formula(12, variables)
        if left_worlds in trivial or right_worlds in trivial:
            continue
        relation = relation_between(left_worlds, right_worlds)
        yield min(LAST_INDEX, max(left_operators, right_operators)), f"{relation}\t{left}\t{right}"
