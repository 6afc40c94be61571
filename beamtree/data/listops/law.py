"""The joint law of length and nesting of a random ListOps expression, in whole numbers.

P_D(1) = 3/4 and P_D(L) = 1/4 · mean over a = 2..max_args of (P_{D+1})^{*a}(L − 2) for a root at depth D; at
max_depth there are digits only. Nesting is carried along by keeping the laws of shallow and deep trees apart.

Probabilities are counted in units of 2^−precision, and every division rounds down, so the tables are the same
on every machine. How far is a draw from the exact law, in total variation, for up to 4096 tokens?
- One level up multiplies the rounding error by at most (max_args + 2) / 8, which the guard bits of
  `precision` absorb: an entry is below its exact value by less than 2^−190.
- An entry of at least 2^−120 is hence right to a factor 1 − 2^−70; an expression takes fewer than 2^13
  decisions, which makes 2^−57 together.
- Smaller entries may be wrong or zero, but are hardly ever met: with fewer than 2^22 entries, 2^12 places to
  meet one, and a condition of probability at least 2^−30 (rarer ones are refused), in all below 2^−56.
- The thresholds of a decision between fewer than 2^13 options are cut to 2^−90: below 2^−64 together.
The sum is below 2^−55, under 3e−17.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from beamtree.errors import BeamtreeError

# Trees and rows of sibling trees: of any nesting; nested less than asked for; nested at least as asked for
# (a row: at least one of its trees). None nests deeper than allowed.
ANY, SHALLOW, DEEP = "any", "shallow", "deep"


@dataclass(frozen=True)
class Process:
    """The process: an operator with probability 1/4, of 2 to max_args arguments, uniformly."""

    max_depth: int
    max_args: int


class Law:
    """The probability of L tokens: `trees[D][kind][L]` of a tree, `rows[D][kind][a][L]` of a siblings."""

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

    def __str__(self) -> str:
        return (
            f"the process of max_depth {self.process.max_depth} and max_args {self.process.max_args} nests "
            f"{self.min_nesting} to {self.max_nesting} deep and has up to {self.max_length} tokens"
        )

    def kind(self, depth: int) -> str:
        """The kind that is wanted of a tree or row at `depth` that alone answers for the nesting."""
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
        """The law of a tree and then a row, Σ_l tree(l) · row(L − l), by one product of two long integers."""
        slot = 2 * self.precision // 8 + 1  # bytes: the sum of products of probabilities is at most 1
        product = _pack(tree, slot) * _pack(row, slot)
        packed = product.to_bytes(slot * (len(tree) + len(row)), "little")
        sums = (packed[start : start + slot] for start in range(0, slot * len(row), slot))
        return [int.from_bytes(digits, "little") >> self.precision for digits in sums]


def _pack(values: Sequence[int], slot: int) -> int:
    return int.from_bytes(b"".join(value.to_bytes(slot, "little") for value in values), "little")
