"""Random conditions of a depth, and the files made of them: the same bytes for the same seed everywhere.

The shape of a condition (brackets, connectives, negations) is drawn first, then its value, then the
comparisons that give it this value: so neither counts of words nor the length tell the label. Values at
random would make deep parts irrelevant: one false part ends an `and`, however deep the rest. So a coin
decides. Either the value hangs on one comparison at the deepest level, and all that lies beside the way to it
leaves the matter open; or it is settled on the way, at a level drawn among those that can give this value.
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
    NUMBERS,
    ORDERS,
    SPLITS,
    TESTED,
    TRAINED,
    file_of,
    label_of,
)
from beamtree.data.formal import Bits, refuse_to_overwrite
from beamtree.errors import BeamtreeError
from beamtree.files.lines import write_lines

TRAIN, DEV, TEST = 100_000, 4_000, 2_000  # conditions: in all of training, in all of dev, of each test depth
_SIDE_DEPTH = 2  # most brackets of a part that is not on the way to the deepest comparison


@dataclass(frozen=True, slots=True)
class Operand:
    """A comparison, or a group in brackets; `not` may stand before it."""

    negated: bool
    group: "Group | None"


@dataclass(frozen=True, slots=True)
class Group:
    """Operands with a connective before each but the first; `deepest` is the number of the one that nests."""

    operands: tuple[Operand, ...]
    connectives: tuple[str, ...]
    deepest: int

    def conjunctions(self) -> list[list[int]]:
        """The operands, by number, that `and` holds together: the group is true if all of any of them are."""
        found = [[0]]
        for number, connective in enumerate(self.connectives, start=1):
            if connective == "or":
                found.append([])
            found[-1].append(number)
        return found


def draw_shape(depth: int, bits: Bits, *, least: int = 2) -> Group:
    """Operands, one of which has all of the depth: `least` or one more."""
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
    """The tokens of a condition of this shape that has this value."""
    levels = _deciding_levels(group, holds)
    return _fill(group, holds, bits.below(levels) if levels and bits.coin() else None, bits)


def _deciding_levels(group: Group, holds: bool) -> int:
    """How many connectives on the way to the deepest comparison can give the value, whatever lies deeper."""
    parts = group.conjunctions()
    own = next(part for part in parts if group.deepest in part)
    here = (len(parts) > 1) if holds else (len(own) > 1)
    inner = group.operands[group.deepest]
    return here + (0 if inner.group is None else _deciding_levels(inner.group, holds != inner.negated))


def _fill(group: Group, holds: bool, level: int | None, bits: Bits) -> list[str]:
    """`level` counts the levels that leave the value open before the one that decides; None: they all do."""
    parts = group.conjunctions()
    own = next(part for part in parts if group.deepest in part)
    beside = [number for number in own if number != group.deepest]
    can_decide = (len(parts) > 1) if holds else (len(own) > 1)
    decides = can_decide and level == 0
    if level is not None:
        level -= can_decide
    wanted = [holds and part is own for part in parts]
    if decides and holds:  # one part beside is true, the others may be
        others = [number for number, part in enumerate(parts) if part is not own]
        wanted = [bits.coin() for _ in parts]
        wanted[others[bits.below(len(others))]] = True
    values: dict[int, bool] = {}
    for part, true in zip(parts, wanted, strict=True):
        if true:
            values |= dict.fromkeys(part, True)
        elif part is own and not decides:  # its deepest operand alone makes it false
            values |= dict.fromkeys(part, True) | {group.deepest: False}
        else:  # one operand makes it false, the others are as they like
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
            on_the_way = number == group.deepest and not decides
            inner = (
                _fill(operand.group, value, level, bits) if on_the_way else fill(operand.group, value, bits)
            )
            tokens += ["(", *inner, ")"]
    return tokens


def _draw_comparison(holds: bool, bits: Bits) -> tuple[str, str, str]:
    """Numbers by order, colours by equality; which numbers and which sign there are tells nothing."""
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
    """An endless stream of distinct lines `label⇥condition` of one depth, true and false by turns."""
    bits, seen = Bits(f"beamtree filters {seed} depth {depth}"), set[str]()
    holds = True
    while True:
        # One comparison may stand alone.
        shape = draw_shape(depth, bits, least=2 if depth or bits.coin() else 1)
        line = f"{label_of(holds)}\t{' '.join(fill(shape, holds, bits))}"
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
    """Draw all splits and write their files; returns the file of each.

    `train` and `dev` count the conditions of all their depths together, `test` those of each depth. All that
    is drawn of a depth differs, so no condition is in two splits; the test splits of a seed do not depend on
    the other sizes. `progress` is called with (conditions drawn, conditions wanted).
    """
    files = {split: out / file_of(split) for split in SPLITS}
    shares = {"test": (test, (0,)), "dev": (dev, DEV_DEPTHS), "train": (train, TRAINED)}
    for split, (count, depths) in shares.items():
        share = 2 * len(depths)
        if count < share or count % share:
            raise BeamtreeError(
                f"{split} must be a multiple of {share}, as many true as false conditions of every depth, "
                f"got {count}"
            )
    if not overwrite:
        refuse_to_overwrite(out, [path.name for path in files.values()])
    wanted, done = train + dev + test * len(TESTED), 0
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
                if progress is not None and (done % 1000 == 0 or done == wanted):
                    progress(done, wanted)
    for split, path in files.items():  # depths by turns, so that every part of a file has them all
        write_lines(path, chain.from_iterable(zip(*drawn[split], strict=True)))
    return files
