"""The random process of ListOps as a graph of choices: free, or given length and nesting.

An operator chooses a row of arguments; a row chooses its first tree and the row that is left; a tree is an
operator, or None for a digit. A draw walks down the graph and never turns back: nothing is rejected.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from operator import mul
from typing import Generic, Protocol, TypeVar

from beamtree.data.listops.law import ANY, DEEP, SHALLOW, Law, Process
from beamtree.errors import BeamtreeError

DECISION_BITS = 90
TABLE_LENGTH = 64  # tokens of a row that keeps a table of all its options
BLOCK = 16  # lengths summed at a time in a longer row

GetBits = Callable[[int], int]


class Operator(Protocol):
    def draw(self, getrandbits: GetBits) -> "Row": ...


class Row(Protocol):
    def draw(self, getrandbits: GetBits) -> "Parts": ...


Tree = Operator | None
Parts = tuple[Tree, Row | None]  # the first tree of a row, and the rest
Option = TypeVar("Option", covariant=True)


class Choice(Generic[Option]):
    """One of several options by whole-number weights."""

    __slots__ = ("_options", "_thresholds")

    def __init__(self, weighted: Iterable[tuple[int, Option]]) -> None:
        weights, self._options = zip(*weighted, strict=True)
        *sums, total = accumulate(weights)
        self._thresholds = [(part << DECISION_BITS) // total for part in sums]

    def draw(self, getrandbits: GetBits) -> Option:
        if not self._thresholds:
            return self._options[0]
        return self._options[bisect_right(self._thresholds, getrandbits(DECISION_BITS))]


def free_process(process: Process) -> Choice[Tree]:
    """The process itself: a digit three times out of four, no operator at max_depth."""
    trees: list[tuple[int, Tree]] = [(1, None)]
    for _ in range(process.max_depth - 1):
        rows: list[Row | None] = [None]
        for _ in range(process.max_args):
            rows.append(Choice([(weight, (tree, rows[-1])) for weight, tree in trees]))
        trees = [(3, None), (1, Choice([(1, row) for row in rows[2:] if row is not None]))]
    return Choice(trees)


class ConditionedProcess:
    """The process given length and nesting: every choice weighs what the law says of its outcomes."""

    def __init__(self, law: Law) -> None:
        self.law = law
        self._operators: dict[tuple[int, str, int], ConditionedOperator] = {}
        self._rows: dict[tuple[int, str, int, int], ConditionedRow] = {}

    def root(self, min_length: int, max_length: int) -> Choice[Tree]:
        """The choice of a whole expression of so many tokens, both bounds included."""
        kind = self.law.kind(1)
        weighted = [
            (weight, self.tree(1, kind, length))
            for length, weight in enumerate(self.law.trees[1][kind])
            if weight and min_length <= length <= max_length
        ]
        if sum(weight for weight, _ in weighted) >> (self.law.precision - 30) == 0:
            raise BeamtreeError(
                f"fewer than one expression in 2^30 has {min_length} to {max_length} tokens where {self.law}"
            )
        return Choice(weighted)

    def tree(self, depth: int, kind: str, length: int) -> Tree:
        if length == 1:
            return None
        key = (depth, kind, length)
        if key not in self._operators:
            self._operators[key] = ConditionedOperator(self, *key)
        return self._operators[key]

    def row(self, depth: int, kind: str, count: int, length: int) -> Row:
        key = (depth, kind, count, length)
        if key not in self._rows:
            row = ConditionedRow if count == 1 or length <= TABLE_LENGTH else ConditionedLongRow
            self._rows[key] = row(self, *key)
        return self._rows[key]


class ConditionedOperator:
    """An operator at `depth` that takes `length` tokens in all: chooses how many arguments share them."""

    __slots__ = ("_choice", "depth", "kind", "length", "process")

    def __init__(self, process: ConditionedProcess, depth: int, kind: str, length: int) -> None:
        self.process, self.depth, self.kind, self.length = process, depth, kind, length
        self._choice: Choice[Row] | None = None

    def draw(self, getrandbits: GetBits) -> Row:
        if self._choice is None:
            self._choice = Choice(self._weighted_rows())
        return self._choice.draw(getrandbits)

    def _weighted_rows(self) -> Iterator[tuple[int, Row]]:
        law, depth, inside = self.process.law, self.depth + 1, self.length - 2
        kind = law.kind(depth) if self.kind == DEEP else self.kind
        for count, row in enumerate(law.rows[depth][kind]):
            if count >= 2 and row[inside]:
                yield row[inside], self.process.row(depth, kind, count, inside)


class ConditionedRow:
    """`count` sibling trees at `depth` that take `length` tokens together: chooses the first one's share."""

    __slots__ = ("_choice", "count", "depth", "kind", "length", "process")

    def __init__(self, process: ConditionedProcess, depth: int, kind: str, count: int, length: int) -> None:
        self.process, self.depth, self.kind, self.count, self.length = process, depth, kind, count, length
        self._choice: Choice[Parts] | None = None

    def draw(self, getrandbits: GetBits) -> Parts:
        if self._choice is None:
            shares = self._shares()
            weights = enumerate(self._weights(shares))
            self._choice = Choice((weight, self._parts(shares, at)) for at, weight in weights if weight)
        return self._choice.draw(getrandbits)

    def _shares(self) -> range:
        most = self.length - self.count + 1
        return range(1 if self.count > 1 else most, most + 1)

    def _kinds(self) -> list[tuple[str, str]]:
        """What the first tree and the rest may be."""
        return [(DEEP, ANY), (SHALLOW, DEEP)] if self.kind == DEEP else [(self.kind, self.kind)]

    def _weights(self, shares: range) -> list[int]:
        """The law of every share, for the first pair of kinds, then for the second."""
        law = self.process.law
        rests = slice(self.length - shares[-1], self.length - shares[0] + 1)
        weights: list[int] = []
        for tree, rest in self._kinds():
            firsts = law.trees[self.depth][tree][shares[0] : shares[-1] + 1]
            weights += map(mul, firsts, reversed(law.rows[self.depth][rest][self.count - 1][rests]))
        return weights

    def _parts(self, shares: range, at: int) -> Parts:
        """The first tree and the rest that have weight number `at`."""
        (tree, rest), share = self._kinds()[at // len(shares)], shares[at % len(shares)]
        first = self.process.tree(self.depth, tree, share)
        if self.count == 1:
            return first, None
        return first, self.process.row(self.depth, rest, self.count - 1, self.length - share)


class ConditionedLongRow(ConditionedRow):
    """The same where a table of all shares would be long and little used: sums blocks of them when needed.

    The first tree mostly takes very few of the tokens or nearly all, so blocks come from both ends inwards.
    """

    __slots__ = ("_blocks", "_sums")

    def __init__(self, process: ConditionedProcess, depth: int, kind: str, count: int, length: int) -> None:
        super().__init__(process, depth, kind, count, length)
        self._blocks: list[range] = []
        self._sums = [0]

    def draw(self, getrandbits: GetBits) -> Parts:
        law, sums = self.process.law, self._sums
        # The law of the row was rounded down: never more than the sum of all blocks.
        total = law.rows[self.depth][self.kind][self.count][self.length] << law.precision
        target = getrandbits(DECISION_BITS) * total >> DECISION_BITS
        while sums[-1] <= target:
            self._add_block()
        number = bisect_right(sums, target) - 1
        block = self._blocks[number]
        inside = list(accumulate(self._weights(block)))
        return self._parts(block, bisect_right(inside, target - sums[number]))

    def _add_block(self) -> None:
        rounds, second = divmod(len(self._blocks), 2)
        shares = self._shares()
        left = shares[BLOCK * rounds : len(shares) - BLOCK * rounds]
        block = left[BLOCK:][-BLOCK:] if second else left[:BLOCK]
        self._blocks.append(block)
        self._sums.append(self._sums[-1] + sum(self._weights(block)))
