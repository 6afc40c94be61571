"""`beamtree eval MODEL --data …`: accuracy, loss and trees by split, length, depth; tables, JSON, plots."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from beamtree.cli.conventions import (
    BatchTokens,
    Beam,
    Device,
    Model,
    counting,
    open_model,
    say,
    say_torch_loads,
    spell,
)
from beamtree.errors import BeamtreeError
from beamtree.printable import write_json

if TYPE_CHECKING:
    from beamtree.classifier.classifier import Classifier
    from beamtree.data.task import Example, Task
    from beamtree.training.baseline import Comparison
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
            help="Save the JSON in the run folder for `report`: eval.json; eval-beamK.json with --beam, "
            "eval-merged.json with --merge-equal-trees. Results already saved for other splits are kept.",
        ),
    ] = False,
    baselines: Annotated[
        bool,
        typer.Option(
            "--baselines/--no-baselines",
            help="For a run on your own data: also train simpler classifiers on the same training rows and "
            "evaluate them on the same data.",
        ),
    ] = True,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Folder for plots: accuracy by length and depth; for your own data also confusion matrices."
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
    """Evaluate a model on labelled data.

    Accuracy comes with Wilson's 95 % interval. For your own data, macro-F1, precision, recall and F1 of every
    label and the confusion matrix come first. Bracketing F1 compares the best trees with the gold trees,
    unlabelled, over the whole split; it counts spans of two or more tokens, except the whole sentence. Exact
    is the share of sentences whose tree equals the gold tree. Both leave out sentences of one or two tokens,
    which have only one tree. A dash means that the encoder builds no tree.
    """
    say_torch_loads()

    from beamtree.classifier.inference import merge_equal_trees
    from beamtree.classifier.model_folder import find_model, member_folders, weights_checksum
    from beamtree.data.folders import data_folder
    from beamtree.data.task import BadRows
    from beamtree.paper.evaluations import Search, describe_evaluation, save_evaluation
    from beamtree.training.baseline import Company, Competitor, training_rows
    from beamtree.training.evaluate import evaluate as run_evaluation
    from beamtree.training.examples import find_sources
    from beamtree.training.plots import require_matplotlib
    from beamtree.training.run_folder import RunFolder

    if plot is not None:
        require_matplotlib()
    folder, run = find_model(model), RunFolder(Path(model))
    if save and not run.begun:
        raise BeamtreeError(
            f"--save writes to a run folder, but {model} has no recipe.toml: --json prints the results"
        )
    weights = weights_checksum(folder)
    classifier = open_model(model, device, beam)
    if merged:
        merge_equal_trees(classifier)
    task = classifier.task
    paths = [*(data or ()), *(more or ())] or [data_folder(task.name)]
    for path in paths:
        if task.own is not None and not (data or more or path.exists()):
            raise BeamtreeError(f"name a table to test on: beamtree eval {shlex.quote(model)} FILE")
        if not path.exists():
            raise BeamtreeError(
                f"there is no file or folder {path}: check the name, or {_how_to_get(task, model)}"
            )
    chosen = run.read_recipe().task.bad_rows if run.begun else "refuse"
    rows = BadRows.chosen(bad_rows or chosen, "--bad-rows skip")
    results: list[SplitResult] = []
    train = training_rows(run) if baselines and task.own is not None else []
    company = Company.of(run, classifier, train) if train else None
    comparisons: dict[str, Comparison] = {}
    warnings: list[str] = []
    for source in find_sources(task, paths, split or (), rows):
        examples: Iterable[Example] = source.read()
        if (seen := run.seen_rows()) is not None:
            examples = seen.watch(examples)
        if company is not None:
            examples = list(examples)
        with counting(source.name, "examples") as show:
            result = run_evaluation(
                classifier, source.name, examples, batch_tokens=batch_tokens, advance=show
            )
        results.append(result)
        if company is not None and result.confusion is not None:
            this = Competitor(classifier.title, result.confusion, run.seconds)
            comparisons[source.name] = company.beside(this, list(examples))
        if seen is not None:
            warnings += filter(None, [seen.warning(source.name, is_dev=source.name == "dev")])
    if not run.rows_file.is_file():  # begun by an older version
        warnings += [
            f"the model was trained on {path}, so these results do not test it"
            for path in _learnt_from(run, paths)
        ]
    for sentence in warnings:
        say(f"beamtree: {sentence}")
    for sentence in rows.report():
        say(f"beamtree: {sentence}")

    def tell(which: str, weights: str, results: "Iterable[SplitResult]") -> dict[str, Any]:
        options = {"beam": beam, "merge_equal_trees": merged, "device": device if device != "auto" else None}
        command = spell("eval", which, data=paths, split=split, **options)
        return describe_evaluation(classifier, which, Search(beam, merged), weights, command, results)

    def keep(place: Path, content: dict[str, Any]) -> None:
        file, splits = save_evaluation(place, content)
        say(f"wrote {file}: {', '.join(splits)}")

    content = tell(model, weights, results)
    for entry in content["splits"]:
        if entry["split"] in comparisons:
            entry["baselines"] = [one.to_dict() for one in comparisons[entry["split"]].others]
    if save:
        keep(run.path, content)
        for member, inside in member_folders(folder).items():
            if member:  # of an ensemble
                own, figures = run.path / member, [result.members[member] for result in results]
                keep(own, tell(str(own), weights_checksum(inside), figures))
    if as_json:
        typer.echo(write_json(content, indent=2))
    else:
        _print(classifier, results, comparisons)
    if plot is not None:
        _draw(classifier, results, plot)


def _how_to_get(task: "Task", model: str) -> str:
    if task.own is not None:
        return f"name another table: beamtree eval {shlex.quote(model)} FILE"
    if task.words:
        return "see what is there: beamtree data check"
    return f"generate data with: beamtree data {task.name}"


def _print(
    model: "Classifier",
    results: "Sequence[SplitResult]",
    comparisons: "Mapping[str, Comparison]",
) -> None:
    from rich.console import Console

    from beamtree.cli.figures import result_parts, split_tables

    parts = [part for result in results for part in result_parts(result, comparisons.get(result.name))]
    console = Console()
    for part in (*parts, *split_tables(model.title, model.task, results)):
        console.print()
        console.print(part)


def _draw(model: "Classifier", results: "Sequence[SplitResult]", folder: Path) -> None:
    from beamtree.cli.figures import draw_splits
    from beamtree.training.plots import draw_confusion

    paths = draw_splits(results, folder, f"{model.title} on {model.task.name}")
    for result in results:
        if result.confusion is not None:
            file = folder / f"confusion-{result.name.replace('/', '-')}.png"
            paths.append(draw_confusion(result.confusion, file))
    for path in paths:
        say(f"wrote {path}")


def _learnt_from(run: "RunFolder", paths: Sequence[Path]) -> list[Path]:
    """Those of these files on which the run was trained, if it was trained on the user's own data."""
    from beamtree.data.own import split_file

    learnt = set()
    with suppress(BeamtreeError):  # the training files are gone, so none of these is one
        if own := (run.read_data_facts() or {}).get("path"):
            learnt = {split_file(Path(own), split).resolve() for split in ("train", "dev")}
    return [path for path in paths if path.is_file() and path.resolve() in learnt]
