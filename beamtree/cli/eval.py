"""`beamtree eval MODEL --data …`: accuracy, loss and trees by split, length, depth; tables, JSON, plots."""

import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from beamtree.cli.conventions import (
    LINE_EVERY,
    BatchTokens,
    Beam,
    Device,
    Model,
    count_up,
    say,
    say_torch_loads,
)
from beamtree.errors import BeamtreeError
from beamtree.printable import printable, write_json

if TYPE_CHECKING:
    import torch
    from rich.progress import TaskID

    from beamtree.data.task import Example
    from beamtree.training.baseline import Company
    from beamtree.training.evaluate import SplitResult
    from beamtree.training.run_folder import RunFolder


def evaluate(
    model: Model,
    more: Annotated[
        list[Path] | None,
        typer.Argument(metavar="DATA", help="More folders and files, as for --data."),
    ] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            help="Folder with the task's splits, or a file in the task's format; may be repeated.",
            show_default="$BEAMTREE_DATA/TASK or data/TASK",
        ),
    ] = None,
    split: Annotated[
        list[str] | None,
        typer.Option(help="Split to evaluate; may be repeated.", show_default="all but those for training"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    save: Annotated[
        bool,
        typer.Option(
            "--save",
            help="Keep the JSON in the run folder for `report`: eval.json; eval-beamK.json with --beam, "
            "eval-merged.json with --merge-equal-trees. Results already saved for other splits are kept.",
        ),
    ] = False,
    baselines: Annotated[
        bool,
        typer.Option(
            "--baselines/--no-baselines",
            help="For a run on your own data: measure simpler classifiers on the same rows too, trained on "
            "the same training rows.",
        ),
    ] = True,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Folder for plots of accuracy by length and by depth, and of own data the confusion matrix."
        ),
    ] = None,
    batch_tokens: BatchTokens = 16384,
    beam: Beam = None,
    bad_rows: Annotated[
        str | None,
        typer.Option(
            help="What to do with unreadable rows: refuse, or skip (and count them).",
            show_default="as in training, or refuse",
        ),
    ] = None,
    merged: Annotated[
        bool,
        typer.Option("--merge-equal-trees", help="Merge beams that reach the same tree in different orders."),
    ] = False,
    device: Device = "auto",
) -> None:
    """Measure a model on labelled data.

    Accuracy comes with Wilson's 95 % interval. For your own data macro-F1, precision, recall and F1 of every
    label and the confusion matrix come first. Bracketing F1 is unlabelled, of the best trees against the gold
    trees over the whole split; spans of two tokens or more count, that of the whole sentence does
    not. Exact is the share of sentences whose tree is the gold tree. Sentences of one or two tokens have only
    one tree and count for neither. A dash means that the encoder builds no tree.
    """
    say_torch_loads()

    from rich.console import Console

    from beamtree.classifier.inference import choose_device, merge_equal_trees, set_beam_size
    from beamtree.classifier.model_folder import find_model, load_model, member_folders, weights_checksum
    from beamtree.cli.class_figures import class_tables, company_parts, members_table
    from beamtree.cli.split_figures import draw_splits, split_tables
    from beamtree.data.folders import data_folder
    from beamtree.data.task import BadRows
    from beamtree.paper.plots import draw_confusion, require_matplotlib
    from beamtree.training.baseline import Competitor
    from beamtree.training.display import EverySoOften
    from beamtree.training.evaluate import evaluate as run_evaluation
    from beamtree.training.evaluate import find_sources
    from beamtree.training.recipe import load_recipe
    from beamtree.training.run_folder import RunFolder

    if plot is not None:
        require_matplotlib()
    folder = find_model(model)
    if save and not Path(model, "recipe.toml").is_file():
        raise BeamtreeError(
            f"--save keeps figures in a run folder, but {model} has no recipe.toml: --json prints them"
        )
    weights = weights_checksum(folder)
    place = choose_device(device)
    classifier = load_model(model, device=place)
    set_beam_size(classifier, beam)
    if merged:
        merge_equal_trees(classifier)
    task = classifier.task
    paths = [*(data or ()), *(more or ())] or [data_folder(task.name)]
    for path in paths:
        if not path.exists():
            made = f"make data with: beamtree data {task.name}"
            remedy = "`beamtree data check` says what is there" if task.words else made
            if task.own is not None:
                remedy = f"name a table of yours: beamtree eval {shlex.quote(model)} FILE"
            raise BeamtreeError(f"there is no file or folder {path}; {remedy}")
    recipe_file = Path(model, "recipe.toml")
    choice = load_recipe(recipe_file.resolve()).task.bad_rows if recipe_file.is_file() else "refuse"
    rows = BadRows.chosen(bad_rows or choice)
    sources = find_sources(task, paths, split or (), rows)
    results: list[SplitResult] = []
    run = RunFolder(Path(model))
    company = _company(run, task.labels, place) if baselines and task.own is not None else None
    beside: dict[str, list[Competitor]] = {}
    with count_up("examples") as bar:
        log = EverySoOften(LINE_EVERY)
        for source in sources:
            row = bar.add_task(printable(source.name), total=None)

            def advance(done: int, total: int, name: str = source.name, row: "TaskID" = row) -> None:
                bar.update(row, completed=done, total=total)
                if bar.disable and done < total and log.due():
                    say(f"{name}: {done:,} of {total:,} examples")

            examples: Iterable[Example] = source.read()
            if company is not None:
                examples = list(examples)
                beside[source.name] = company.on(examples)
            results.append(
                run_evaluation(classifier, source.name, examples, batch_tokens=batch_tokens, advance=advance)
            )
            bar.remove_task(row)
    for path in _learnt_from(Path(model), paths):
        say(f"beamtree: the model was trained on {path}: these figures do not test it")
    for sentence in rows.report():
        say(f"beamtree: {sentence}")

    def tell(which: str, weights: str, results: "Iterable[SplitResult]") -> dict[str, Any]:
        return {
            "model": which,
            "encoder": classifier.settings.encoder,
            "task": task.name,
            "beam": beam,
            "merge_equal_trees": merged,
            "weights": weights,
            "device": place.type,
            "command": _command(which, paths, split or (), beam, merged, device),
            "splits": [
                result.to_dict() | {"description": task.splits.get(result.name)} for result in results
            ],
        }

    content = tell(model, weights, results)
    for entry in content["splits"]:
        if entry["split"] in beside:
            entry["baselines"] = [one.to_dict() for one in beside[entry["split"]]]
    if save:
        kept = {model: content}
        for member, inside in member_folders(folder).items():
            if member:  # of an ensemble
                own = str(Path(model, member))
                each = [result.members[member] for result in results]
                kept[own] = tell(own, weights_checksum(inside), each)
        for which, told in kept.items():
            _save(Path(which), told)
    if as_json:
        typer.echo(write_json(content, indent=2))
    else:
        console = Console()
        for result in results:
            if result.confusion is not None:
                parts = [*class_tables(result.confusion, result.name)]
                if company is not None:
                    this = Competitor(classifier.title, result.confusion, run.seconds)
                    parts += company_parts(this, beside[result.name], result.name, company.missing)
                for part in parts:
                    console.print()
                    console.print(part)
            if result.members:
                console.print()
                console.print(members_table(result))
        for table in split_tables(classifier.title, task, results):
            console.print()
            console.print(table)
    if plot is not None:
        for path in draw_splits(results, plot, f"{classifier.title} on {task.name}"):
            say(f"wrote {path}")
        for result in results:
            if result.confusion is not None:
                file = plot / f"confusion-{result.name.replace('/', '-')}.png"
                say(f"wrote {draw_confusion(result.confusion, file)}")


def _company(run: "RunFolder", labels: Sequence[str], device: "torch.device") -> "Company | None":
    """What stands beside a model of a user's own data, where its run folder tells what it was trained on."""
    from beamtree.training.baseline import Company, load_twin, training_rows
    from beamtree.training.recipe import load_recipe

    train = training_rows(run)
    if not train:
        return None
    settings = load_recipe(run.recipe_file.resolve()).training
    return Company(train, labels, settings, load_twin(run, device), twin_seconds=run.without_tree.seconds)


def _learnt_from(run: Path, paths: Sequence[Path]) -> list[Path]:
    """Which of these are files of the user's own that the run was trained on."""
    from beamtree.data.own import find_split
    from beamtree.files.bounded import read_json
    from beamtree.training.run_folder import RunFolder

    file = RunFolder(run).data_file
    match read_json(file) if file.is_file() else None:
        case {"path": str(own)}:
            learnt = set()
            with suppress(BeamtreeError):  # it is gone, and so is none of these
                learnt = {find_split(Path(own), split).resolve() for split in ("train", "dev")}
            return [path for path in paths if path.is_file() and path.resolve() in learnt]
    return []


def _save(run: Path, content: dict[str, Any]) -> None:
    from beamtree.files.atomic import replace_file

    searched = "" if content["beam"] is None else f"-beam{content['beam']}"
    file = run / f"eval{searched}{'-merged' if content['merge_equal_trees'] else ''}.json"
    kept = _beside_what_stands(file, content)
    replace_file(file, write_json(kept, indent=2) + "\n")
    say(f"wrote {file}: {', '.join(entry['split'] for entry in kept['splits'])}")


def _beside_what_stands(file: Path, content: dict[str, Any]) -> dict[str, Any]:
    """These figures, and those of other splits that the file has of the same weights, measured likewise."""
    from beamtree.files.bounded import read_json

    before: Any = None
    with suppress(BeamtreeError):  # what is spoilt is replaced
        before = read_json(file) if file.is_file() else None
    match before:
        case {"splits": [*splits], "command": str(commands), **rest} if all(
            rest.get(key) == content[key]
            for key in ("encoder", "task", "beam", "merge_equal_trees", "weights", "device")
        ):
            new = {entry["split"] for entry in content["splits"]}
            others = [entry for entry in splits if isinstance(entry, dict) and entry.get("split") not in new]
            if others:
                if content["command"] not in commands:
                    commands = f"{commands}; {content['command']}"
                return {**content, "command": commands, "splits": [*others, *content["splits"]]}
    return content


def _command(
    model: str, paths: Sequence[Path], splits: Sequence[str], beam: int | None, merged: bool, device: str
) -> str:
    words = ["beamtree", "eval", model]
    words += [word for path in paths for word in ("--data", str(path))]
    words += [word for split in splits for word in ("--split", split)]
    words += [] if beam is None else ["--beam", str(beam)]
    words += ["--merge-equal-trees"] if merged else []
    words += [] if device == "auto" else ["--device", device]
    return shlex.join(words)
