"""Draws a search as an animated SVG for slides and pages: the tree of the best beam grows merge by merge,
with the pairs it chose from; below it, all beams split and are dropped.

The animation is CSS: readers who prefer no motion, and programs that cannot animate, see the whole tree.
"""

import math
import zlib
from collections.abc import Iterator
from html import escape
from typing import Any, NamedTuple

from beamtree.errors import BeamtreeError
from beamtree.trees.drawing import clip_label
from beamtree.trees.svg import FONT, MARGIN, Picture, write_svg
from beamtree.trees.svg import STYLE as TREE_STYLE

MOST_TOKENS = 100
SECONDS = 1.4  # per merge
REST = 3  # at the end the whole tree is shown for the time of this many merges
RANK = 12  # pixels between beams
SHOWN_PAIRS = 3  # the likeliest at each step
CAPTION = 34  # characters of a part in a caption

STYLE = """
.beamtree .value { fill: #4f46e5; font-size: 12px; font-weight: bold }
.beamtree .value.guessed { fill: #64748b; font-weight: normal }
.beamtree .pair path { stroke: #94a3b8; stroke-dasharray: 4 4 }
.beamtree .pair.chosen path { stroke: #d97706; stroke-width: 2.4px }
.beamtree .pair text { fill: #64748b; font-size: 11px }
.beamtree .pair.chosen text { fill: #b45309; font-weight: bold }
.beamtree .lost { stroke: #cbd5e1 }
.beamtree .kept { stroke: #7f8ba3 }
.beamtree .best { stroke: #4f46e5; stroke-width: 2.4px }
.beamtree .now { stroke: #d97706 }
.beamtree .passing { opacity: 0 }
@media (prefers-color-scheme: dark) {
.beamtree .value { fill: #a5b4fc }
.beamtree .value.guessed, .beamtree .pair text { fill: #94a3b8 }
.beamtree .pair.chosen text { fill: #fbbf24 }
.beamtree .lost { stroke: #3b455a }
.beamtree .best { stroke: #a5b4fc }
}
@media (prefers-reduced-motion: reduce) { .beamtree * { animation: none !important } }
"""


class AnimatedStep(NamedTuple):
    """One merge of the best beam: its parts in a row, the share of every pair, and the pair it chose."""

    row: list[int]  # ids: i for leaf i, n + t for the node of step t
    shares: list[float]
    position: int


def animate_search(view: dict[str, Any], sentence: dict[str, Any]) -> str:
    """Return the SVG of the search of one sentence of a view."""
    tokens, search = sentence["tokens"], sentence["search"]
    if search is None:
        raise BeamtreeError(f"nothing to animate: {view['note']}")
    if len(tokens) > MOST_TOKENS:
        raise BeamtreeError(
            f"an animation shows at most {MOST_TOKENS} tokens, not {len(tokens)}: see --format html"
        )
    nodes = sentence["beams"][0]["nodes"]
    steps = list(_follow_best(sentence))
    captions = [*_captions(tokens, nodes, steps), _last_caption(view, sentence)]
    children = list(zip(nodes["left"], nodes["right"], strict=True))
    # Leave room for a pair above the highest node, and for the beams below the tokens.
    picture = Picture(tokens, children, nodes["height"], max(captions, key=len), room=1)
    width, bottom = picture.size
    clock = _Clock(f"a{zlib.crc32(sentence['text'].encode(errors='replace')):08x}", len(steps))
    shown = [write_text(MARGIN, MARGIN, caption, "caption") for caption in captions]
    title = f"The search for a tree, merge by merge: {clip_label(sentence['text'], 200)}"
    return write_svg(
        (width, bottom + RANK * (search["beam_size"] + 1)),
        [f"<title>{escape(title)}</title>", f"<style>{TREE_STYLE}{STYLE}{clock.rules()}</style>"],
        [
            *_draw_tree(picture, nodes, clock, view["model"]["labels"], sentence["texts_in"] or []),
            f"<g {FONT}>",
            *picture.write_labels(),
            *(clock.during(t, _draw_pairs(picture, step)) for t, step in enumerate(steps)),
            *(clock.during(t, caption) for t, caption in enumerate(shown[:-1])),
            clock.from_step(len(steps), shown[-1]),
            "</g>",
            *_draw_beams(search, clock, MARGIN, bottom, width - 2 * MARGIN),
        ],
    )


class _Clock:
    """Times when parts are visible: every step takes the same time, the end a longer one; then it repeats."""

    def __init__(self, key: str, steps: int) -> None:
        self.key, self.steps = key, steps
        self.duration = SECONDS * (steps + REST)

    def from_step(self, step: int, part: str) -> str:
        return f'<g class="{self.key}" style="animation-name: {self.key}-from{step}">{part}</g>'

    def during(self, step: int, part: str) -> str:
        return f'<g class="{self.key} passing" style="animation-name: {self.key}-in{step}">{part}</g>'

    def rules(self) -> str:
        key, whole = self.key, self.steps + REST

        def at(step: float) -> str:
            return f"{round(100 * step / whole, 1):g}%"

        end = f"{at(self.steps)}, to {{ transform: translateX(var(--way)) }}"
        frames = [
            f".{key} {{ animation: {self.duration:g}s step-end infinite }}",
            f"@keyframes {key}-along {{ from {{ transform: none }} {end} }}",
        ]
        for step in range(self.steps + 1):
            frames.append(
                f"@keyframes {key}-from{step} {{ from {{ opacity: {int(step == 0)} }} "
                f"{at(step)}, to {{ opacity: 1 }} }}"
            )
            frames.append(
                f"@keyframes {key}-in{step} {{ from {{ opacity: {int(step == 0)} }} "
                f"{at(step)} {{ opacity: 1 }} {at(step + 1)}, to {{ opacity: 0 }} }}"
            )
        return "\n".join(frames) + "\n"


def _draw_tree(
    picture: Picture, nodes: dict[str, Any], clock: _Clock, labels: list[str], texts: list[tuple[int, int]]
) -> Iterator[str]:
    n, known = len(picture.tokens), set(texts)
    for step in reversed(range(n - 1)):
        drawn = picture.draw_node(step)
        if nodes["label"] is not None:
            x, y = picture.point(picture.places[n + step], picture.level(picture.heights[n + step]))
            value = clip_label(labels[nodes["label"][step]], 12)
            kind = "value" if _span(nodes, step) in known else "value guessed"
            drawn += f"<g {FONT}>{write_text(x + 7, y - 4, value, kind)}</g>"
        yield clock.from_step(step + 1, drawn)


def _draw_pairs(picture: Picture, step: AnimatedStep) -> str:
    ranked = sorted(range(len(step.shares)), key=lambda i: -step.shares[i])[:SHOWN_PAIRS]
    drawn = []
    for i in [*(one for one in ranked if one != step.position), step.position]:
        left, right = step.row[i], step.row[i + 1]
        height = 1 + max(picture.heights[left], picture.heights[right])
        x, y = picture.point((picture.places[left] + picture.places[right]) // 2, picture.level(height))
        kind = "pair chosen" if i == step.position else "pair"
        share = write_text(x, y - 6, f"{step.shares[i]:.2f}", anchor="middle")
        drawn.append(f'<g class="{kind}">{picture.draw_bracket(left, right, height)}{share}</g>')
    return "".join(drawn)


def _follow_best(sentence: dict[str, Any]) -> Iterator[AnimatedStep]:
    """Replay the steps of the best beam from the slots it passed through, as docs/explorer.md describes."""
    n, search = len(sentence["tokens"]), sentence["search"]
    row, pairs = list(range(n)), list(search["leaf_scores"])
    for t, slot in enumerate(_slots(search, search["final"][0])):
        at, log_z = search["position"][t][slot], search["log_z"][t][slot]
        yield AnimatedStep(list(row), [math.exp(score - log_z) for score in pairs], at)
        row[at : at + 2] = [n + t]
        del pairs[at]
        if at > 0:
            pairs[at - 1] = search["left_score"][t][slot]
        if at < len(pairs):
            pairs[at] = search["right_score"][t][slot]


def _slots(search: dict[str, Any], slot: int) -> list[int]:
    """The slots that a beam passed through, found from its last one."""
    slots = []
    for t in reversed(range(search["steps"])):
        slots.append(slot)
        slot = search["parent"][t][slot]
    return slots[::-1]


def _captions(tokens: list[str], nodes: dict[str, Any], steps: list[AnimatedStep]) -> Iterator[str]:
    def words(node: int) -> str:
        start, end = (node, node + 1) if node < len(tokens) else _span(nodes, node - len(tokens))
        return clip_label(" ".join(tokens[start:end]), CAPTION)

    for t, step in enumerate(steps):
        left, right = step.row[step.position], step.row[step.position + 1]
        # A likelier pair of the same beam scores higher, so it is kept if this one is.
        elsewhere = step.shares[step.position] < max(step.shares)
        aside = " (another beam takes the likeliest pair)" if elsewhere else ""
        yield f"merge {t + 1} of {len(steps)}: {words(left)} + {words(right)}{aside}"


def _span(nodes: dict[str, Any], step: int) -> tuple[int, int]:
    return nodes["start"][step], nodes["end"][step]


def _last_caption(view: dict[str, Any], sentence: dict[str, Any]) -> str:
    trees = sum(beam["same_tree_as"] is None for beam in sentence["beams"])
    beams = len(sentence["beams"])
    found = f"{beams} beam{'s' if beams > 1 else ''}, {trees} tree{'s' if trees > 1 else ''}"
    return f"{found}; the answer is {clip_label(view['prediction']['label'], CAPTION)}"


def _draw_beams(
    search: dict[str, Any], clock: _Clock, left: float, top: float, width: float
) -> Iterator[str]:
    """Draw steps from left to right and beams by rank, as lines that fork and end."""
    steps, unit = search["steps"], width / max(1, search["steps"])
    ways = [set(enumerate(_slots(search, final))) for final in search["final"]]  # per beam: (step, slot)
    kept = set().union(*ways)
    paths: dict[str, list[str]] = {"lost": [], "kept": [], "best": []}
    for t in range(steps):
        for slot, parent in enumerate(search["parent"][t]):
            if parent < 0:
                continue
            x, end = left + t * unit, left + (t + 1) * unit
            y, below = top + RANK * (parent if t else 0), top + RANK * slot
            kind = "best" if (t, slot) in ways[0] else "kept" if (t, slot) in kept else "lost"
            turn = f"{(x + end) / 2:.1f}"
            paths[kind].append(f"M{x:.1f} {y:g}C{turn} {y:g} {turn} {below:g} {end:.1f} {below:g}")
    for kind, drawn in paths.items():
        if drawn:
            yield f'<path class="{kind}" d="{"".join(drawn)}"/>'
    if steps:
        bottom = top + RANK * (search["beam_size"] - 1) + 5
        yield (
            f'<path class="now" d="M{left} {top - 5:g}V{bottom:g}" style="--way: {width:g}px; '
            f"animation: {clock.duration:g}s linear infinite {clock.key}-along; "
            f'transform: translateX({width:g}px)"/>'
        )


def write_text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    css = f' class="{kind}"' if kind else ""
    return f'<text{css} x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'
