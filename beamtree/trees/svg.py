"""A tree as a self-contained SVG picture: tokens in a row while they fit a page, else one a line."""

import zlib
from collections.abc import Iterator
from html import escape
from itertools import accumulate
from typing import NamedTuple

from beamtree.trees.brackets import write_brackets
from beamtree.trees.drawing import PlainTree, clip_label, count_columns, place_nodes

CHARACTER = 8.4  # the advance of a fixed-width font at 14 px
TOKEN_GAP = 22
LINE = 22
LABEL_GAP = 12
LEVEL = 34
DEEPEST = 560  # levels move closer together where the tree would grow beyond
WIDEST = 1280  # where tokens no longer stand in a row
MARGIN = 28
TOP = MARGIN + LINE  # below the caption
CORNER = 9
LONGEST_LABEL = 28
LONGEST_HINT = 60
LONGEST_DESCRIPTION = 2000

FONT = 'font-family="ui-monospace, SF Mono, Menlo, Consolas, DejaVu Sans Mono, monospace" font-size="14"'
# Colours stand in the rules themselves: many programs that show SVG files know no CSS variables.
STYLE = """
.beamtree .paper { fill: #ffffff }
.beamtree path { fill: none; stroke: #7f8ba3; stroke-width: 1.6px; stroke-linecap: round }
.beamtree circle { fill: #4f46e5; stroke: #ffffff; stroke-width: 1.5px }
.beamtree text { fill: #1e293b }
.beamtree .caption { fill: #64748b; font-size: 11px }
@media (prefers-color-scheme: dark) {
.beamtree .paper { fill: #12161f }
.beamtree path { stroke: #6b7690 }
.beamtree circle { fill: #a5b4fc; stroke: #12161f }
.beamtree text { fill: #e5e9f0 }
.beamtree .caption { fill: #94a3b8 }
}
.beamtree g:hover path { stroke: #d97706; stroke-width: 2.6px }
.beamtree g:hover circle { fill: #d97706 }
"""


class Layout(NamedTuple):
    upright: bool
    leaf_places: list[int]
    depth: int  # from the root to the leaves
    size: tuple[int, int]

    def point(self, place: float, level: float) -> str:
        x, y = (place, TOP + level) if self.upright else (MARGIN + level, place)
        return f"{round(x, 1):g} {round(y, 1):g}"


def draw_as_svg(tree: PlainTree, caption: str) -> str:
    """The picture of one tree; pointing at a node shows its step and tokens."""
    labels = [clip_label(token, LONGEST_LABEL) for token in tree.tokens]
    layout = lay_out(labels, max(tree.heights, default=0), caption)
    width, height = layout.size
    brackets = write_brackets(tree.tokens, tree.spans)
    key = f"beamtree-{zlib.crc32((brackets + caption).encode(errors='replace')):08x}"
    return "\n".join(
        [
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" class="beamtree" role="img" '
                f'width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
                f'aria-labelledby="{key}-title {key}-description">'
            ),
            f'<title id="{key}-title">Binary tree: {escape(caption)}</title>',
            f'<desc id="{key}-description">{escape(clip_label(brackets, LONGEST_DESCRIPTION))}</desc>',
            f"<style>{STYLE}</style>",
            f'<rect class="paper" width="{width}" height="{height}" rx="12"/>',
            *_draw_nodes(tree, layout),
            f"<g {FONT}>",
            *write_labels(tree.tokens, labels, layout),
            f'<text class="caption" x="{MARGIN}" y="{MARGIN}">{escape(caption)}</text>',
            "</g>",
            "</svg>",
        ]
    )


def lay_out(labels: list[str], height: int, caption: str) -> Layout:
    widths = [round(count_columns(label) * CHARACTER) for label in labels]
    row_width = sum(widths) + TOKEN_GAP * (len(labels) - 1)
    depth = min(LEVEL * height, DEEPEST)
    if row_width <= WIDEST:
        starts = accumulate((width + TOKEN_GAP for width in widths[:-1]), initial=MARGIN)
        leaf_places = [start + width // 2 for start, width in zip(starts, widths, strict=True)]
        widest = max(row_width, round(len(caption) * CHARACTER))
        return Layout(True, leaf_places, depth, (widest + 2 * MARGIN, TOP + depth + LINE + MARGIN))
    leaf_places = [TOP + LINE * line for line in range(len(labels))]
    size = (depth + LABEL_GAP + max(widths) + 2 * MARGIN, TOP + LINE * (len(labels) - 1) + MARGIN)
    return Layout(False, leaf_places, depth, size)


def _draw_nodes(tree: PlainTree, layout: Layout) -> Iterator[str]:
    n, top = len(tree.tokens), max(tree.heights, default=1)
    places = place_nodes(layout.leaf_places, tree.children)
    levels = [float(layout.depth)] * n + [layout.depth * (1 - height / top) for height in tree.heights]
    point = layout.point
    for step in reversed(range(n - 1)):  # the root first, so that no line lies over a node
        left, right = tree.children[step]
        start, middle, end, level = places[left], places[n + step], places[right], levels[n + step]
        path = draw_bracket(layout, (start, levels[left]), (end, levels[right]), level)
        x, y = point(middle, level).split()
        first, past = tree.spans[step]
        covered = clip_label(" ".join(tree.tokens[first : min(past, first + LONGEST_HINT)]), LONGEST_HINT)
        hint = f"merge {step + 1}, tokens {first} to {past - 1}: {covered}"
        yield f'<g><title>{escape(hint)}</title><path d="{path}"/><circle cx="{x}" cy="{y}" r="4"/></g>'


def draw_bracket(layout: Layout, left: tuple[float, float], right: tuple[float, float], level: float) -> str:
    """The path from one child up, over and down to the other, each a (place, level), with round corners."""
    point, (start, from_left), (end, from_right) = layout.point, left, right
    half = (end - start) // 2
    reach_left = min(CORNER, half, from_left - level)
    reach_right = min(CORNER, end - start - half, from_right - level)
    return (
        f"M{point(start, from_left)}L{point(start, level + reach_left)}"
        f"Q{point(start, level)} {point(start + reach_left, level)}"
        f"L{point(end - reach_right, level)}"
        f"Q{point(end, level)} {point(end, level + reach_right)}L{point(end, from_right)}"
    )


def write_labels(tokens: list[str], labels: list[str], layout: Layout) -> Iterator[str]:
    for token, label, place in zip(tokens, labels, layout.leaf_places, strict=True):
        if layout.upright:
            where = f'x="{place}" y="{TOP + layout.depth + LINE}" text-anchor="middle"'
        else:
            where = f'x="{MARGIN + layout.depth + LABEL_GAP}" y="{place + 5}"'
        whole = "" if label == token else f"<title>{escape(clip_label(token, LONGEST_DESCRIPTION))}</title>"
        yield f"<text {where}>{whole}{escape(label)}</text>"
