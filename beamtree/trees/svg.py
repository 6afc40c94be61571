"""Draws a tree as a self-contained SVG picture: tokens in a row if they fit on a page, else one per line."""

import zlib
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import accumulate

from beamtree.trees.brackets import write_brackets
from beamtree.trees.drawing import PlainTree, clip_label, count_columns, place_nodes

CHARACTER = 8.4  # the advance of a fixed-width font at 14 px
TOKEN_GAP = 22
LINE = 22
LABEL_GAP = 12
LEVEL = 34
DEEPEST = 560  # a deeper tree has its levels moved closer together
WIDEST = 1280  # a wider row of tokens is drawn as one token per line instead
MARGIN = 28
TOP = MARGIN + LINE  # below the caption
CORNER = 9
LONGEST_LABEL = 28
LONGEST_HINT = 60
LONGEST_DESCRIPTION = 2000

FONT = 'font-family="ui-monospace, SF Mono, Menlo, Consolas, DejaVu Sans Mono, monospace" font-size="14"'
# Colours are repeated in the rules because many programs that show SVG files do not support CSS variables.
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


def draw_as_svg(tree: PlainTree, caption: str) -> str:
    """Return the picture of one tree; hovering over a node shows its step and tokens."""
    picture = Picture(tree.tokens, tree.children, tree.heights, caption)
    nodes = []
    for step in reversed(range(len(tree.children))):  # the root first, so that no line covers a node
        first, past = tree.spans[step]
        covered = clip_label(" ".join(tree.tokens[first : min(past, first + LONGEST_HINT)]), LONGEST_HINT)
        hint = f"merge {step + 1}, tokens {first} to {past - 1}: {covered}"
        nodes.append(f"<g><title>{escape(hint)}</title>{picture.draw_node(step)}</g>")
    brackets = write_brackets(tree.tokens, tree.spans)
    key = f"beamtree-{zlib.crc32((brackets + caption).encode(errors='replace')):08x}"
    return write_svg(
        picture.size,
        [
            f'<title id="{key}-title">Binary tree: {escape(caption)}</title>',
            f'<desc id="{key}-description">{escape(clip_label(brackets, LONGEST_DESCRIPTION))}</desc>',
            f"<style>{STYLE}</style>",
        ],
        [
            *nodes,
            f"<g {FONT}>",
            *picture.write_labels(),
            f'<text class="caption" x="{MARGIN}" y="{MARGIN}">{escape(caption)}</text>',
            "</g>",
        ],
        labelled_by=f"{key}-title {key}-description",
    )


def write_svg(
    size: tuple[int, int], head: Iterable[str], parts: Iterable[str], labelled_by: str | None = None
) -> str:
    """Return a complete SVG file: a background with these parts on it."""
    width, height = size
    look = f'class="beamtree" role="img" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    if labelled_by is not None:
        look += f' aria-labelledby="{labelled_by}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {look}>',
            *head,
            f'<rect class="paper" width="{width}" height="{height}" rx="12"/>',
            *parts,
            "</svg>",
        ]
    )


class Picture:
    """Lays out the leaves and nodes of a tree and draws them; the node made at step t has the id n + t.

    A position is a place along the tokens and a level, counted from the root's side to the leaves. `room` is
    the number of levels to leave free above the root.
    """

    def __init__(
        self,
        tokens: Sequence[str],
        children: Sequence[tuple[int, int]],
        heights: Sequence[int],
        caption: str,
        *,
        room: int = 0,
    ) -> None:
        self.tokens = tokens
        self.labels = [clip_label(token, LONGEST_LABEL) for token in tokens]
        self.children, self.heights = children, [*[0] * len(tokens), *heights]
        top = max(self.heights) + room
        self.depth = min(LEVEL * top, DEEPEST)
        self._unit = self.depth / max(1, top)
        widths = [round(count_columns(label) * CHARACTER) for label in self.labels]
        row_width = sum(widths) + TOKEN_GAP * (len(widths) - 1)
        self.upright = row_width <= WIDEST
        if self.upright:
            starts = accumulate((width + TOKEN_GAP for width in widths[:-1]), initial=MARGIN)
            leaf_places = [start + width // 2 for start, width in zip(starts, widths, strict=True)]
            widest = max(row_width, round(len(caption) * CHARACTER))
            self.size = (widest + 2 * MARGIN, TOP + self.depth + LINE + MARGIN)
        else:
            leaf_places = [TOP + LINE * line for line in range(len(widths))]
            self.size = (self.depth + LABEL_GAP + max(widths) + 2 * MARGIN, leaf_places[-1] + MARGIN)
        self.places = place_nodes(leaf_places, children)

    def level(self, height: int) -> float:
        return self.depth - self._unit * height

    def point(self, place: float, level: float) -> tuple[float, float]:
        x, y = (place, TOP + level) if self.upright else (MARGIN + level, place)
        return round(x, 1), round(y, 1)

    def draw_node(self, step: int) -> str:
        node = len(self.tokens) + step
        height = self.heights[node]
        x, y = self.point(self.places[node], self.level(height))
        return f'{self.draw_bracket(*self.children[step], height)}<circle cx="{x:g}" cy="{y:g}" r="4"/>'

    def draw_bracket(self, left: int, right: int, height: int) -> str:
        """Draw the line from one child up, across and down to the other, with round corners."""
        start, end, level = self.places[left], self.places[right], self.level(height)
        from_left, from_right = self.level(self.heights[left]), self.level(self.heights[right])
        half = (end - start) // 2
        reach_left = min(CORNER, half, from_left - level)
        reach_right = min(CORNER, end - start - half, from_right - level)

        def at(place: float, level: float) -> str:
            x, y = self.point(place, level)
            return f"{x:g} {y:g}"

        return (
            f'<path d="M{at(start, from_left)}L{at(start, level + reach_left)}'
            f"Q{at(start, level)} {at(start + reach_left, level)}"
            f"L{at(end - reach_right, level)}"
            f'Q{at(end, level)} {at(end, level + reach_right)}L{at(end, from_right)}"/>'
        )

    def write_labels(self) -> Iterator[str]:
        for i, (token, label) in enumerate(zip(self.tokens, self.labels, strict=True)):
            if self.upright:
                where = f'x="{self.places[i]}" y="{TOP + self.depth + LINE}" text-anchor="middle"'
            else:
                where = f'x="{MARGIN + self.depth + LABEL_GAP}" y="{self.places[i] + 5}"'
            hint = f"<title>{escape(clip_label(token, LONGEST_DESCRIPTION))}</title>"
            yield f"<text {where}>{hint if label != token else ''}{escape(label)}</text>"
