"""Shared by `predict` and `parse`: reading standard input, counting unreadable lines, running a `LineJob`."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

import typer

from beamtree.classifier.parsing import Parsed, Unparsed
from beamtree.cli.conventions import counting, say
from beamtree.cli.line_job import LineJob, Transform
from beamtree.data.unlabelled import TextRow
from beamtree.errors import BeamtreeError
from beamtree.files.bounded import shown
from beamtree.files.lines import split_lines
from beamtree.training.processes import Processes

AnyRecord = TypeVar("AnyRecord")
_TOLD = 5  # unreadable lines that a report names


def refuse_to_share(resume: bool, processes: Processes, needs: str) -> None:
    """Raise if the user wants to resume or divide work that is not a `LineJob`."""
    if resume or processes.count > 1:
        what = "--resume" if resume else "dividing a file among processes"
        raise BeamtreeError(f"{what} needs {needs}")


def run_and_tell(
    job: LineJob, transform: Transform, doing: str, *, unit: str = "lines", resume: bool, overwrite: bool
) -> None:
    """Run a job; show its progress, and say what was written or how to continue after an interruption."""
    first, total, done = job.processes.first, job.own_lines, 0
    try:
        with counting(doing, unit, wanted=first) as show:

            def advance(lines: int) -> None:
                nonlocal done
                done += lines
                show(done, total)

            worked = job.run(transform, resume=resume, overwrite=overwrite, advance=advance)
    except KeyboardInterrupt:
        say(f"stopped; finished {unit} are kept: --resume continues {job.out}")
        raise typer.Exit(130) from None
    finally:
        job.processes.leave()
    if first:
        said = f"wrote {job.out}" if worked else f"{job.out} was already complete"
        say(f"{said}: {job.lines:,} {unit}")


class Watch:
    """Passes records on and counts errors among them, and texts of which the trees cover only a part.

    It raises at the first error if `strict`, or if `source` is None: texts on the command line.
    """

    def __init__(self, source: str | None, strict: bool) -> None:
        self.source, self.strict = source, strict
        self.seen, self.unread, self.cut = 0, 0, 0
        self.first: list[str] = []

    def __call__(self, records: Iterable[AnyRecord]) -> Iterator[AnyRecord]:
        for record in records:
            self.seen += 1
            if isinstance(record, Unparsed):
                if self.source is None:
                    raise BeamtreeError(f"cannot read {shown(record.text, most=400)}: {record.reason}")
                if self.strict:
                    raise BeamtreeError(f"{self.source}, {record}")
                self.unread += 1
                self.first += [str(record)] if self.unread <= _TOLD else []
            elif isinstance(record, Parsed):
                self.cut += any(sentence.left_out for sentence in record.trees)
            yield record

    def report(self, *, tell_cut: bool = True) -> None:
        if self.unread:
            why = "; ".join([*self.first, *(["…"] if self.unread > _TOLD else [])])
            say(f"{self.unread:,} of {self.seen:,} lines could not be read ({why})")
        if self.cut and tell_cut:
            texts = "1 text" if self.cut == 1 else f"{self.cut:,} texts"
            say(f"the trees of {texts} leave out tokens in the middle (model.tree_tokens)")


def standard_input() -> Iterator[TextRow]:
    number = 0
    stream = typer.get_text_stream("stdin", encoding="utf-8", errors="replace")
    for number, line in split_lines(stream, "standard input"):
        yield TextRow(number, line)
    if not number:
        raise BeamtreeError("standard input is empty: name a file, or pipe lines in")
