"""Output formats of a record: a line of brackets or JSON, a drawing in a terminal, SVG, a row of a table."""

import csv
import io
import re
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from beamtree.classifier.parsing import Parsed, Record, SentenceTrees, Unparsed
from beamtree.data.task import Task
from beamtree.data.unlabelled import TextRow, Unlabelled
from beamtree.errors import BeamtreeError
from beamtree.explorer.animation import animate_search
from beamtree.explorer.pages import Viewed
from beamtree.printable import printable, write_json
from beamtree.trees.beam_trees import ScoredTree

_LINES_OF_A_TREE = r"[─│┌┐└┘├┤┬┴┼╵╷╴╶]+"
_GAP = 16  # between stacked pictures
_UNKNOWN_SHOWN = 10  # words
_NUMBER = re.compile(r"[+-]?\d+([.,]\d+)*%?")
_ENDS = re.compile(r"[\t\r\n]+")


def as_brackets(record: Record, *, beams: bool = False) -> str:
    """`label⇥probability⇥tree`, a tree for each sentence; an unreadable line is `error⇥⇥line N: why`.

    With `beams` its weight precedes every tree, and an empty column separates the two sentences of a pair.
    """
    if isinstance(record, Unparsed):
        return f"error\t\t{printable(str(record))}"
    columns = [printable(record.label), f"{record.probability:.6f}"]
    for number, sentence in enumerate(record.trees):
        if not beams:
            columns.append(sentence.brackets())
            continue
        columns += [""] if number else []
        for beam, tree in enumerate(sentence.alone().k_best()):
            columns += [f"{tree.weight:.6f}", sentence.brackets(beam)]
    return "\t".join(columns)


def as_json(record: Record, *, beams: bool = False) -> str:
    """A JSON object in one line: the prediction and, for each sentence, its best tree or all its trees.

    `left_out` counts the tokens in the middle of a long text that are not in its trees, nor in `tokens`.
    """
    if isinstance(record, Unparsed):
        failed = {"line": record.line, "text": record.text, "error": record.reason}
        return write_json(failed, ensure_ascii=False)
    content = {
        "line": record.line,
        "text": record.text,
        "label": record.label,
        "probability": record.probability,
        "unknown": list(record.unknown),
        "sentences": [
            {
                "tokens": list(sentence.tokens),
                "left_out": sentence.left_out,
                "trees": [
                    {
                        "weight": tree.weight,
                        "log_score": tree.log_score,
                        "brackets": sentence.brackets(beam),
                        "merges": tree.merges,
                    }
                    for beam, tree in enumerate(_shown(sentence, beams))
                ],
            }
            for sentence in record.trees
        ],
    }
    return write_json(content, ensure_ascii=False)


def as_line(record: Record, format: str, *, beams: bool = False) -> str:
    return as_json(record, beams=beams) if format == "json" else as_brackets(record, beams=beams)


def as_text(console: Console, record: Record, *, beams: bool = False) -> str:
    """The text that `print_text` prints on this console."""
    with console.capture() as drawn:
        print_text(console, record, beams=beams)
    return drawn.get().rstrip("\n") + "\n"


def print_text(console: Console, record: Record, *, beams: bool = False) -> None:
    """Print the prediction and draw the tree; with `beams` all trees, equal ones drawn once."""

    def say(*parts: tuple[str, str]) -> None:
        console.print(Text.assemble(*((printable(text), style) for text, style in parts)), soft_wrap=True)

    say((record.text.replace("\t", "   "), "bold"))
    if isinstance(record, Unparsed):
        say(("cannot be read: ", "red"), (str(record), ""))
        console.print()
        return
    say(
        ("→ ", "bright_black"), (record.label, "bold green"), (f"   probability {record.probability:.1%}", "")
    )
    if record.unknown:
        more = " …" if len(record.unknown) > _UNKNOWN_SHOWN else ""
        say((f"unknown to the model: {' '.join(record.unknown[:_UNKNOWN_SHOWN])}{more}", "yellow"))
    for number, sentence in enumerate(record.trees, start=1):
        alone, drawn = sentence.alone(), dict[frozenset[tuple[int, int]], int]()
        for beam, tree in enumerate(_shown(sentence, beams)):
            console.print()
            heading = [f"sentence {number}"] if len(record.trees) > 1 else []
            if beams:
                scores = f"weight {tree.weight:.3f}  log-score {tree.log_score:.3f}"
                heading.append(f"beam {beam + 1}  {scores}")
            if heading:
                say(("  ".join(heading), "cyan"))
            if sentence.left_out and not drawn:
                say((f"{sentence.left_out} tokens in the middle are not in the tree", "yellow"))
            spans = frozenset(alone.span_sets(0, beam))
            if spans in drawn:
                say((f"the tree of beam {drawn[spans]}, merged in another order", "italic"))
                continue
            drawn[spans] = beam + 1
            picture = Text(alone.draw(sentence.tokens, 0, beam, width=console.width))
            picture.highlight_regex(_LINES_OF_A_TREE, "bright_black")
            console.print(picture, soft_wrap=True)
    if not record.trees:
        say(("this encoder builds no tree", "italic"))
    console.print()


def as_svg(record: Record, *, beams: bool = False) -> str:
    """One picture, with the sentences of a pair, and with `beams` all trees, below each other."""
    if isinstance(record, Unparsed):
        raise BeamtreeError(f"nothing to draw: {record}")
    pictures = [
        sentence.alone().svg(sentence.tokens, 0, beam)
        for sentence in record.trees
        for beam in range(len(_shown(sentence, beams)))
    ]
    if not pictures:
        raise BeamtreeError("nothing to draw: this encoder builds no tree")
    return stack(pictures)


def as_animation(record: Viewed | Unparsed) -> str:
    """The search of each sentence, merge by merge."""
    if isinstance(record, Unparsed):
        raise BeamtreeError(f"nothing to draw: {record}")
    return stack([animate_search(record.view, sentence) for sentence in record.view["sentences"]])


def stack(pictures: list[str]) -> str:
    """Combine SVG pictures into one, below each other."""
    if len(pictures) == 1:
        return pictures[0]
    placed, widest, bottom = [], 0, 0
    for picture in pictures:
        width, height = _size(picture)
        placed.append(picture.replace("<svg ", f'<svg y="{bottom}" ', 1))
        widest, bottom = max(widest, width), bottom + height + _GAP
    size = f'width="{widest}" height="{bottom - _GAP}" viewBox="0 0 {widest} {bottom - _GAP}"'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', *placed, "</svg>"])


def _shown(sentence: SentenceTrees, beams: bool) -> list[ScoredTree]:
    return sentence.alone().k_best()[: None if beams else 1]


def _size(picture: str) -> tuple[int, int]:
    width, height = re.findall(r'(?:width|height)="(\d+)"', picture)[:2]
    return int(width), int(height)


class PredictionTable:
    """Predictions as rows of a csv, tsv or jsonl file: id or texts, label, probabilities, trees if wanted."""

    def __init__(self, task: Task, source: Unlabelled, kind: str, trees: bool) -> None:
        self.labels, self.kind, self.with_id = task.labels, kind, source.id is not None
        pair = task.sentences > 1
        texts = list(source.texts) or (["text1", "text2"] if pair else ["text"])
        self.names = ["id"] if self.with_id else texts
        self.trees = (["tree1", "tree2"] if pair else ["tree"]) if trees else []

    @property
    def header(self) -> str | None:
        """The first line; None for jsonl."""
        if self.kind == "jsonl":
            return None
        return self._line([*self.names, "label", *(f"p_{label}" for label in self.labels), *self.trees])

    def write(self, row: TextRow, record: Record) -> str:
        name = [row.id or ""] if self.with_id else row.line.split("\t", len(self.names) - 1)
        if self.kind == "jsonl":
            return self._json(dict(zip(self.names, name, strict=False)), record)
        name += [""] * (len(self.names) - len(name))
        if isinstance(record, Unparsed):
            return self._line([*name, *[""] * (1 + len(self.labels) + len(self.trees))])
        shares = [f"{share:.6f}" for share in record.probabilities]
        return self._line([*name, record.label, *shares, *self._drawn(record).values()])

    def _drawn(self, record: Parsed) -> dict[str, str]:
        return {name: found.brackets() for name, found in zip(self.trees, record.trees, strict=False)}

    def _json(self, named: dict[str, str], record: Record) -> str:
        if isinstance(record, Unparsed):
            return write_json({**named, "label": None, "error": str(record)}, ensure_ascii=False)
        shares = dict(zip(self.labels, record.probabilities, strict=True))
        told = {**named, "label": record.label, "probabilities": shares, **self._drawn(record)}
        return write_json(told, ensure_ascii=False)

    def _line(self, cells: Sequence[str]) -> str:
        if self.kind == "tsv":  # quotation marks are ordinary characters in it
            return "\t".join(map(harmless, cells))
        line = io.StringIO()
        csv.writer(line, lineterminator="").writerow(map(harmless, cells))
        return line.getvalue()


def harmless(cell: str) -> str:
    """Put a cell on one line, with an apostrophe in front if a spreadsheet would take it for a formula.

    Numbers, such as the label -1, stay as they are.
    """
    cell = _ENDS.sub(" ", cell).strip()
    return f"'{cell}" if cell[:1] in tuple("=+-@＝＋－＠") and not _NUMBER.fullmatch(cell) else cell
