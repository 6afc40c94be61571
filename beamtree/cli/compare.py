"""`beamtree compare TASK`: models of equal size inside and far outside training, as a table and a picture."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from beamtree.cli.conventions import name, new_table, say, say_torch_loads, spell
from beamtree.errors import BeamtreeError

if TYPE_CHECKING:
    from beamtree.compare.contest import Contest, Entry
    from beamtree.compare.page import Seeds
    from beamtree.data.task import BadRows, Task
    from beamtree.training.examples import LearningData, Source


def compare(
    task: Annotated[
        str, typer.Argument(help="filters, logic, listops, own (your own files) or any other task.")
    ],
    models: Annotated[
        str,
        typer.Option(
            help="Encoders to compare, separated by commas, including registered ones.",
            show_default="bilstm, rotary-transformer, universal-transformer, s4d, mamba, ssm-ebt-grc, "
            "ebt-grc, gold-grc; with --quick bilstm, ebt-grc, gold-grc",
        ),
    ] = "",
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Seeds per model.", show_default="3; 1 with --quick")
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="Small models on part of the data, one learning rate: takes minutes on a CPU."
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the runs, the table and the picture.",
            show_default="runs/compare-TASK, or …-quick",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder with the task's files; own also takes a single file.",
            show_default="$BEAMTREE_DATA/TASK or data/TASK; filters are generated there if missing",
        ),
    ] = None,
    test: Annotated[
        list[Path] | None,
        typer.Option(help="Test on this file of yours instead of the task's splits; may be repeated."),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="SECTION.KEY=VALUE",
            help="Change how data are read, e.g. task.own.tokenizer=blanks; may be repeated.",
        ),
    ] = None,
    draw: Annotated[
        bool, typer.Option("--draw", help="Write the table and the picture of finished runs; do not train.")
    ] = False,
    show: Annotated[
        bool, typer.Option("--list", help="Print the plan: a command for each unfinished run.")
    ] = False,
    only: Annotated[
        list[str] | None, typer.Option("--run", help="Do only this run of the plan; may be repeated.")
    ] = None,
    max_minutes: Annotated[
        float | None,
        typer.Option(min=0, help="Stop after this many minutes; the same command continues."),
    ] = None,
) -> None:
    """Train models of equal size on a task, and compare them on inputs like those of training and beyond.

    The rules are the same for all: data, steps, early stopping; the best of three learning rates, each tried
    with a fifth of the steps; three seeds. Writes comparison.md, .svg and .png. Finished runs are kept: the
    same command continues where it stopped, and several processes that run it share the work.
    """
    say_torch_loads()

    from beamtree.compare.contest import Entry, choose_models, find_contest, plan
    from beamtree.compare.outcome import read_outcome, read_outcomes
    from beamtree.compare.page import gather, of_other_size, star_note, write_page
    from beamtree.data.folders import data_folder
    from beamtree.data.own import NAME as OWN
    from beamtree.data.own import own_task
    from beamtree.data.task import find_task
    from beamtree.training.plots import require_matplotlib
    from beamtree.training.recipe import load_recipe

    require_matplotlib()
    tests = [str(path) for path in test or ()]
    found = find_task(task)
    contest = find_contest(found, tests, quick=quick, changes=changes or ())
    if task == OWN and not draw:
        settings = load_recipe(task, contest.changes).task
        found = own_task(data_folder(task, data), **asdict(settings.own))
    names = [word.strip() for word in models.split(",") if word.strip()]
    chosen = choose_models(found, names, quick=quick)
    count = seeds or (1 if quick else 3)
    entries = plan(contest, chosen, count)
    folder = out or Path("runs") / f"compare-{task}{'-quick' if quick else ''}"
    if show:
        given = {"out": folder, "seeds": count, "models": models, "quick": quick, "data": data, "test": tests}
        given["set"] = list(contest.changes)
        left = [entry for entry in entries if read_outcome(folder / entry.name) is None]
        for entry in left:
            typer.echo(spell("compare", task, **given, run=entry.name))
        if not left:
            say("all runs are finished: --draw shows them")
        return
    ended = draw or _work(contest, found, entries, folder, data, only or (), max_minutes)
    outcomes = read_outcomes(folder) if folder.is_dir() else []
    for outcome in outcomes:
        if outcome.task != task:
            raise BeamtreeError(
                f"{folder} compares models on {outcome.task}, not on {task}: name another folder with --out"
            )
    groups = [group for group in gather(outcomes, chosen) if not (draw and names) or group.model in chosen]
    if groups or draw:
        # A single model is not "of equal size" to anything.
        alike = len(groups) > 1 and not of_other_size(groups)
        title = f"{task}: models {'of equal size' if alike else 'compared'}"
        written = write_page(contest, groups, folder, title + (", quick" if quick else ""))
        _print_means(contest, groups)
        if note := star_note(contest, groups):
            say(note, err=False)
        for path in written:
            say(f"wrote {path}", err=False)
    lost = [outcome for outcome in outcomes if not outcome.trial and not outcome.splits]
    for outcome in lost:
        run = Entry(outcome.model, outcome.seed).name
        say(f"{run} has no results, as its loss was not finite: delete {folder / run} to repeat it")
    if lost or not ended:
        raise typer.Exit(1)


def _print_means(contest: "Contest", groups: "Sequence[Seeds]") -> None:
    from rich.console import Console

    from beamtree.compare.page import means

    head, *rows = means(contest, groups)
    table = new_table(f"accuracy in percent by {contest.axis}", *head, no_wrap=True)
    table.padding, table.columns[0].no_wrap = (0, 1, 0, 0), False
    for column, label in zip(table.columns[1:], head[1:], strict=True):
        column.min_width = max(5, len(label))  # in a narrow terminal names are wrapped, figures never
    for label, *shares in rows:
        table.add_row(name(label), *shares)
    Console().print(table)


def _work(
    contest: "Contest",
    task: "Task",
    entries: "Sequence[Entry]",
    out: Path,
    given: Path | None,
    only: Sequence[str],
    max_minutes: float | None,
) -> bool:
    """Train the unfinished runs; return True if all are finished now."""
    import signal

    from beamtree.compare.contest import Entry, recipe_for
    from beamtree.compare.work import Work
    from beamtree.data.task import BadRows
    from beamtree.training.examples import SKIP, load_learning_data
    from beamtree.training.fit import create_accelerator
    from beamtree.training.schedule import Stopping

    _draw_filters_if_missing(contest.task, given)
    stopping = Stopping(minutes=max_minutes)
    recipe = recipe_for(contest, Entry("ebt-grc"), contest.rates[0], examples=1)
    learnt: LearningData = load_learning_data(recipe, given, say)
    sources = _sources(contest, task, given, BadRows.chosen(recipe.task.bad_rows, SKIP))
    work = Work(contest, entries, out, learnt, sources, create_accelerator(), say)
    ended = work.run(stopping, only)
    if not ended:
        say(f"{stopping.reason}; the same command continues from here")
    if stopping.signal_number is not None:
        raise typer.Exit(128 + signal.Signals(stopping.signal_number))
    return ended


def _sources(contest: "Contest", task: "Task", given: Path | None, bad_rows: "BadRows") -> "list[Source]":
    """The splits on which models are measured, or the user's test files."""
    from beamtree.data.folders import data_folder
    from beamtree.training.examples import find_sources

    splits = [split for split in contest.points.values() if split in task.splits]
    files = [Path(name) for name in contest.points.values() if name not in task.splits]
    for path in files:
        if not path.is_file():
            raise BeamtreeError(f"there is no file {path} to test on")
    folder = data_folder(task.name, given)
    if splits and folder.is_file():
        raise BeamtreeError(f"{folder} is a single table: name a file to test on with --test")
    sources = find_sources(task, [folder], splits, bad_rows) if splits else []
    for path in files:
        (source,) = find_sources(task, [path], (), bad_rows)
        sources.append(replace(source, name=str(path)))
    return sources


def _draw_filters_if_missing(task: str, given: Path | None) -> None:
    from beamtree.data.filters_draws import generate_filters
    from beamtree.data.folders import data_folder

    folder = data_folder("filters")
    if task == "filters" and given is None and not folder.exists():
        say(f"generating filters in {folder}")
        generate_filters(folder, seed=0, overwrite=True)  # other processes write the same bytes
