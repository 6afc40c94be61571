"""`beamtree predict MODEL FILE`: for each row of a file a label and the probability of every label."""

import csv
import io
import itertools
import re
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from beamtree.cli.conventions import (
    BatchTokens,
    Beam,
    Device,
    MaxLength,
    Model,
    Overwrite,
    Resume,
    Strict,
    open_model,
    say_torch_loads,
)
from beamtree.errors import BeamtreeError
from beamtree.printable import write_json

if TYPE_CHECKING:
    from beamtree.classifier.classifier import Classifier
    from beamtree.classifier.parsing import Record
    from beamtree.data.unlabelled import TextRow, Unlabelled


class Kind(StrEnum):
    csv = "csv"
    tsv = "tsv"
    jsonl = "jsonl"


_STANDARD = Path("-")
_NUMBER = re.compile(r"[+-]?\d+([.,]\d+)*%?")
_ENDS = re.compile(r"[\t\r\n]+")


def predict(
    model: Model,
    file: Annotated[
        Path,
        typer.Argument(
            help="A table like the one the model was trained on (.tsv, .csv or .jsonl; its label is not "
            "read), or one text per line; plain, .gz or .xz; - reads lines from standard input."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(help="File to write, .csv, .tsv or .jsonl; - is standard output."),
    ] = _STANDARD,
    text: Annotated[
        str,
        typer.Option(
            help="Column with the text, or both columns of a pair, separated by a comma.",
            show_default="as in training, or text, sentence, review; text1,text2 …",
        ),
    ] = "",
    id: Annotated[
        str,
        typer.Option(
            help="Column to write beside each prediction.", show_default="id if there is one, else the text"
        ),
    ] = "",
    trees: Annotated[bool, typer.Option("--trees", help="Write the best tree of each text too.")] = False,
    format: Annotated[
        Kind | None, typer.Option(help="Output format.", show_default="from the name of --out, or csv")
    ] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    strict: Strict = False,
    max_length: MaxLength = 10_000,
    batch_tokens: BatchTokens = 16384,
    beam: Beam = None,
    device: Device = "auto",
) -> None:
    """Label the rows of a file and write a table, one row for each, in order.

    A row has its id (or its text), the label, a column p_LABEL for every label and, with --trees, the tree. A
    row that cannot be read keeps its place with empty cells. Cells of a .csv or .tsv that a spreadsheet would
    take for a formula begin with an apostrophe. Files of any size are read row by row; an interrupted run
    continues with --resume, and torchrun or accelerate launch divides the rows among processes.
    """
    say_torch_loads()

    from beamtree.classifier.model_folder import find_model, model_checksum
    from beamtree.classifier.parsing import CHUNK_LINES, parse_lines, parse_stream
    from beamtree.cli.streaming import LineJob, Watch, run_and_tell, standard_input, survey
    from beamtree.data.unlabelled import Unlabelled, find_rows
    from beamtree.processes.launched import Processes

    kind = format or _kind_of(out)
    processes = Processes.from_environment()
    streamed = _STANDARD in (out, file)
    if streamed and (resume or processes.count > 1):
        what = "--resume" if resume else "dividing a file among processes"
        raise BeamtreeError(f"{what} needs a FILE and --out FILE")
    if streamed and out != _STANDARD:
        raise BeamtreeError("rows of standard input go to standard output: leave out --out")
    classifier = open_model(model, device, beam, processes.local_rank)
    if trees and not classifier.builds_trees:
        raise BeamtreeError(
            f"--trees does not apply: the encoder {classifier.settings.title!r} builds no tree"
        )
    if file == _STANDARD:
        source, read, watch = Unlabelled(file), standard_input, Watch("standard input", strict)
    else:
        source = find_rows(file, classifier.task, text=text, id=id)
        read, watch = source.read, Watch(str(file), strict)
    table = _Table(classifier, source, kind, trees)
    settings: dict[str, Any] = {"batch_tokens": batch_tokens, "max_length": max_length}
    if streamed:
        heading = table.header  # with the first row: a file that cannot be read leaves nothing
        rows, again = itertools.tee(read())  # a chunk of them is in memory at most
        records = watch(parse_stream(classifier, rows, need_trees=trees, **settings))
        for row, record in zip(again, records, strict=False):
            for line in (*heading, table.write(row, record)):
                typer.echo(line)
            heading = []
    else:
        made_of = {
            "model": model_checksum(find_model(model)),
            "format": kind.value,
            "columns": [source.id, *source.texts],
            "trees": trees,
            "beam": beam,
            **settings,
        }

        def transform(first: int, rows: "list[TextRow]") -> list[str]:
            records = watch(parse_lines(classifier, rows, first=first, need_trees=trees, **settings))
            return [table.write(row, record) for row, record in zip(rows, records, strict=True)]

        header = next(iter(table.header), None)
        job = LineJob(survey(file, read), out, made_of, processes, CHUNK_LINES, header=header)
        run_and_tell(job, transform, "predicting", unit="rows", resume=resume, overwrite=overwrite)
    watch.report()


def _kind_of(out: Path) -> Kind:
    if out == _STANDARD:
        return Kind.csv
    try:
        return Kind(out.suffix.lower().removeprefix("."))
    except ValueError:
        known = ", ".join(f".{kind}" for kind in Kind)
        raise BeamtreeError(
            f"cannot tell the format of {out.name!r}: name --out one of {known}, or choose with --format"
        ) from None


class _Table:
    """How a prediction is written as a row."""

    def __init__(self, model: "Classifier", source: "Unlabelled", kind: Kind, trees: bool) -> None:
        self.labels, self.kind, self.with_id = model.task.labels, kind, source.id is not None
        count = model.task.sentences
        self.texts = list(source.texts) or (["text"] if count == 1 else ["text1", "text2"])
        self.trees = (["tree"] if count == 1 else ["tree1", "tree2"]) if trees else []
        self.names = ["id"] if self.with_id else self.texts
        self.delimiter = "\t" if kind is Kind.tsv else ","

    @property
    def header(self) -> list[str]:
        """The first line; none of JSON."""
        if self.kind is Kind.jsonl:
            return []
        return [self._line([*self.names, "label", *(f"p_{label}" for label in self.labels), *self.trees])]

    def write(self, row: "TextRow", record: "Record") -> str:
        from beamtree.classifier.parsing import Unparsed

        name = [row.id or ""] if self.with_id else row.line.split("\t", len(self.names) - 1)
        if self.kind is Kind.jsonl:
            return self._json(dict(zip(self.names, name, strict=False)), record)
        name = (name + [""] * len(self.names))[: len(self.names)]
        if isinstance(record, Unparsed):
            return self._line([*name, *[""] * (1 + len(self.labels) + len(self.trees))])
        shares = [f"{share:.6f}" for share in record.probabilities]
        drawn = [sentence.brackets() for sentence in record.trees] if self.trees else []
        return self._line([*name, record.label, *shares, *drawn])

    def _json(self, named: dict[str, str], record: "Record") -> str:
        from beamtree.classifier.parsing import Unparsed

        if isinstance(record, Unparsed):
            return write_json({**named, "label": None, "error": str(record)}, ensure_ascii=False)
        shares = dict(zip(self.labels, record.probabilities, strict=True))
        drawn = [sentence.brackets() for sentence in record.trees]
        told = {**named, "label": record.label, "probabilities": shares}
        return write_json({**told, **dict(zip(self.trees, drawn, strict=False))}, ensure_ascii=False)

    def _line(self, cells: Sequence[str]) -> str:
        if self.kind is Kind.tsv:  # quotation marks are ordinary there
            return "\t".join(map(harmless, cells))
        line = io.StringIO()
        csv.writer(line, lineterminator="").writerow(map(harmless, cells))
        return line.getvalue()


def harmless(cell: str) -> str:
    """A cell in one line that a spreadsheet takes for text: what would begin a formula gets an apostrophe.

    Numbers, such as the label -1, stay numbers.
    """
    cell = _ENDS.sub(" ", cell).strip()
    return f"'{cell}" if cell[:1] in tuple("=+-@＝＋－＠") and not _NUMBER.fullmatch(cell) else cell
