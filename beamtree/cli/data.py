"""`beamtree data listops`, `logic` and `filters` generate a task's files; `check` lists a folder's data."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from beamtree.cli.conventions import Overwrite, counting, name, new_table, say, show_progress
from beamtree.errors import BeamtreeError
from beamtree.printable import printable

if TYPE_CHECKING:
    from rich.table import Table

    from beamtree.data.folders import SplitStatus

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    help="Generate the files of a task, or check existing ones.",
)

Out = Annotated[
    Path | None, typer.Option(help="Folder to write to.", show_default="$BEAMTREE_DATA/TASK or data/TASK")
]
Seed = Annotated[int, typer.Option(min=0, help="The same seed gives the same bytes on every machine.")]


@app.command()
def listops(
    out: Out = None,
    seed: Seed = 0,
    split: Annotated[
        list[str] | None,
        typer.Option(
            help="Split to generate; may be repeated; `all` adds the 96,000 long expressions of lra-train.",
            show_default="all but lra-train",
        ),
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """ListOps: nested MIN, MAX, MED and SM of digits, in the format of the published files.

    Splits: train, dev, near-iid, 200-300 to 900-1000, 5-args, 10-args, 15-args, lra-train, lra-valid,
    lra-test, depth-train, depth-dev, depth-test. Lengths are sampled exactly, without rejection, and every
    label is computed from its expression.
    """
    from beamtree.data.folders import data_folder
    from beamtree.data.listops import TASK, generate_listops

    folder = out or data_folder("listops")
    if split is None:
        splits = [name for name in TASK.splits if name != "lra-train"]
    else:
        splits = list(TASK.splits) if "all" in split else split
    with show_progress() as bar:
        tasks = {name: bar.add_task(name, total=None, visible=False) for name in splits}

        def show(name: str, done: int, total: int) -> None:
            bar.update(tasks[name], completed=done, total=total, visible=done < total)

        files = generate_listops(folder, seed=seed, splits=splits, progress=show, overwrite=overwrite)
    say(f"{len(files)} split{'s' * (len(files) > 1)} of ListOps in {folder}: {', '.join(files)}", err=False)


@app.command()
def logic(
    out: Out = None,
    seed: Seed = 0,
    pairs: Annotated[
        int, typer.Option(min=1, help="Pairs to draw, before duplicates are removed.")
    ] = 500_000,
    overwrite: Overwrite = False,
) -> None:
    """Logical inference: pairs of propositional formulas and the relation between them.

    Writes train0 … train12 and test0 … test12, as published: the number counts the operators in the
    longer formula, and 12 means 12 or more.
    """
    from beamtree.data.folders import data_folder
    from beamtree.data.logic import generate_logic

    folder = out or data_folder("logic")
    with counting("drawing", "pairs") as show:
        files = generate_logic(folder, seed=seed, pairs=pairs, progress=show, overwrite=overwrite)
    say(f"{len(files)} files of logical inference in {folder}", err=False)


@app.command()
def filters(out: Out = None, seed: Seed = 0, overwrite: Overwrite = False) -> None:
    """Filters: nested boolean conditions with their values filled in, true or false.

    For example 7 < 5 and not ( blue = red or 2 > 3 ); `not` binds tighter than `and`, which binds tighter
    than `or`. Splits: train and dev nest brackets up to 4 deep; depth1 to depth10 are for testing. At every
    depth half of the conditions are true.
    """
    from beamtree.data.filters_draws import generate_filters
    from beamtree.data.folders import data_folder

    folder = out or data_folder("filters")
    with counting("drawing", "conditions") as show:
        files = generate_filters(folder, seed=seed, progress=show, overwrite=overwrite)
    say(f"{len(files)} splits of filters in {folder}: {', '.join(files)}", err=False)


@app.command()
def check(
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="Folder that contains a folder for each task.", show_default="$BEAMTREE_DATA or data"
        ),
    ] = None,
    bad_rows: Annotated[
        str,
        typer.Option(help="What to do with unreadable rows: skip (and count them) or refuse (the file)."),
    ] = "skip",
) -> None:
    """List the splits of each task: which exist, how large they are, and where to get the others.

    Every file is read completely. Unreadable rows are counted, and the first ones of each file are shown.
    """
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn

    from beamtree.data.folders import data_folder, survey
    from beamtree.data.task import BadRows

    root, rows = folder or data_folder("vectors").parent, BadRows.chosen(bad_rows, "--bad-rows skip")
    found = []
    with show_progress(TextColumn("{task.description}", markup=False), BarColumn()) as bar:
        row = bar.add_task("reading", total=None)
        for split in survey(root, rows):
            found.append(split)
            bar.update(row, description=printable(f"{split.task} {split.split}"))
    Console().print(_survey_table(root, found))
    for sentence in (*dict.fromkeys(split.problem for split in found if split.problem), *rows.report()):
        say(f"beamtree: {sentence}")
    if not root.is_dir():  # the table has said what belongs there
        raise BeamtreeError(f"there is no folder {root}: name the one that has a folder for each task")


def _survey_table(root: Path, found: "list[SplitStatus]") -> "Table":
    from itertools import groupby

    table = new_table(str(root))
    for head in ("task", "split", "examples", "", "where to get it"):
        table.add_column(head, justify="right" if head == "examples" else "left", overflow="fold")
    before = None
    # Missing splits of the same corpus share a line.
    for (task, _), group in groupby(
        enumerate(found), lambda one: (one[1].task, one[1].corpus if one[1].state == "missing" else one[0])
    ):
        splits = [split for _, split in group]
        first = splits[0]
        count = "" if first.examples is None else f"{first.examples:,}"
        style = "red" if first.problem or first.bad else "bright_black" if first.state == "missing" else ""
        table.add_row(
            "" if task == before else task,
            name(", ".join(split.split for split in splits)),
            count,
            first.state,
            first.corpus if first.state else "",
            style=style,
        )
        before = task
    return table
