"""`beamtree parse MODEL TEXT`: what a model says of a text and the trees it finds; one line or a million."""

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from beamtree.cli.conventions import (
    BatchTokens,
    Beam,
    Device,
    Model,
    refuse_to_replace,
    say,
    say_torch_loads,
)
from beamtree.errors import BeamtreeError
from beamtree.files.bounded import shown

if TYPE_CHECKING:
    from beamtree.classifier.parsing import Record, Unparsed
    from beamtree.data.task import Task
    from beamtree.data.unlabelled import TextRow
    from beamtree.explorer.pages import Viewed


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
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an unfinished --out after its last whole line.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Overwrite --out.")] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at the first line that cannot be read.")
    ] = False,
    max_length: Annotated[
        int, typer.Option(min=1, help="Lines with more tokens than this count as unreadable.")
    ] = 10_000,
    batch_tokens: BatchTokens = 16384,
    beam: Beam = None,
    device: Device = "auto",
) -> None:
    """Predict the label of a text and draw its tree.

    For a task on pairs, give two texts, or in a file two sentences separated by a tab. An unreadable line of
    a file or of standard input becomes an error record with its number, and the rest goes on. With --file,
    --out and the format brackets or json, an interrupted run can be resumed, and torchrun or accelerate
    launch divides the lines among processes and machines that see the same folder.
    """
    if file is not None:
        say_torch_loads()

    from beamtree.classifier.inference import choose_device, set_beam_size
    from beamtree.classifier.model_folder import find_model, load_model, model_checksum
    from beamtree.classifier.parsing import CHUNK_LINES, parse_lines, parse_stream
    from beamtree.cli.streaming import LineJob, run_and_tell, survey
    from beamtree.data.unlabelled import find_rows
    from beamtree.explorer.pages import view_lines, write_page
    from beamtree.processes.launched import Processes

    source = _choose_source(texts, file)
    format = format or _format_of(out)
    if out is not None and out.suffix.lower() in _TABLES and format is not Format.brackets:
        raise BeamtreeError(
            f"{out} would be no table: `beamtree predict` writes one, parse a .json, .html or .txt"
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

    classifier = load_model(model, device=choose_device(device, processes.local_rank))
    set_beam_size(classifier, beam)
    settings: dict[str, Any] = {"batch_tokens": batch_tokens, "max_length": max_length}
    watch = _Watch(strict, unnamed=isinstance(source, list))
    if files is None:
        lines = _lines(source, classifier.task)
        if format is Format.animation:
            _put(_animate(watch(view_lines(classifier, lines, name=model, max_length=max_length))), out)
        elif format is Format.html:
            name = Path(model).resolve().name
            viewed = watch(view_lines(classifier, lines, name=name, max_length=max_length))
            _put(write_page(viewed, title=f"{name}: {classifier.settings.title}"), out)
        else:
            _write(watch(parse_stream(classifier, lines, **settings)), format, beams, out)
    else:
        write = _line_writer(format, beams)
        made_of = {
            "model": model_checksum(find_model(model)),
            "format": format.value,
            "beams": beams,
            "beam": beam,
        }
        rows = find_rows(files[0], classifier.task, plain_tables=True)
        run_and_tell(
            LineJob(survey(files[0], rows.read), files[1], {**made_of, **settings}, processes, CHUNK_LINES),
            lambda first, lines: [
                write(record) for record in watch(parse_lines(classifier, lines, first=first, **settings))
            ],
            "parsing",
            resume=resume,
            overwrite=overwrite,
        )
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
    from beamtree.data.unlabelled import find_rows
    from beamtree.files.lines import split_lines

    if isinstance(source, Path):
        yield from find_rows(source, task, plain_tables=True).read()
    elif isinstance(source, list):
        # For a task on pairs every two arguments are one, unless a tab parts the two in each.
        size = task.sentences if not any("\t" in text for text in source) else 1
        if len(source) % size:
            raise BeamtreeError(f"this model reads pairs: give two texts, got {len(source)}")
        yield from ("\t".join(source[i : i + size]) for i in range(0, len(source), size))
    else:
        line = None
        stream = typer.get_text_stream("stdin", encoding="utf-8", errors="replace")
        for _, line in split_lines(stream, "standard input"):
            yield line
        if line is None:
            raise BeamtreeError("standard input is empty: give a TEXT, --file FILE, or pipe lines in")


class _Watch:
    """Lets records through and counts those that are errors.

    It stops at the first of them if strict, and for texts on the command line, which have no line number.
    """

    def __init__(self, strict: bool, unnamed: bool) -> None:
        self.strict, self.unnamed, self.seen, self.unread = strict, unnamed, 0, 0

    def __call__(self, records: Iterable[AnyRecord]) -> Iterator[AnyRecord]:
        from beamtree.classifier.parsing import Unparsed

        for record in records:
            self.seen += 1
            if isinstance(record, Unparsed):
                if self.unnamed:
                    raise BeamtreeError(f"cannot read {shown(record.text, most=400)}: {record.reason}")
                if self.strict:
                    raise BeamtreeError(str(record))
                self.unread += 1
            yield record

    def report(self) -> None:
        if self.unread:
            say(f"{self.unread:,} of {self.seen:,} lines could not be read; their records say why")


def _line_writer(format: Format, beams: bool) -> Callable[["Record"], str]:
    from beamtree.cli.formats import as_brackets, as_json

    function = as_json if format is Format.json else as_brackets
    return lambda record: function(record, beams=beams)


def _write(records: Iterator["Record"], format: Format, beams: bool, out: Path | None) -> None:
    from rich.console import Console

    from beamtree.cli.formats import print_text

    if format is Format.text and out is None:
        console = Console()
        for record in records:
            print_text(console, record, beams=beams)
        return
    _put(_pieces(records, format, beams), out)


def _animate(records: "Iterator[Viewed | Unparsed]") -> Iterator[str]:
    from beamtree.classifier.parsing import Unparsed
    from beamtree.cli.formats import stack
    from beamtree.explorer.animation import animate_search

    record = next(records)
    if next(records, None) is not None:
        raise BeamtreeError("an animation shows one text: use --format html for several")
    if isinstance(record, Unparsed):
        raise BeamtreeError(f"nothing to draw: {record}")
    yield stack([animate_search(record.view, sentence) for sentence in record.view["sentences"]])


def _put(pieces: Iterator[str], out: Path | None) -> None:
    from beamtree.files.lines import write_lines

    if out is not None:
        write_lines(out, pieces)
        say(f"wrote {out}")
    else:
        for piece in pieces:
            typer.echo(piece)


def _pieces(records: Iterator["Record"], format: Format, beams: bool) -> Iterator[str]:
    import io

    from rich.console import Console

    from beamtree.cli.formats import as_svg, print_text

    if format is Format.text:
        console = Console(file=io.StringIO(), width=120)
        for record in records:
            with console.capture() as drawn:
                print_text(console, record, beams=beams)
            yield drawn.get().rstrip("\n") + "\n"
    elif format is Format.svg:
        record = next(records)
        if next(records, None) is not None:
            raise BeamtreeError("svg shows one text: use --format html for several")
        yield as_svg(record, beams=beams)
    else:
        yield from map(_line_writer(format, beams), records)
