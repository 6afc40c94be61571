"""Distinct random ListOps expressions, the same for the same seed on every platform."""

import hashlib
import random
from collections.abc import Iterator

from beamtree.data.listops.language import DIGITS, OPERATORS, VALUE_OF, bracket, split_tokens
from beamtree.data.listops.law import Law, Process
from beamtree.data.listops.process import Choice, ConditionedProcess, Row, Tree
from beamtree.data.task import Example
from beamtree.errors import BeamtreeError


class BitStream:
    """The random bits of one set: Mersenne Twister words, the same on every platform and Python version."""

    def __init__(self, seed: int, name: str) -> None:
        key = hashlib.sha256(f"beamtree listops {seed} {name}".encode()).digest()
        self.getrandbits = random.Random(int.from_bytes(key, "big")).getrandbits
        # A byte below 250 is a uniform digit and any byte a uniform operator, so both come 1024 at a time.
        self.digits = self._uniform(250, 10)
        self.operators = self._uniform(256, len(OPERATORS))

    def _uniform(self, kept: int, count: int) -> Iterator[int]:
        values = bytes(byte % count for byte in range(256))
        dropped = bytes(range(kept, 256))
        while True:
            yield from self.getrandbits(8192).to_bytes(1024, "little").translate(values, dropped)

    def shuffle(self, items: list[str]) -> None:
        for last in range(len(items) - 1, 0, -1):
            while (other := self.getrandbits(last.bit_length())) > last:
                pass
            items[last], items[other] = items[other], items[last]


def draw_expression(root: Choice[Tree], bits: BitStream) -> tuple[int, str]:
    """(value, expression in the published brackets)."""
    getrandbits, digits, operators = bits.getrandbits, bits.digits, bits.operators
    node = root.draw(getrandbits)
    if node is None:
        digit = next(digits)
        return digit, DIGITS[digit]
    enclosing: list[tuple[str, list[int], list[str], Row | None]] = []
    operator, values, texts = OPERATORS[next(operators)], list[int](), list[str]()
    rest: Row | None = node.draw(getrandbits)
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


def draw_distinct(root: Choice[Tree], bits: BitStream, count: int) -> Iterator[tuple[int, str]]:
    """`count` different expressions in the order of their first draw; BeamtreeError if they are too few."""
    seen: set[bytes] = set()
    in_vain = 0
    while len(seen) < count:
        value, text = draw_expression(root, bits)
        digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
        if digest not in seen:
            seen.add(digest)
            in_vain = 0
            yield value, text
        elif (in_vain := in_vain + 1) > 1000 + 10 * len(seen):
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
    """`count` distinct expressions of the process; bounds of length and nesting are included."""
    law = Law(Process(max_depth, max_args), max_length, min_nesting, max_nesting)
    root = ConditionedProcess(law).root(min_length, max_length)
    # Its own bits for every condition, so that two calls with one seed are independent.
    condition = (max_depth, max_args, min_length, max_length, min_nesting, law.max_nesting)
    bits = BitStream(seed, f"sample {condition}")
    return [Example((split_tokens(text),), DIGITS[value]) for value, text in draw_distinct(root, bits, count)]
