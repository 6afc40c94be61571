"""`beamtree report RUNS…`: the paper's tables from run folders, as Markdown and HTML."""

from pathlib import Path
from typing import Annotated

import typer

from beamtree.cli.conventions import say, say_torch_loads, spell


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Run folders, or folders of run folders, evaluated with `eval RUN --save`. A folder of run "
            "folders may have a remarks.toml, with notes to print below the tables."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for results.md, results-in-full.md and results.html.",
            show_default="Markdown to stdout",
        ),
    ] = None,
    table: Annotated[
        list[str] | None,
        typer.Option(
            help="summary (all rows at a glance), listops, logic, sst5, imdb, snli, qqp, mnli, shipped "
            "(models in the package), others (splits that the paper's tables do not have), trees (compared "
            "with gold trees), splits (run by run) or runs; may be repeated.",
            show_default="all for which the runs have results",
        ),
    ] = None,
    skip: Annotated[
        bool,
        typer.Option("--skip", help="Leave out runs that cannot be read or counted, with a note."),
    ] = False,
) -> None:
    """Build the paper's tables from run folders, with the published figures next to ours.

    ListOps figures are the median of the seeds, all others the mean; ± is the population standard deviation.
    Runs whose settings differ from a shipped recipe in more than the seed get their own row, which names the
    differences, as do evaluations with another beam size. Cells without a run show a dash. All runs are
    listed with their commands.
    """
    say_torch_loads()

    from beamtree.files.atomic import make_folder, replace_file
    from beamtree.paper.report import build_report, to_html, to_markdown, to_short_markdown

    built = build_report(runs, table or (), skip=skip)
    for note in built.notes:
        say(f"beamtree: {note}")
    command = spell("report", *runs, table=table, skip=skip, out=out)
    if out is None:
        typer.echo(to_markdown(built, command), nl=False)
        return
    make_folder(out)
    full = "results-in-full.md"
    for name, text in (
        ("results.md", to_short_markdown(built, command, full)),
        (full, to_markdown(built, command, "Results in full")),
        ("results.html", to_html(built, command)),
    ):
        replace_file(out / name, text)
        say(f"wrote {out / name}")
