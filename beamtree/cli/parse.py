"""`beamtree parse MODEL TEXT`: a model's label for a text and the trees it finds; one line or a million."""

import io
import re
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

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
    refuse_to_replace,
    say,
    say_torch_loads,
)
from beamtree.errors import BeamtreeError

if TYPE_CHECKING:
    from beamtree.classifier.classifier import Classifier
    from beamtree.cli.streaming import Watch
    from beamtree.data.task import Task
    from beamtree.data.unlabelled import TextRow


class Format(StrEnum):
    text = "text"
    brackets = "brackets"
    json = "json"
    svg = "svg"
    animation = "animation"
    html = "html"


AnyRecord = TypeVar("AnyRecord")
_BY_SUFFIX = {".json": Format.json, ".jsonl": Format.json, ".svg": Format.svg, ".html": Format.html}
_TABLES = (".csv", ".tsv")
_NEVER_TEXT = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".pdf")


def parse(
    model: Model,
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT", help="Text to parse; - reads lines from standard input."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            help="A file with one text per line, or a .tsv, .csv or .jsonl table; plain, .gz or .xz."
        ),
    ] = None,
    beams: Annotated[
        bool, typer.Option("--beams", help="Show all trees with their scores; html always does.")
    ] = False,
    format: Annotated[
        Format | None, typer.Option(help="Output format.", show_default="from the name of --out, or text")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write to this file instead of the terminal.")] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    strict: Strict = False,
    max_length: MaxLength = 10_000,
    batch_tokens: BatchTokens = 16384,
    beam: Beam = None,
    device: Device = "auto",
) -> None:
    """Predict the label of a text and draw its tree.

    For a task on pairs, give two texts, or in a file two sentences per line, separated by a tab. An
    unreadable line of a file or of standard input becomes an error record with its line number, and reading
    continues. With --file, --out and the format brackets or json, an interrupted run can be resumed, and
    torchrun or accelerate launch divides the lines among processes and machines that share the folder.
    """
    if file is not None:
        say_torch_loads()

    from beamtree.classifier.model_folder import find_model, model_checksum
    from beamtree.classifier.parsing import CHUNK_LINES, parse_lines
    from beamtree.cli.formats import as_line
    from beamtree.cli.line_job import LineJob
    from beamtree.cli.streaming import Watch, refuse_to_share, run_and_tell, standard_input
    from beamtree.data.unlabelled import find_rows
    from beamtree.files.lines import write_lines
    from beamtree.training.processes import Processes

    given, file = _choose_source(texts, file)
    format = format or _format_of(out)
    if out is not None and out.suffix.lower() in _TABLES and format is not Format.brackets:
        raise BeamtreeError(
            f"parse cannot write a table such as {out}: use `beamtree predict`, or name a .json, .html or "
            ".txt file"
        )
    processes = Processes.from_environment()
    by_line = file is not None and format in (Format.brackets, Format.json)
    if not by_line or out is None:
        refuse_to_share(resume, processes, "--file, --out and --format json or brackets")
        if out is not None:
            refuse_to_replace(out, overwrite)
    classifier = open_model(model, device, beam, processes.local_rank)
    settings: dict[str, Any] = {"batch_tokens": batch_tokens, "max_length": max_length}
    watch = Watch(None if given else str(file or "standard input"), strict)
    source = None if file is None else find_rows(file, classifier.task, plain_tables=True)
    if by_line and source is not None and out is not None:
        made_of = {
            "model": model_checksum(find_model(model)),
            "format": format.value,
            "beams": beams,
            "beam": beam,
            **settings,
        }
        run_and_tell(
            LineJob(source, out, made_of, processes, CHUNK_LINES),
            lambda rows: [
                as_line(record, format, beams=beams)
                for record in watch(parse_lines(classifier, rows, **settings))
            ],
            "parsing",
            resume=resume,
            overwrite=overwrite,
        )
    else:
        if source is not None:
            rows = source.read()
        else:
            rows = _as_rows(given, classifier.task) if given else standard_input()
        pieces = _pieces(classifier, rows, watch, format, Path(model).resolve().name, beams, out, settings)
        if out is not None:
            write_lines(out, pieces)
            say(f"wrote {out}")
        else:
            # In a drawing, `?` may replace a character that the terminal lacks; data must stay UTF-8.
            put = print if format is Format.text else typer.echo
            for piece in pieces:
                put(piece)
    watch.report(tell_cut=format is not Format.text)  # a drawing in the terminal tells it for each text


def _format_of(out: Path | None) -> Format:
    if out is not None and out.suffix.lower() in _NEVER_TEXT:
        raise BeamtreeError(
            f"cannot write {out.suffix}: choose .svg for a picture, or .html for an interactive page"
        )
    return _BY_SUFFIX.get(out.suffix.lower(), Format.text) if out is not None else Format.text


def _choose_source(texts: list[str] | None, file: Path | None) -> tuple[list[str], Path | None]:
    """The texts or the file to read; neither for standard input."""
    if (texts and file is not None) or (not texts and file is None and sys.stdin.isatty()):
        raise BeamtreeError("give one of: a TEXT to parse, --file FILE, or - for standard input")
    if texts == ["-"] or file == Path("-"):
        return [], None
    # Python passes on bytes that are not UTF-8 as lone surrogates, which cannot be written to a file.
    return [re.sub("[\ud800-\udfff]", "\ufffd", text) for text in texts or ()], file


def _as_rows(texts: list[str], task: "Task") -> "Iterator[TextRow]":
    """For a task on pairs, every two texts make one row, unless texts hold pairs separated by a tab."""
    from beamtree.data.unlabelled import TextRow

    size = task.sentences if not any("\t" in text for text in texts) else 1
    if len(texts) % size:
        raise BeamtreeError(f"this model reads pairs: give two texts, got {len(texts)}")
    for number, start in enumerate(range(0, len(texts), size), start=1):
        yield TextRow(number, "\t".join(texts[start : start + size]))


def _pieces(
    model: "Classifier",
    rows: "Iterator[TextRow]",
    watch: "Watch",
    format: Format,
    name: str,
    beams: bool,
    out: Path | None,
    settings: dict[str, Any],
) -> Iterator[str]:
    """Yield the output piece by piece."""
    from rich.console import Console

    from beamtree.classifier.parsing import parse_stream
    from beamtree.cli.formats import as_animation, as_line, as_svg, as_text
    from beamtree.explorer.pages import view_lines, write_page

    if format in (Format.animation, Format.html):
        viewed = watch(view_lines(model, rows, name=name, max_length=settings["max_length"]))
        if format is Format.html:
            yield from write_page(viewed, title=f"{name}: {model.settings.title}")
        else:
            yield as_animation(_only(viewed, "an animation"))
        return
    records = watch(parse_stream(model, rows, **settings))
    if format is Format.svg:
        yield as_svg(_only(records, "svg"), beams=beams)
    elif format is Format.text:
        console = Console() if out is None else Console(file=io.StringIO(), width=120)
        yield from (as_text(console, record, beams=beams) for record in records)
    else:
        yield from (as_line(record, format, beams=beams) for record in records)


def _only(records: Iterator[AnyRecord], what: str) -> AnyRecord:
    record = next(records)
    if next(records, None) is not None:
        raise BeamtreeError(f"{what} shows only one text: use --format html for several")
    return record
