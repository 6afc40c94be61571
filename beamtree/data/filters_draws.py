"""Random conditions of a given depth, and files of them: the same seed gives the same bytes everywhere.

The shape of a condition (brackets, connectives, negations) is drawn first, then comparisons that give it the
value it should have, so neither word counts nor the length tell the label. With random values, deep parts
would rarely matter: one false part decides an `and`, however deep the rest is. So a coin decides. Either the
value depends on one comparison at the deepest level, and everything beside the path to it leaves the value
open; or it is decided on the path, at a level drawn among those that can produce this value.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from beamtree.data.filters import (
    COLOURS,
    CONNECTIVES,
    DEV_DEPTHS,
    EQUALITIES,
    LABELS,
    NUMBERS,
    ORDERS,
    SPLITS,
    TESTED,
    TRAINED,
)
from beamtree.data.formal import Bits, refuse_to_overwrite
from beamtree.errors import BeamtreeError
from beamtree.files.lines import write_lines

TRAIN, DEV, TEST = 100_000, 4_000, 2_000  # conditions: for training, for dev, and for each test depth
_SIDE_DEPTH = 2  # largest depth of a group beside the path to the deepest comparison


@dataclass(frozen=True, slots=True)
class Operand:
    """A comparison (no `group`), or a group in brackets; with `not` before it if `negated`."""

    negated: bool
    group: "Group | None"


@dataclass(frozen=True, slots=True)
class Group:
    """Operands with a connective before each but the first; `deepest` is the index of the one on the path."""

    operands: tuple[Operand, ...]
    connectives: tuple[str, ...]
    deepest: int

    def conjunctions(self) -> list[list[int]]:
        """Return the indices of operands joined by `and`; the group is true if all of any list are."""
        found = [[0]]
        for number, connective in enumerate(self.connectives, start=1):
            if connective == "or":
                found.append([])
            found[-1].append(number)
        return found


def draw_shape(depth: int, bits: Bits, *, least: int = 2) -> Group:
    """Draw a group of `least` operands or one more, one of which has the whole depth."""
    count = least + (bits.below(4) == 0)
    deepest = bits.below(count)
    operands = []
    for number in range(count):
        group = None
        if depth and number == deepest:
            group = draw_shape(depth - 1, bits)
        elif depth and bits.below(6) == 0:
            group = draw_shape(bits.below(min(depth, _SIDE_DEPTH)), bits)
        negated = bits.below(3) == 0
        operands.append(Operand(negated, group))
    connectives = tuple(CONNECTIVES[bits.below(2)] for _ in range(count - 1))
    return Group(tuple(operands), connectives, deepest)


def fill(group: Group, holds: bool, bits: Bits) -> list[str]:
    """Draw the tokens of a condition of this shape and value."""
    levels = _deciding_levels(group, holds)
    return _fill(group, holds, bits.below(levels) if levels and bits.coin() else None, bits)


def _deciding_levels(group: Group, holds: bool) -> int:
    """Count the levels on the path to the deepest comparison that can give the value by themselves."""
    parts = group.conjunctions()
    own = next(part for part in parts if group.deepest in part)
    here = (len(parts) > 1) if holds else (len(own) > 1)
    inner = group.operands[group.deepest]
    return here + (0 if inner.group is None else _deciding_levels(inner.group, holds != inner.negated))


def _fill(group: Group, holds: bool, level: int | None, bits: Bits) -> list[str]:
    """Draw the tokens; `level` is how many levels that could decide come before the one that does, if any."""
    parts = group.conjunctions()
    own = next(part for part in parts if group.deepest in part)
    beside = [number for number in own if number != group.deepest]
    can_decide = (len(parts) > 1) if holds else (len(own) > 1)
    decides = can_decide and level == 0
    if level is not None:
        level -= can_decide
    wanted = [holds and part is own for part in parts]
    if decides and holds:  # one of the other parts is true, the rest may be
        others = [number for number, part in enumerate(parts) if part is not own]
        wanted = [bits.coin() for _ in parts]
        wanted[others[bits.below(len(others))]] = True
    values: dict[int, bool] = {}
    for part, true in zip(parts, wanted, strict=True):
        if true:
            values |= dict.fromkeys(part, True)
        elif part is own and not decides:  # only its deepest operand makes it false
            values |= dict.fromkeys(part, True) | {group.deepest: False}
        else:  # one operand makes it false, the others are drawn
            one_of = beside if part is own and not holds else part
            values |= {number: bits.coin() for number in part} | {one_of[bits.below(len(one_of))]: False}
    tokens: list[str] = []
    for number, operand in enumerate(group.operands):
        if number:
            tokens.append(group.connectives[number - 1])
        if operand.negated:
            tokens.append("not")
        value = values[number] != operand.negated
        if operand.group is None:
            tokens += _draw_comparison(value, bits)
        else:
            on_path = number == group.deepest and not decides
            inner = _fill(operand.group, value, level, bits) if on_path else fill(operand.group, value, bits)
            tokens += ["(", *inner, ")"]
    return tokens


def _draw_comparison(holds: bool, bits: Bits) -> tuple[str, str, str]:
    """Draw two numbers with < or >, or two colours with = or !=; neither values nor sign tell the truth."""
    if bits.coin():
        one = bits.below(len(NUMBERS))
        other = (one + 1 + bits.below(len(NUMBERS) - 1)) % len(NUMBERS)
        sign = ORDERS[bits.below(2)]
        less, more = sorted((NUMBERS[one], NUMBERS[other]))
        return (less, sign, more) if (sign == "<") == holds else (more, sign, less)
    one = bits.below(len(COLOURS))
    sign = EQUALITIES[bits.below(2)]
    unlike = (one + 1 + bits.below(len(COLOURS) - 1)) % len(COLOURS)
    return COLOURS[one], sign, COLOURS[one if (sign == "=") == holds else unlike]


def draw_lines(depth: int, seed: int) -> Iterator[str]:
    """Yield distinct lines `label⇥condition` of one depth without end, true and false in turn."""
    bits, seen = Bits(f"beamtree filters {seed} depth {depth}"), set[str]()
    holds = True
    while True:
        # At depth 0 a comparison may stand alone.
        shape = draw_shape(depth, bits, least=2 if depth or bits.coin() else 1)
        line = f"{LABELS[holds]}\t{' '.join(fill(shape, holds, bits))}"
        if line not in seen:
            seen.add(line)
            holds = not holds
            yield line


def generate_filters(
    out: Path,
    *,
    seed: int,
    train: int = TRAIN,
    dev: int = DEV,
    test: int = TEST,
    progress: Callable[[int, int], None] | None = None,
    overwrite: bool = False,
) -> dict[str, Path]:
    """Draw all splits, write their files and return them by split.

    `train` and `dev` count the conditions of all their depths together, `test` those of each depth. The
    conditions of a depth are all different, so none is in two splits; the test splits of a seed do not depend
    on the other sizes. `progress` is called with (conditions drawn, conditions in all).
    """
    files = {split: out / f"{split}.tsv" for split in SPLITS}
    shares = {"test": (test, (0,)), "dev": (dev, DEV_DEPTHS), "train": (train, TRAINED)}
    for split, (count, depths) in shares.items():
        share = 2 * len(depths)
        if count < share or count % share:
            raise BeamtreeError(
                f"{split} must be a multiple of {share}, for as many true as false conditions of every "
                f"depth, got {count}"
            )
    if not overwrite:
        refuse_to_overwrite(out, [path.name for path in files.values()])
    total, done = train + dev + test * len(TESTED), 0
    drawn: dict[str, list[list[str]]] = {split: [] for split in SPLITS}  # the lines of each depth
    for depth in sorted({*TRAINED, *TESTED}):
        lines = draw_lines(depth, seed)
        counts = {f"depth{depth}": test} if depth in TESTED else {}
        for split in ("dev", "train"):
            count, depths = shares[split]
            if depth in depths:
                counts[split] = count // len(depths)
        for split, count in counts.items():
            drawn[split].append([])
            for line in islice(lines, count):
                drawn[split][-1].append(line)
                done += 1
                if progress is not None and (done % 1000 == 0 or done == total):
                    progress(done, total)
    for split, path in files.items():  # depths in turn, so that every part of a file has them all
        write_lines(path, chain.from_iterable(zip(*drawn[split], strict=True)))
    return files
