"""Gold trees of bracketed languages: an open item takes in what follows, one by one, until it is closed."""

from collections.abc import Collection, Sequence


def merges_by_brackets(tokens: Sequence[str], openers: Collection[str], closer: str) -> list[int]:
    """The n−1 merges of the tree that balanced brackets mean, leftmost first, as positions in the shrinking
    sequence.

    What stands left of the next token is always a row of open items: any other token merges into the last of
    them, and a closer makes it a whole, which merges into the one before.
    """
    merges: list[int] = []
    opened = 0
    for token in tokens:
        if token in openers:
            opened += 1
        elif opened:
            merges.append(opened - 1)
            if token == closer:
                opened -= 1
                if opened:
                    merges.append(opened - 1)
    return merges


def nesting(tokens: Sequence[str]) -> int:
    """How deep a bracketed text nests: the most brackets that are open at once."""
    depth = deepest = 0
    for token in tokens:
        if token[0] in "([":
            depth += 1
            deepest = max(deepest, depth)
        elif token in (")", "]"):
            depth -= 1
    return deepest
