"""Draws a tree in box characters for the terminal.

Tokens are in a row if they fit, else one per line with the root on the left. Both are the same drawing,
turned or not, on a grid of levels (0 is the root's) by places along the tokens.
"""

import shutil
import textwrap
import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from beamtree.printable import printable

ROOTWARD, LEAFWARD, BEFORE, AFTER = 1, 2, 4, 8
UPRIGHT = " ╵╷│╴┘┐┤╶└┌├─┴┬┼"  # indexed by the sum of the directions in which a cell's lines go
SIDEWAYS = " ╴╶─╵┘└┴╷┐┌┬│┤├┼"
TOKEN_GAP = 2
LEVEL_COLUMNS = 3
LEAST_COLUMNS = 8
_NO_COLUMN = ("Mn", "Me", "Cf")  # combining marks and joiners take no column


class PlainTree(NamedTuple):
    """One tree in plain Python types; the node made at step t has the id len(tokens) + t."""

    tokens: list[str]
    spans: list[tuple[int, int]]
    children: list[tuple[int, int]]
    heights: list[int]


def draw_in_terminal(tree: PlainTree, width: int | None = None) -> str:
    """Draw the tree at most `width` columns wide (but at least 18); levels that do not fit share columns."""
    if width is None:
        width = shutil.get_terminal_size().columns
    labels = [clip_label(token, max(LEAST_COLUMNS, width // 2 - 1)) for token in tree.tokens]
    if len(labels) == 1:
        return labels[0]
    if sum(map(count_columns, labels)) + TOKEN_GAP * (len(labels) - 1) <= width:
        return _draw_upright(tree, labels)
    return _draw_sideways(tree, labels, width)


def _draw_upright(tree: PlainTree, labels: list[str]) -> str:
    middles, column = [], 0
    for label in labels:
        columns = count_columns(label)
        middles.append(column + (columns - 1) // 2)
        column += columns + TOKEN_GAP
    grid = _draw_grid(tree, middles, column, tree.heights[-1])
    rows = ["".join(UPRIGHT[cell] for cell in level).rstrip() for level in grid[:-1]]
    return "\n".join([*rows, (" " * TOKEN_GAP).join(labels)])


def _draw_sideways(tree: PlainTree, labels: list[str], width: int) -> str:
    height = tree.heights[-1]
    room = max(LEAST_COLUMNS, width - max(map(count_columns, labels)) - len("─ "))
    columns = min(room // height, LEVEL_COLUMNS) * height or room
    grid = _draw_grid(tree, range(len(labels)), len(labels), columns)
    rows = [
        "".join(SIDEWAYS[level[place]] for level in grid[:-1]) + f"─ {label}"
        for place, label in enumerate(labels)
    ]
    if columns < height:
        note = f"({height} levels in {columns} columns: nodes in one column are drawn as one)"
        rows += textwrap.wrap(note, max(width, 2 * LEAST_COLUMNS))
    return "\n".join(rows)


def _draw_grid(tree: PlainTree, leaf_places: Sequence[int], width: int, depth: int) -> list[bytearray]:
    """Return the cells [level][place], each a sum of directions; leaves are at level `depth`."""
    top = tree.heights[-1]
    levels = [depth] * len(leaf_places) + [(top - height) * depth // top for height in tree.heights]
    places = place_nodes(leaf_places, tree.children)
    grid = [bytearray(width) for _ in range(depth + 1)]
    # Only the ends of crossbars are marked, and all are filled in one sweep: their total length can be n².
    bars = [[0] * width for _ in range(depth + 1)]
    for level, (left, right) in zip(levels[len(leaf_places) :], tree.children, strict=True):
        bars[level][places[left]] += 1
        bars[level][places[right]] -= 1
        for child in (left, right):
            for below in range(level, levels[child]):
                grid[below][places[child]] |= LEAFWARD
                grid[below + 1][places[child]] |= ROOTWARD
    grid[0][places[-1]] |= ROOTWARD
    for cells, marks in zip(grid, bars, strict=True):
        covering = 0
        for place, mark in enumerate(marks):
            covering += mark
            if covering:
                cells[place] |= AFTER
                cells[place + 1] |= BEFORE
    return grid


def place_nodes(leaf_places: Sequence[int], children: Sequence[tuple[int, int]]) -> list[int]:
    """Return the place of each leaf and node along the tokens; a node is midway between its children."""
    places = list(leaf_places)
    for left, right in children:
        places.append((places[left] + places[right]) // 2)
    return places


def clip_label(token: str, columns: int) -> str:
    """Return the token in printable form, shortened with … if it takes more than `columns` columns."""
    label = printable(token)
    if label.isascii():
        return label if len(label) <= columns else label[: columns - 1] + "…"
    ends = list(accumulate(map(count_columns, label)))
    if ends[-1] <= columns:
        return label
    return label[: bisect_right(ends, columns - 1)] + "…"


def count_columns(text: str) -> int:
    """Count the columns a text takes in a fixed-width font: wide characters two, combining marks none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.category(c) in _NO_COLUMN else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )
