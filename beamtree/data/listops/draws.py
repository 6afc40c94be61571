"""Distinct random ListOps expressions, and files of them: the same seed gives the same bytes everywhere."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice
from pathlib import Path

from beamtree.data.formal import Bits, refuse_to_overwrite
from beamtree.data.listops.language import DIGITS, OPERATORS, VALUE_OF, bracket, split_tokens
from beamtree.data.listops.process import (
    Choice,
    ConditionedProcess,
    Law,
    Process,
    Tree,
    TreeRow,
    free_process,
)
from beamtree.data.listops.splits import LRA_HEADER, SPLITS, find_split
from beamtree.data.task import Example
from beamtree.errors import BeamtreeError
from beamtree.files.lines import write_lines


class ExpressionBits(Bits):
    """The random bits for one set of expressions, with uniform digits and operators."""

    def __init__(self, seed: int, name: str) -> None:
        super().__init__(f"beamtree listops {seed} {name}")
        # A byte below 250 gives a uniform digit, any byte a uniform operator; bytes are drawn 1024 at a time.
        self.digits = self._uniform(250, 10)
        self.operators = self._uniform(256, len(OPERATORS))

    def _uniform(self, kept: int, count: int) -> Iterator[int]:
        values = bytes(byte % count for byte in range(256))
        dropped = bytes(range(kept, 256))
        while True:
            yield from self.getrandbits(8192).to_bytes(1024, "little").translate(values, dropped)

    def shuffle(self, items: list[str]) -> None:
        for last in range(len(items) - 1, 0, -1):
            other = self.below(last + 1)
            items[last], items[other] = items[other], items[last]


def draw_expression(root: Choice[Tree], bits: ExpressionBits) -> tuple[int, str]:
    """Draw (value, expression with the published brackets)."""
    getrandbits, digits, operators = bits.getrandbits, bits.digits, bits.operators
    node = root.draw(getrandbits)
    if node is None:
        digit = next(digits)
        return digit, DIGITS[digit]
    enclosing: list[tuple[str, list[int], list[str], TreeRow | None]] = []
    operator, values, texts = OPERATORS[next(operators)], list[int](), list[str]()
    rest: TreeRow | None = node.draw(getrandbits)
    while True:
        while rest is not None:
            child, rest = rest.draw(getrandbits)
            if child is None:
                digit = next(digits)
                values.append(digit)
                texts.append(DIGITS[digit])
            else:
                enclosing.append((operator, values, texts, rest))
                operator, values, texts = OPERATORS[next(operators)], [], []
                rest = child.draw(getrandbits)
        value, text = VALUE_OF[operator](values), bracket(operator, texts)
        if not enclosing:
            return value, text
        operator, values, texts, rest = enclosing.pop()
        values.append(value)
        texts.append(text)


def draw_distinct(root: Choice[Tree], bits: ExpressionBits, count: int) -> Iterator[tuple[int, str]]:
    """Yield `count` different expressions in the order of their first draw; too few are a BeamtreeError."""
    seen: set[bytes] = set()
    repeated = 0  # draws in a row
    while len(seen) < count:
        value, text = draw_expression(root, bits)
        digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
        if digest not in seen:
            seen.add(digest)
            repeated = 0
            yield value, text
        elif (repeated := repeated + 1) > 1000 + 10 * len(seen):
            raise BeamtreeError(
                f"only {len(seen)} of {count} distinct expressions found: widen the condition"
            )


def sample_expressions(
    count: int,
    *,
    seed: int,
    max_depth: int = 20,
    max_args: int = 5,
    min_length: int = 1,
    max_length: int = 100,
    min_nesting: int = 0,
    max_nesting: int | None = None,
) -> list[Example]:
    """Draw `count` distinct expressions of the process; bounds of length and nesting are inclusive."""
    law = Law(Process(max_depth, max_args), max_length, min_nesting, max_nesting)
    root = ConditionedProcess(law).root(min_length, max_length)
    # Every condition has bits of its own: two conditions with one seed are independent.
    condition = (max_depth, max_args, min_length, max_length, min_nesting, law.max_nesting)
    bits = ExpressionBits(seed, f"sample {condition}")
    return [Example((split_tokens(text),), DIGITS[value]) for value, text in draw_distinct(root, bits, count)]


@dataclass(frozen=True)
class Draw:
    """One draw of distinct expressions, divided among files; bounds of lengths and nesting are inclusive."""

    files: Mapping[str, int]  # name -> lines
    process: Process
    lengths: tuple[int, int] | None = None  # None: the free process, shuffled
    nesting: tuple[int, int | None] = (0, None)
    lra_format: bool = False

    @property
    def count(self) -> int:
        return sum(self.files.values())


_BASE, _LRA = Process(max_depth=20, max_args=5), Process(max_depth=10, max_args=10)
DRAWS = (
    Draw({"train_d20s.tsv": 90_000, "test_d20s.tsv": 10_000}, _BASE),
    *(
        Draw({f"test_{low}_{low + 100}.tsv": 2000}, _BASE, (low + 1, low + 99))
        for low in range(200, 1000, 100)
    ),
    Draw({"test_ood_10arg.tsv": 2000}, Process(9, 10), (100, 1000)),
    Draw({"test_ood_15arg.tsv": 2000}, Process(9, 15), (100, 1000)),
    Draw({"test_iid_arg.tsv": 2000}, Process(9, 5), (100, 1000)),
    # The base process, given depth and length. (The published scripts draw dev and test with more operators,
    # probability 0.3 instead of 0.25, and max_depth 10; and train with max_depth 6, so nested up to 5.)
    Draw({"train_d6s.tsv": 100_000}, _BASE, (20, 100), (0, 6)),
    Draw({"dev_d7s.tsv": 2000}, _BASE, (20, 100), (7, 7)),
    Draw({"test_dg8s.tsv": 2000}, _BASE, (20, 100), (8, None)),
    *(
        Draw({f"basic_{part}.tsv": lines}, _LRA, (501, 1999), lra_format=True)
        for part, lines in (("test", 2000), ("val", 2000), ("train", 96_000))
    ),
)


def generate_listops(
    out: Path,
    *,
    seed: int,
    splits: Sequence[str] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    overwrite: bool = False,
) -> dict[str, Path]:
    """Draw the named splits, or all, write their files and return them by split.

    The bytes of a file depend only on its name and the seed. `progress` is called with a split, the lines
    done of its file, and their number in the end.
    """
    wanted = {name: find_split(name).file for name in (SPLITS if splits is None else splits)}
    if not overwrite:
        refuse_to_overwrite(out, sorted(wanted.values()))
    draws = [draw for draw in DRAWS if not draw.files.keys().isdisjoint(wanted.values())]
    for draw, root in _with_roots(draws):

        def report(done: int, draw: Draw = draw) -> None:
            for split, file in wanted.items():
                if progress is not None and file in draw.files:
                    progress(split, done * draw.files[file] // draw.count, draw.files[file])

        lines = _draw_lines(draw, root, seed, report)
        for file, count in draw.files.items():
            part: Iterable[str] = list(islice(lines, count)) if len(draw.files) > 1 else lines
            if file in wanted.values():
                write_lines(out / file, chain([LRA_HEADER], part) if draw.lra_format else part)
    return {split: out / file for split, file in wanted.items()}


def _with_roots(draws: Sequence[Draw]) -> Iterator[tuple[Draw, Choice[Tree]]]:
    """Yield each draw with its root choice; neighbours that differ only in length share one law."""
    for (process, nesting), group in groupby(draws, key=lambda draw: (draw.process, draw.nesting)):
        same = list(group)
        longest = max(draw.lengths[1] if draw.lengths else 1 for draw in same)
        conditioned = ConditionedProcess(Law(process, longest, *nesting))
        for draw in same:
            yield draw, conditioned.root(*draw.lengths) if draw.lengths else free_process(process)


def _draw_lines(draw: Draw, root: Choice[Tree], seed: int, report: Callable[[int], None]) -> Iterator[str]:
    bits = ExpressionBits(seed, " ".join(draw.files))

    def in_order() -> Iterator[str]:
        report(0)
        for done, (value, text) in enumerate(draw_distinct(root, bits, draw.count), start=1):
            if done % 500 == 0 or done == draw.count:
                report(done)
            yield f"{text}\t{value}" if draw.lra_format else f"{value}\t{text}"

    if draw.lengths is not None:
        return in_order()
    # Short expressions come early, as each is new only once: shuffled, all files have as many.
    shuffled = list(in_order())
    bits.shuffle(shuffled)
    return iter(shuffled)
