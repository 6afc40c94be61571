"""Shared by all commands: options with the same meaning everywhere, messages, tables and progress.

Messages and names may quote any text; what a terminal would take for control characters is escaped. Progress
bars are shown only in a terminal and vanish at the end; a log gets a line from time to time instead.
"""

import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from beamtree.errors import BeamtreeError
from beamtree.printable import printable

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn
    from rich.table import Table
    from rich.text import Text

    from beamtree.classifier.classifier import Classifier

Model = Annotated[str, typer.Argument(help="A model folder, a run folder or the name of a shipped model.")]
Beam = Annotated[
    int | None, typer.Option(min=1, help="Beam size of the search.", show_default="as in training")
]
BatchTokens = Annotated[
    int, typer.Option(min=1, help="Tokens per batch, including padding; lower it to save memory.")
]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, … or auto.")]
# For commands that turn a file into another, line by line or row by row.
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue an unfinished --out file after its last complete line.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Overwrite existing files.")]
Strict = Annotated[bool, typer.Option("--strict", help="Stop at the first line that cannot be read.")]
MaxLength = Annotated[int, typer.Option(min=1, help="Treat texts with more tokens than this as unreadable.")]

LINE_EVERY = 20.0  # seconds, in a log


def open_model(model: str, device: str, beam: int | None, local_rank: int = 0) -> "Classifier":
    from beamtree.classifier.inference import choose_device, set_beam_size
    from beamtree.classifier.model_folder import load_model

    classifier = load_model(model, device=choose_device(device, local_rank))
    set_beam_size(classifier, beam)
    return classifier


def refuse_to_replace(path: Path, overwrite: bool) -> None:
    """Raise, before any work, if writing this file would replace something without permission."""
    if path.is_dir():
        raise BeamtreeError(f"{path} is a folder: name a file to write")
    if path.exists() and not overwrite:
        raise BeamtreeError(f"{path} exists: --overwrite replaces it")


def spell(*words: object, **options: Any) -> str:
    """A command as a user would type it; options that are None, False or empty are left out."""
    script = Path(sys.argv[0])  # may be a user's script that registers an encoder
    is_theirs = script.suffix == ".py" and script.name != "__main__.py"
    spelt = [*(["python", str(script)] if is_theirs else ["beamtree"]), *map(str, words)]
    for option, given in options.items():
        flag = f"--{option.replace('_', '-')}"
        for value in given if isinstance(given, list) else [given]:
            spelt += [flag] if value is True else [flag, str(value)] if value else []
    return shlex.join(spelt)


def say(sentence: str, *, err: bool = True) -> None:
    """Print a line on standard error, or on standard output."""
    typer.echo(printable(sentence), err=err)


def say_torch_loads() -> None:
    """Announce the import of torch, which takes seconds, unless it is already imported."""
    if "torch" not in sys.modules and os.environ.get("RANK", "0") == "0":
        say("loading PyTorch …")


def name(text: str, style: str = "") -> "Text":
    """Text for a table or progress bar in which rich does not take brackets for markup."""
    from rich.text import Text

    return Text(printable(text), style)


def new_table(
    title: str,
    *heads: "str | Text",
    words: int = 1,
    styles: Mapping[str, str] | None = None,
    no_wrap: bool = False,
) -> "Table":
    """A table to be filled with rows; the first `words` columns are aligned left, the others hold figures."""
    from rich import box
    from rich.table import Table

    table = Table(title=name(title, "bold"), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for place, head in enumerate(heads):
        style = (styles or {}).get(str(head), "")
        table.add_column(head, justify="left" if place < words else "right", style=style, no_wrap=no_wrap)
    return table


@contextmanager
def counting(doing: str, unit: str, *, wanted: bool = True) -> Iterator[Callable[[int, int], None]]:
    """`show(done, total)` moves a bar in a terminal; elsewhere it writes a line every so often."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    from beamtree.training.display import EverySoOften, in_words

    words = TextColumn("{task.description}", markup=False)
    columns = words, BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeRemainingColumn()
    with show_progress(*columns, wanted=wanted) as bar:
        row = bar.add_task(printable(doing), total=None)
        began, log = time.monotonic(), EverySoOften(LINE_EVERY)
        before: int | None = None  # the first call may report what an earlier command has done

        def show(done: int, total: int) -> None:
            nonlocal before
            before = done if before is None else before
            bar.update(row, completed=done, total=total)
            if wanted and bar.disable and done < total and log.due():
                rate = (done - before) / (time.monotonic() - began)
                left = f", about {in_words((total - done) / rate)} left" if rate else ""
                say(f"{doing}: {done:,} of {total:,} {unit}{left}")

        yield show


def show_progress(*columns: "ProgressColumn", wanted: bool = True) -> "Progress":
    """A progress bar on standard error with these columns, by default rich's."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    return Progress(*columns, console=console, disable=not (wanted and console.is_terminal), transient=True)
