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
        typer.Argument(metavar="TEXT", help="What to parse; - reads lines from standard input."),
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

    For a task on pairs, give two texts, or in a file two sentences separated by a tab. An unreadable line of
    a file or of standard input becomes an error record with its number, and the rest is read. With --file,
    --out and the format brackets or json, an interrupted run can be resumed, and torchrun or accelerate
    launch divides the lines among processes and machines that see the same folder.
    """
    if file is not None:
        say_torch_loads()

    from beamtree.classifier.model_folder import find_model, model_checksum
    from beamtree.classifier.parsing import CHUNK_LINES, parse_lines
    from beamtree.cli.formats import as_line
    from beamtree.cli.streaming import LineJob, Watch, run_and_tell, survey
    from beamtree.data.unlabelled import find_rows
    from beamtree.files.lines import write_lines
    from beamtree.processes.launched import Processes

    source = _choose_source(texts, file)
    format = format or _format_of(out)
    if out is not None and out.suffix.lower() in _TABLES and format is not Format.brackets:
        raise BeamtreeError(
            f"parse writes no table such as {out}: use `beamtree predict`, or name a .json, .html or .txt"
        )
    processes = Processes.from_environment()
    by_line = format in (Format.brackets, Format.json)
    files = (source, out) if isinstance(source, Path) and out is not None and by_line else None
    if files is None:
        if resume or processes.count > 1:
            what = "--resume" if resume else "dividing a file among processes"
            raise BeamtreeError(f"{what} needs --file, --out and --format json or brackets")
        if out is not None:
            refuse_to_replace(out, overwrite)
    classifier = open_model(model, device, beam, processes.local_rank)
    settings: dict[str, Any] = {"batch_tokens": batch_tokens, "max_length": max_length}
    where = None if isinstance(source, list) else str(source or "standard input")
    watch = Watch(where, strict)
    if files is not None:
        made_of = {
            "model": model_checksum(find_model(model)),
            "format": format.value,
            "beams": beams,
            "beam": beam,
            **settings,
        }
        read = find_rows(files[0], classifier.task, plain_tables=True).read
        run_and_tell(
            LineJob(survey(files[0], read), files[1], made_of, processes, CHUNK_LINES),
            lambda first, lines: [
                as_line(record, format, beams=beams)
                for record in watch(parse_lines(classifier, lines, **settings))
            ],
            "parsing",
            resume=resume,
            overwrite=overwrite,
        )
    else:
        lines = _lines(source, classifier.task)
        pieces = _pieces(classifier, lines, watch, format, Path(model).resolve().name, beams, out, settings)
        if out is not None:
            write_lines(out, pieces)
            say(f"wrote {out}")
        else:
            # A drawing is for the eye: `?` where a terminal lacks a character; data keep their UTF-8.
            put = print if format is Format.text else typer.echo
            for piece in pieces:
                put(piece)
    watch.report()


def _format_of(out: Path | None) -> Format:
    if out is not None and out.suffix.lower() in _NEVER_TEXT:
        raise BeamtreeError(
            f"cannot write {out.suffix}: choose .svg for a picture, or .html for an interactive page"
        )
    return _BY_SUFFIX.get(out.suffix.lower(), Format.text) if out is not None else Format.text


def _choose_source(texts: list[str] | None, file: Path | None) -> list[str] | Path | None:
    """Texts, a file, or None for standard input."""
    if (texts and file is not None) or (not texts and file is None and sys.stdin.isatty()):
        raise BeamtreeError("give one of: a TEXT to parse, --file FILE, or - for standard input")
    if texts:
        # Python gives bytes that are not UTF-8 as lone surrogates, which no file could hold.
        return None if texts == ["-"] else [re.sub("[\ud800-\udfff]", "\ufffd", text) for text in texts]
    return None if file == Path("-") else file


def _lines(source: list[str] | Path | None, task: "Task") -> "Iterator[str | TextRow]":
    from beamtree.cli.streaming import standard_input
    from beamtree.data.unlabelled import find_rows

    if isinstance(source, Path):
        yield from find_rows(source, task, plain_tables=True).read()
    elif isinstance(source, list):
        # For a task on pairs every two arguments are one, unless a tab parts the two in each.
        size = task.sentences if not any("\t" in text for text in source) else 1
        if len(source) % size:
            raise BeamtreeError(f"this model reads pairs: give two texts, got {len(source)}")
        yield from ("\t".join(source[i : i + size]) for i in range(0, len(source), size))
    else:
        yield from standard_input()


def _pieces(
    model: "Classifier",
    lines: "Iterator[str | TextRow]",
    watch: "Watch",
    format: Format,
    name: str,
    beams: bool,
    out: Path | None,
    settings: dict[str, Any],
) -> Iterator[str]:
    """What is written, piece by piece."""
    from rich.console import Console

    from beamtree.classifier.parsing import parse_stream
    from beamtree.cli.formats import as_animation, as_line, as_svg, as_text
    from beamtree.explorer.pages import view_lines, write_page

    if format in (Format.animation, Format.html):
        viewed = watch(view_lines(model, lines, name=name, max_length=settings["max_length"]))
        if format is Format.html:
            yield from write_page(viewed, title=f"{name}: {model.settings.title}")
        else:
            yield as_animation(_only(viewed, "an animation"))
        return
    records = watch(parse_stream(model, lines, **settings))
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
        raise BeamtreeError(f"{what} shows one text: use --format html for several")
    return record
