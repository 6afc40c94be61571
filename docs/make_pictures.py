"""The pictures of these pages, drawn from what the shipped model does: `python docs/make_pictures.py`."""

import argparse
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

import torch

from beamtree import BeamTrees, load_model
from beamtree.explorer.animation import animate_search
from beamtree.explorer.answer import SearchRecord, record_search
from beamtree.explorer.view import make_view

MODEL = "listops-ebt-grc"
LONG = "[SM 4 [MAX 2 9 [MIN 4 7 ] 0 ] [MED 1 8 5 ] ]"
SHORT = "[MAX 2 9 [MIN 4 7 ] 0 ]"
POINTED_AT = 5  # the token of SHORT whose ancestors are shown

COLUMN, ROW, MARGIN, NAME = 62, 34, 26, 74
FONT = 'font-family="ui-monospace, SF Mono, Menlo, Consolas, DejaVu Sans Mono, monospace" font-size="13"'
STYLE = """
.paper { fill: #ffffff } text { fill: #1e293b } .quiet { fill: #64748b; font-size: 11px }
.bar { fill: #e2e8f0; stroke: #94a3b8 } .new { fill: #c7d2fe; stroke: #4f46e5 } .on { fill: #4f46e5 }
path { fill: none; stroke-width: 1.4 } .kept { stroke: #4f46e5; stroke-width: 2.2 } .lost { stroke: #cbd5e1 }
.dot { fill: #4f46e5 } .gone { fill: #cbd5e1 } .light { fill: #ffffff }
@media (prefers-color-scheme: dark) {
.paper { fill: #12161f } text { fill: #e5e9f0 } .quiet { fill: #94a3b8 }
.bar { fill: #273043; stroke: #55617a } .new { fill: #37357a; stroke: #a5b4fc } .on { fill: #a5b4fc }
.kept { stroke: #a5b4fc } .lost { stroke: #3b455a } .dot { fill: #a5b4fc } .gone { fill: #3b455a }
.light { fill: #12161f }
}
"""


class Searched(NamedTuple):
    tokens: list[str]
    record: SearchRecord
    trees: BeamTrees


def search(text: str) -> Searched:
    model = load_model(MODEL)
    tokens = list(model.task.tokenize(text))
    with torch.no_grad():
        x = model.embedding(torch.tensor([model.vocabulary.encode(tokens)]))
    record = record_search(model.encoder, x, model.encoder.beam_size)
    return Searched(tokens, record, record.beams.trees())


def picture(width: float, height: float, title: str, parts: Iterable[str]) -> str:
    return "\n".join(
        [
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width:g}" height="{height:g}" '
                f'viewBox="0 0 {width:g} {height:g}" {FONT}>'
            ),
            f"<title>{escape(title)}</title>\n<style>{STYLE}</style>",
            f'<rect class="paper" width="{width:g}" height="{height:g}" rx="12"/>',
            *parts,
            "</svg>\n",
        ]
    )


def write(x: float, y: float, text: str, kind: str = "", anchor: str = "middle") -> str:
    css = f' class="{kind}"' if kind else ""
    return f'<text{css} x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'


def bar(first: int, past: int, y: float, kind: str, label: str) -> Iterator[str]:
    """A node as wide as its tokens."""
    left, width = NAME + first * COLUMN + 3, (past - first) * COLUMN - 6
    yield f'<rect class="{kind}" x="{left}" y="{y:g}" width="{width}" height="22" rx="6"/>'
    yield write(left + width / 2, y + 15, label, "light" if kind == "on" else "")


def draw_merging(found: Searched) -> str:
    """The best tree merge by merge; between neighbours how probable their merge was."""
    tokens, record, n = found.tokens, found.record, len(found.tokens)
    merges = found.trees.merges[0, 0].tolist()
    probabilities = record.chosen_log_probability[0].exp().tolist()
    nodes = [(i, i + 1) for i in range(n)]
    parts, new = [], -1
    for step in range(n):
        y = MARGIN + 20 + step * ROW
        parts.append(write(MARGIN, y + 15, f"{n - step} left", "quiet", "start"))
        for place, (first, past) in enumerate(nodes):
            text = " ".join(tokens[first:past]) if past - first < 5 else f"{past - first} tokens"
            parts += bar(first, past, y, "new" if place == new else "bar", text)
        if step < n - 1:
            new = merges[step]
            (first, edge), (_, past) = nodes[new], nodes[new + 1]
            parts.append(f'<circle class="dot" cx="{NAME + edge * COLUMN}" cy="{y + 11:g}" r="5"/>')
            chance = write(NAME + n * COLUMN + 10, y + 15, f"{probabilities[step]:.2f}", "quiet", "start")
            parts.append(chance)
            nodes[new : new + 2] = [(first, past)]
    parts.insert(0, write(NAME + n * COLUMN + 10, MARGIN + 8, "probability", "quiet", "start"))
    size = (NAME + n * COLUMN + 96, MARGIN + 20 + n * ROW + MARGIN - 12)
    return picture(*size, f"{n - 1} merges make one node of {n} tokens", parts)


def draw_beams(found: Searched) -> str:
    """Every slot of every step: what survives to the end, and what was tried and dropped."""
    parent = found.record.parent.tolist()
    steps, K = found.record.parent.shape
    survives = set()
    for slot in found.record.final[: int(found.trees.alive[0].sum())].tolist():
        for step in reversed(range(steps)):
            survives.add((step, slot))
            slot = parent[step][slot]

    def place(step: int, slot: int) -> tuple[float, float]:
        return NAME + (step + 1) * 52, MARGIN + 24 + slot * 40

    lines, dots = [], []
    for step in range(steps):
        for slot, before in enumerate(parent[step]):
            if before < 0:
                continue
            kept = (step, slot) in survives
            x0, y0 = place(step - 1, before if step else 0)
            x1, y1 = place(step, slot)
            middle = (x0 + x1) / 2
            path = f"M{x0:g} {y0:g}C{middle:g} {y0:g} {middle:g} {y1:g} {x1:g} {y1:g}"
            lines.append((kept, f'<path class="{"kept" if kept else "lost"}" d="{path}"/>'))
            kind = "dot" if kept else "gone"
            dots.append(f'<circle class="{kind}" cx="{x1:g}" cy="{y1:g}" r="5"/>')
    start = place(-1, 0)
    dots.append(f'<circle class="dot" cx="{start[0]:g}" cy="{start[1]:g}" r="5"/>')
    right = place(steps - 1, 0)[0] + 16
    weights = {slot: found.trees.weights[0, rank] for rank, slot in enumerate(found.record.final.tolist())}
    words = [write(right, place(0, slot)[1] + 4, f"{w:.2f}", "", "start") for slot, w in weights.items()]
    words += [
        write(MARGIN - 6, place(0, slot)[1] + 4, f"beam {slot + 1}", "quiet", "start") for slot in range(K)
    ]
    below = place(0, K - 1)[1] + 34
    words += [write(place(step, 0)[0], below, str(step + 1), "quiet") for step in range(steps)]
    words += [write(right, MARGIN, "weight", "quiet", "start"), write(start[0], below, "merge", "quiet")]
    drawn = [line for _, line in sorted(lines)]  # those that survive on top
    size = (right + 60, below + MARGIN - 8)
    return picture(*size, f"{K} beams over {steps} merges", [*drawn, *dots, *words])


def draw_ancestors(found: Searched) -> str:
    """The best tree as bars by height; those over one token are what it attends to."""
    tokens, n = found.tokens, len(found.tokens)
    spans, heights = found.trees.spans[0, 0].tolist(), found.trees.heights[0, 0].tolist()
    top = max(heights)
    parts: list[str] = []
    for (first, past), height in zip(spans, heights, strict=True):
        over = first <= POINTED_AT < past
        text = f"ancestor, height {height}" if over and past - first > 2 else str(height)
        parts += bar(first, past, MARGIN + (top - height) * ROW, "new" if over else "bar", text)
    for i, token in enumerate(tokens):
        parts += bar(i, i + 1, MARGIN + top * ROW, "on" if i == POINTED_AT else "bar", token)
    title = f"The nodes above {tokens[POINTED_AT]!r}, the token that attends to them"
    return picture(NAME + n * COLUMN + MARGIN, MARGIN * 2 + top * ROW + 22, title, parts)


def draw_all() -> dict[str, str]:
    short, long = search(SHORT), search(LONG)
    view = make_view(load_model(MODEL), [LONG], name=MODEL)
    return {
        "search.svg": animate_search(view, view["sentences"][0]) + "\n",
        "merging.svg": draw_merging(short),
        "beams.svg": draw_beams(long),
        "ancestors.svg": draw_ancestors(short),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    here = Path(__file__).resolve().parent / "images"
    parser.add_argument("--out", type=Path, default=here, help="folder for the pictures")
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    for name, svg in draw_all().items():
        (folder / name).write_text(svg, encoding="utf-8")
        print(f"wrote {folder / name}")


if __name__ == "__main__":
    main()
