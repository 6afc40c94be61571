"""The random process of ListOps, free or given length and nesting, as a graph of choices.

An operator chooses a row of arguments; a row chooses its first tree and the rest of the row; a tree is an
operator, or None for a digit. A draw walks down the graph and never goes back: nothing is rejected.
Conditions enter through `Law`, the joint distribution of length and nesting in whole numbers.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from operator import mul
from typing import Generic, TypeAlias, TypeVar

from beamtree.errors import BeamtreeError

DECISION_BITS = 90
TABLE_LENGTH = 64  # longest row, in tokens, that keeps a table of all its options
BLOCK = 16  # lengths summed at a time in a longer row

# Kinds of trees and of rows of sibling trees: of any nesting; nested less than required; nested as required
# or more (in a row: at least one of its trees). None nests deeper than allowed.
ANY, SHALLOW, DEEP = "any", "shallow", "deep"


@dataclass(frozen=True)
class Process:
    """The process: with probability 1/4 an operator, with 2 to max_args arguments (uniform), else a digit."""

    max_depth: int
    max_args: int


class Law:
    """The probability of L tokens: `trees[D][kind][L]` for a tree, `rows[D][kind][a][L]` for `a` siblings.

    For a root at depth D, P_D(1) = 3/4 and P_D(L) = 1/4 · mean over a = 2..max_args of (P_{D+1})^{*a}(L − 2);
    at max_depth there are only digits. Nesting is tracked by separate tables for shallow and deep trees.

    Probabilities are counted in units of 2^−precision, and every division rounds down, so the tables are the
    same on every machine. How far is a draw from the exact law, in total variation, for up to 4096 tokens?
    - Each level multiplies the rounding error by at most (max_args + 2) / 8, which the guard bits of
      `precision` absorb: an entry is less than 2^−190 below its exact value.
    - So an entry of at least 2^−120 is right up to a factor 1 − 2^−70; an expression takes fewer than 2^13
      decisions, together 2^−57.
    - Smaller entries may be wrong or zero, but are hardly ever met: there are fewer than 2^22 entries, 2^12
      places to meet one, and a condition has probability at least 2^−30 (rarer ones are refused): together
      below 2^−56.
    - The thresholds of a decision between fewer than 2^13 options are cut to 2^−90: together below 2^−64.
    The sum is below 2^−55, under 3e−17.
    """

    def __init__(
        self, process: Process, max_length: int, min_nesting: int = 0, max_nesting: int | None = None
    ) -> None:
        deepest = process.max_depth - 1 if max_nesting is None else min(max_nesting, process.max_depth - 1)
        if process.max_depth < 1 or process.max_args < 2 or max_length < 1 or not 0 <= min_nesting <= deepest:
            raise BeamtreeError(
                "max_depth and max_length must be at least 1, max_args at least 2, min_nesting at least 0, "
                "at most max_nesting and below max_depth; "
                f"got {process}, {max_length=}, {min_nesting=}, {max_nesting=}"
            )
        self.process, self.max_length = process, max_length
        self.min_nesting, self.max_nesting = min_nesting, deepest
        self.precision = 200 + process.max_depth * ((process.max_args + 2) // 8).bit_length()
        self.trees: dict[int, dict[str, list[int]]] = {}
        self.rows: dict[int, dict[str, list[list[int]]]] = {}
        for depth in range(deepest + 1, 0, -1):
            self.trees[depth] = self._trees(depth)
            if depth > 1:
                self.rows[depth] = self._rows(depth)

    def kind(self, depth: int) -> str:
        """Return the kind needed of a tree or row at `depth` if no other can provide the nesting."""
        return DEEP if depth <= self.min_nesting else ANY

    def _trees(self, depth: int) -> dict[str, list[int]]:
        one = 1 << self.precision
        digit = one if depth == self.process.max_depth else 3 * one // 4
        kinds = {ANY: self._tree(depth, ANY, digit)}
        if self.kind(depth) == DEEP:
            kinds[DEEP] = self._tree(depth, self.kind(depth + 1), 0)
            kinds[SHALLOW] = self._tree(depth, SHALLOW, digit)
        return kinds

    def _tree(self, depth: int, kind_below: str, digit: int) -> list[int]:
        tree = [0] * (self.max_length + 1)
        tree[1] = digit
        rows = self.rows.get(depth + 1, {}).get(kind_below)
        if rows is not None:
            share = 4 * (self.process.max_args - 1)
            for length in range(4, len(tree)):
                tree[length] = sum(row[length - 2] for row in rows[2:]) // share
        return tree

    def _rows(self, depth: int) -> dict[str, list[list[int]]]:
        trees = self.trees[depth]
        nothing = [0] * max(1, self.max_length - 1)
        empty = [1 << self.precision, *nothing[1:]]
        rows = {kind: [nothing if kind == DEEP else empty] for kind in trees}
        for count in range(self.process.max_args):
            for kind, row in rows.items():
                if kind == DEEP:
                    now = self._join(trees[DEEP], rows[ANY][count])
                    later = self._join(trees[SHALLOW], rows[DEEP][count])
                    row.append([sum(pair) for pair in zip(now, later, strict=True)])
                else:
                    row.append(self._join(trees[kind], row[count]))
        return rows

    def _join(self, tree: Sequence[int], row: Sequence[int]) -> list[int]:
        """Return the law of a tree and then a row, Σ_l tree(l) · row(L − l), as one product of integers."""
        slot = 2 * self.precision // 8 + 1  # bytes: the sum of products of probabilities is at most 1
        product = _pack(tree, slot) * _pack(row, slot)
        packed = product.to_bytes(slot * (len(tree) + len(row)), "little")
        sums = (packed[start : start + slot] for start in range(0, slot * len(row), slot))
        return [int.from_bytes(digits, "little") >> self.precision for digits in sums]


def _pack(values: Sequence[int], slot: int) -> int:
    return int.from_bytes(b"".join(value.to_bytes(slot, "little") for value in values), "little")


GetBits = Callable[[int], int]


Operator: TypeAlias = "Choice[TreeRow]"
TreeRow: TypeAlias = "Choice[Parts] | LongRow"
Tree: TypeAlias = "Operator | None"
Parts: TypeAlias = "tuple[Tree, TreeRow | None]"  # the first tree of a row, and the rest
Option = TypeVar("Option", covariant=True)


class Choice(Generic[Option]):
    """A choice among options with whole-number weights, which `weigh` computes at the first draw."""

    __slots__ = ("_options", "_thresholds", "_weigh")

    def __init__(self, weigh: Callable[[], Iterable[tuple[int, Option]]]) -> None:
        self._weigh = weigh
        self._options: tuple[Option, ...] = ()

    def draw(self, getrandbits: GetBits) -> Option:
        if not self._options:
            weights, self._options = zip(*self._weigh(), strict=True)
            *sums, total = accumulate(weights)
            self._thresholds = [(part << DECISION_BITS) // total for part in sums]
        if not self._thresholds:
            return self._options[0]
        return self._options[bisect_right(self._thresholds, getrandbits(DECISION_BITS))]


def among(weighted: Iterable[tuple[int, Option]]) -> Choice[Option]:
    return Choice(lambda: weighted)


def free_process(process: Process) -> Choice[Tree]:
    """Return the root choice of the process without conditions."""
    trees: list[tuple[int, Tree]] = [(1, None)]
    for _ in range(process.max_depth - 1):
        rows: list[TreeRow | None] = [None]
        for _ in range(process.max_args):
            rows.append(among([(weight, (tree, rows[-1])) for weight, tree in trees]))
        trees = [(3, None), (1, among([(1, row) for row in rows[2:] if row is not None]))]
    return among(trees)


class ConditionedProcess:
    """The process given length and nesting: every choice has the weights that the law gives its options."""

    def __init__(self, law: Law) -> None:
        self.law = law
        self._operators: dict[tuple[int, str, int], Operator] = {}
        self._rows: dict[tuple[int, str, int, int], TreeRow] = {}

    def root(self, min_length: int, max_length: int) -> Choice[Tree]:
        """Return the choice of a whole expression of `min_length` to `max_length` tokens."""
        kind = self.law.kind(1)
        weighted = [
            (weight, self.tree(1, kind, length))
            for length, weight in enumerate(self.law.trees[1][kind])
            if weight and min_length <= length <= max_length
        ]
        law = self.law
        if sum(weight for weight, _ in weighted) >> (law.precision - 30) == 0:
            raise BeamtreeError(
                f"fewer than one expression in 2^30 has {min_length} to {max_length} tokens and is nested "
                f"{law.min_nesting} to {law.max_nesting} deep, with {law.process}"
            )
        return among(weighted)

    def tree(self, depth: int, kind: str, length: int) -> Tree:
        """Return a tree of `length` tokens at `depth`; an operator chooses how many arguments share them."""
        if length == 1:
            return None
        key = (depth, kind, length)
        if key not in self._operators:
            self._operators[key] = Choice(partial(self._weigh_rows, *key))
        return self._operators[key]

    def row(self, depth: int, kind: str, count: int, length: int) -> TreeRow:
        """Return a row of `count` trees with `length` tokens in all; it chooses the share of the first."""
        key = (depth, kind, count, length)
        if key not in self._rows:
            shares = Shares(self, *key)
            short = count == 1 or length <= TABLE_LENGTH
            self._rows[key] = Choice(shares.weigh) if short else LongRow(shares)
        return self._rows[key]

    def _weigh_rows(self, depth: int, kind: str, length: int) -> Iterator[tuple[int, TreeRow]]:
        below, inside = depth + 1, length - 2
        kind = self.law.kind(below) if kind == DEEP else kind
        for count, row in enumerate(self.law.rows[below][kind]):
            if count >= 2 and row[inside]:
                yield row[inside], self.row(below, kind, count, inside)


@dataclass(frozen=True, slots=True)
class Shares:
    """How many of a row's tokens its first tree may take, with the weights."""

    process: ConditionedProcess
    depth: int
    kind: str
    count: int
    length: int

    def weigh(self) -> Iterator[tuple[int, Parts]]:
        for at, weight in enumerate(self.weights(self.all)):
            if weight:
                yield weight, self.parts(self.all, at)

    @property
    def all(self) -> range:
        most = self.length - self.count + 1
        return range(1 if self.count > 1 else most, most + 1)

    def _kinds(self) -> list[tuple[str, str]]:
        """Return the possible kinds of (the first tree, the rest)."""
        return [(DEEP, ANY), (SHALLOW, DEEP)] if self.kind == DEEP else [(self.kind, self.kind)]

    def weights(self, shares: range) -> list[int]:
        """Return the law of some shares, for the first pair of kinds, then for the second."""
        law = self.process.law
        rests = slice(self.length - shares[-1], self.length - shares[0] + 1)
        weights: list[int] = []
        for tree, rest in self._kinds():
            firsts = law.trees[self.depth][tree][shares[0] : shares[-1] + 1]
            weights += map(mul, firsts, reversed(law.rows[self.depth][rest][self.count - 1][rests]))
        return weights

    def parts(self, shares: range, at: int) -> Parts:
        """Return the first tree and the rest that have the weight at index `at` of `weights(shares)`."""
        (tree, rest), share = self._kinds()[at // len(shares)], shares[at % len(shares)]
        first = self.process.tree(self.depth, tree, share)
        if self.count == 1:
            return first, None
        return first, self.process.row(self.depth, rest, self.count - 1, self.length - share)


class LongRow:
    """A row whose table of all shares would be long and rarely used: it sums blocks of them when needed.

    The first tree mostly takes very few of the tokens or nearly all, so blocks go from both ends inwards.
    """

    __slots__ = ("_blocks", "_shares", "_sums", "_total")

    def __init__(self, shares: Shares) -> None:
        law = shares.process.law
        # The law of the row was rounded down, so this never exceeds the sum of all blocks.
        self._total = law.rows[shares.depth][shares.kind][shares.count][shares.length] << law.precision
        self._shares = shares
        self._blocks: list[range] = []
        self._sums = [0]

    def draw(self, getrandbits: GetBits) -> Parts:
        target = getrandbits(DECISION_BITS) * self._total >> DECISION_BITS
        while self._sums[-1] <= target:
            self._add_block()
        number = bisect_right(self._sums, target) - 1
        block = self._blocks[number]
        inside = list(accumulate(self._shares.weights(block)))
        return self._shares.parts(block, bisect_right(inside, target - self._sums[number]))

    def _add_block(self) -> None:
        rounds, second = divmod(len(self._blocks), 2)
        shares = self._shares.all
        left = shares[BLOCK * rounds : len(shares) - BLOCK * rounds]
        block = left[BLOCK:][-BLOCK:] if second else left[:BLOCK]
        self._blocks.append(block)
        self._sums.append(self._sums[-1] + sum(self._shares.weights(block)))
