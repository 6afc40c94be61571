"""`beamtree predict MODEL FILE`: labels every row of a file, with the probabilities of all labels."""

import itertools
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

if TYPE_CHECKING:
    from beamtree.data.unlabelled import TextRow


class Kind(StrEnum):
    csv = "csv"
    tsv = "tsv"
    jsonl = "jsonl"


_STANDARD = Path("-")


def predict(
    model: Model,
    file: Annotated[
        Path,
        typer.Argument(
            help="A table like the one the model was trained on (.tsv, .csv or .jsonl; its labels are not "
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
            show_default="as in training, else text, sentence or review; for pairs text1,text2 …",
        ),
    ] = "",
    id: Annotated[
        str,
        typer.Option(help="Column to copy to the output.", show_default="id if there is one, else the text"),
    ] = "",
    trees: Annotated[bool, typer.Option("--trees", help="Also write the best tree of each text.")] = False,
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
    """Label the rows of a file and write a table with one row for each, in the same order.

    A row has its id (or its text), the label, a column p_LABEL for every label and, with --trees, the tree.
    An unreadable row keeps its place, with empty cells. In .csv and .tsv files, cells that a spreadsheet
    would take for a formula get an apostrophe in front. Files of any size are read row by row; an interrupted
    run continues with --resume, and torchrun or accelerate launch divides the rows among processes.
    """
    say_torch_loads()

    from beamtree.classifier.model_folder import find_model, model_checksum
    from beamtree.classifier.parsing import CHUNK_LINES, parse_lines, parse_stream
    from beamtree.cli.formats import PredictionTable
    from beamtree.cli.line_job import LineJob
    from beamtree.cli.streaming import Watch, refuse_to_share, run_and_tell, standard_input
    from beamtree.data.unlabelled import Unlabelled, find_rows
    from beamtree.training.processes import Processes

    kind = format or _kind_of(out)
    processes = Processes.from_environment()
    streamed = _STANDARD in (out, file)
    if streamed:
        refuse_to_share(resume, processes, "a FILE and --out FILE")
    if streamed and out != _STANDARD:
        raise BeamtreeError("results for standard input go to standard output: leave out --out")
    classifier = open_model(model, device, beam, processes.local_rank)
    if trees and not classifier.builds_trees:
        raise BeamtreeError(
            f"--trees does not apply: the encoder {classifier.settings.title!r} builds no tree; leave it out"
        )
    if file == _STANDARD:
        source, watch = Unlabelled(file), Watch("standard input", strict)
    else:
        source, watch = find_rows(file, classifier.task, text=text, id=id), Watch(str(file), strict)
    table = PredictionTable(classifier.task, source, kind, trees)
    settings: dict[str, Any] = {"batch_tokens": batch_tokens, "max_length": max_length}
    if streamed:
        read = standard_input() if file == _STANDARD else source.read()
        rows, again = itertools.tee(read)  # at most one chunk of them is in memory
        records = watch(parse_stream(classifier, rows, need_trees=trees, **settings))
        for number, (row, record) in enumerate(zip(again, records, strict=False)):
            if not number and table.header:  # not earlier: nothing is printed if the file cannot be read
                typer.echo(table.header)
            typer.echo(table.write(row, record))
    else:
        made_of = {
            "model": model_checksum(find_model(model)),
            "format": kind.value,
            "columns": [source.id, *source.texts],
            "trees": trees,
            "beam": beam,
            **settings,
        }

        def transform(rows: "list[TextRow]") -> list[str]:
            records = watch(parse_lines(classifier, rows, need_trees=trees, **settings))
            return [table.write(row, record) for row, record in zip(rows, records, strict=True)]

        job = LineJob(source, out, made_of, processes, CHUNK_LINES, header=table.header)
        run_and_tell(job, transform, "predicting", unit="rows", resume=resume, overwrite=overwrite)
    watch.report()
    if watch.unread and watch.unread == (watch.seen if streamed else job.lines):
        where = "the output" if streamed else out
        raise BeamtreeError(f"no row of {watch.source} could be read, so {where} has no label")


def _kind_of(out: Path) -> Kind:
    if out == _STANDARD:
        return Kind.csv
    try:
        return Kind(out.suffix.lower().removeprefix("."))
    except ValueError:
        known = ", ".join(f".{kind}" for kind in Kind)
        raise BeamtreeError(
            f"cannot tell the format of {out.name!r}: end --out in one of {known}, or use --format"
        ) from None
