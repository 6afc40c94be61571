"""`beamtree train RECIPE`: trains a model in a new run folder, or continues an interrupted run."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from beamtree.cli.conventions import say_torch_loads, spell
from beamtree.errors import BeamtreeError
from beamtree.files.bounded import is_file, is_folder

if TYPE_CHECKING:
    from beamtree.training.display import Display
    from beamtree.training.examples import LearningData
    from beamtree.training.recipe import Recipe, TrainingSettings
    from beamtree.training.run_folder import RunFolder


def train(
    recipe: Annotated[
        str | None,
        typer.Argument(help="A shipped recipe (listops, sst5, own for your own files, …) or a TOML file."),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Short for --set training.seed=N.", show_default="the recipe's, 0"),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Train this many models one after another, with consecutive seeds: an ensemble. Every "
            "command takes its folder as a model. After an interruption, the same command continues.",
            show_default="the recipe's, 1",
        ),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="SECTION.KEY=VALUE",
            help="Change a setting, e.g. training.seed=1; may be repeated.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Run folder to create.", show_default="runs/RECIPE-seedN, or -seedsN-M for several"
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder with the task's files; the recipe own also takes a single file.",
            show_default="$BEAMTREE_DATA/TASK or data/TASK; with --resume, as before",
        ),
    ] = None,
    tokens_from: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder or hub name of a Hugging Face encoder that gives tokens their vectors; it is not "
            "trained.",
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            help="Continue the run in this folder from its last checkpoint; with a RECIPE, start it if it "
            "does not exist yet, so that the same command can be restarted."
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Overwrite an existing run.")] = False,
    baselines: Annotated[
        bool,
        typer.Option(
            "--baselines/--no-baselines",
            help="On your own data: also train the same model without its tree, and compare both with "
            "simpler classifiers.",
        ),
    ] = True,
    show: Annotated[
        bool,
        typer.Option(
            "--show",
            help="Print all settings of the RECIPE with their meaning, and do not train; "
            "without a RECIPE, list the shipped recipes.",
        ),
    ] = False,
    max_minutes: Annotated[
        float | None,
        typer.Option(min=0, help="Stop after this many minutes, with a checkpoint to resume from."),
    ] = None,
    max_steps: Annotated[
        int | None, typer.Option(min=1, help="Stop after this many steps, with a checkpoint to resume from.")
    ] = None,
) -> None:
    """Train a model from a recipe.

    The run folder gets recipe.toml, metrics.jsonl (one record per epoch), TensorBoard events, the models
    best/ and last/, and checkpoint/. Ctrl-C stops after the current step and leaves a checkpoint. For several
    GPUs, use accelerate launch -m beamtree train RECIPE.
    """
    changes = [*(() if tokens_from is None else _reading_with(tokens_from)), *(changes or ())]
    changes += [f"training.seed={seed}"] if seed is not None else []
    changes += [f"training.seeds={seeds}"] if seeds is not None else []
    if show:
        typer.echo(_in_full(recipe, changes), nl=False)
        return
    if resume is not None and (out is not None or overwrite):
        raise BeamtreeError("--resume continues a run in its own folder: leave out --out and --overwrite")
    if recipe is None and resume is None:
        raise BeamtreeError("name a RECIPE (--show lists them), or a run folder with --resume")
    say_torch_loads()

    import signal

    from rich.console import Console

    from beamtree.classifier.model import builds_trees, check_model
    from beamtree.training.display import Display
    from beamtree.training.examples import load_learning_data
    from beamtree.training.fit import create_accelerator
    from beamtree.training.processes import failing_together
    from beamtree.training.recipe import without_tree
    from beamtree.training.schedule import Stopping
    from beamtree.training.seeds import begin_within, fit_seeds

    stopping = Stopping(minutes=max_minutes, steps=max_steps)
    accelerator = create_accelerator()
    display = Display(Console(quiet=not accelerator.is_main_process))
    # All processes look at the folder before the first one changes it.
    with failing_together():
        folder, settings, continued = _choose_run(recipe, changes, resume, out, overwrite)
        if resume is not None and continued:
            data = data or _begun_with(folder, display.say)
        if accelerator.is_main_process and not continued:
            folder.refuse_if_taken(overwrite)
        found = load_learning_data(settings, data, display.say)
        check_model(settings.model, found.task, found.words)
        compare = baselines and found.task.own is not None
        trees = compare and builds_trees(settings.model, found.task, found.words)
        twin = without_tree(settings) if trees else None
    with ExitStack() as held:
        with failing_together():
            if accelerator.is_main_process:
                held.enter_context(folder.held())
                if not continued:
                    folder.begin(settings)
                folder.write_data_facts(found.facts(settings.task), found.hashes())
                if twin is not None:
                    begin_within(folder.without_tree, twin, found)
        display.say(
            f"{settings.model.title} on {found.task.name}: {len(found.train):,} training and "
            f"{len(found.dev):,} dev examples, {accelerator.device.type} × {accelerator.num_processes}, "
            f"in {folder.path}"
        )
        if found.task.own is not None:
            _say_if_imbalanced(settings.training, found, display.say)
        shared: dict[str, Any] = {"accelerator": accelerator, "stopping": stopping, "display": display}
        outcomes = fit_seeds(settings, folder, found, **shared)
        last = list(outcomes.values())[-1]
        if twin is not None and last.finished:
            display.say(f"the same model without its tree, for comparison, in {folder.without_tree.path}")
            last = list(fit_seeds(twin, folder.without_tree, found, **shared).values())[-1]
    if not last.finished:
        display.say(f"{last.reason}; continue with: {spell('train', resume=folder.path)}")
    elif accelerator.is_main_process and (found.task.own is not None or len(outcomes) > 1):
        histories = {name: outcome.history for name, outcome in outcomes.items()}
        _show_figures(folder, found, histories, display, compare)
    accelerator.free_memory()  # lets go of the wrapped model, which keeps the process group alive
    accelerator.end_training()
    if stopping.signal_number is not None:
        raise typer.Exit(128 + signal.Signals(stopping.signal_number))


def _choose_run(
    recipe: str | None, changes: Sequence[str], resume: Path | None, out: Path | None, overwrite: bool
) -> "tuple[RunFolder, Recipe, bool]":
    """The run folder, its recipe, and whether it continues an existing run.

    It does if --resume names a run, or if the same command began several seeds that are not all trained.
    """
    from beamtree.training.recipe import load_recipe
    from beamtree.training.run_folder import RunFolder

    if resume is not None and (recipe is None or RunFolder(resume).begun):
        folder = RunFolder(resume)
        return folder, folder.continue_with(recipe, changes), True
    assert recipe is not None  # one of the two is named
    settings = load_recipe(recipe, changes)
    folder = RunFolder(resume or out or Path("runs") / _folder_name(recipe, settings.training))
    unfinished = settings.training.seeds > 1 and not folder.has_all_seeds
    return folder, settings, unfinished and not overwrite and folder.began_with(settings)


def _reading_with(place: str) -> list[str]:
    """The settings behind --tokens-from; words keep their capitals, as the encoder may distinguish them."""
    folder = Path(place).expanduser()
    named = str(folder.absolute()) if is_folder(folder) else place
    return [f"words.tokens_from={json.dumps(named)}", "task.own.tokenizer=cased"]


def _say_if_imbalanced(
    settings: "TrainingSettings", found: "LearningData", say: Callable[[str], None]
) -> None:
    """Say if one label dominates, what to do about it, and if macro-F1 therefore chooses the best epoch."""
    from beamtree.training.classes import IMBALANCED, largest_share
    from beamtree.training.run import choose_selection

    label, share = largest_share(found.train)
    chosen = choose_selection(settings, found.train).selection
    if share > IMBALANCED:
        advice = "; rarer labels count more with --set training.class_weights=balanced"
        say(
            f"{label!r} has {share:.0%} of the training rows: accuracy says little, look at macro-F1"
            + ("" if settings.class_weights == "balanced" else advice)
        )
    if settings.selection == "auto" and chosen == "macro_f1":
        say("the best epoch is chosen by macro-F1 on dev (training.selection)")


def _show_figures(
    folder: "RunFolder",
    found: "LearningData",
    histories: Mapping[str, Sequence[Mapping[str, Any]]],
    display: "Display",
    compare: bool,
) -> None:
    """Show the kept model's results on dev by seed; for own data also by label and next to simpler models."""
    from beamtree.classifier.inference import choose_device
    from beamtree.classifier.model_folder import load_model
    from beamtree.cli.figures import draw_run, result_parts
    from beamtree.training.baseline import Company, Competitor
    from beamtree.training.evaluate import evaluate

    model = load_model(folder.path, device=choose_device("auto"))
    result = evaluate(model, "dev", found.dev)
    comparison = None
    if compare and result.confusion is not None:
        this = Competitor(model.title, result.confusion, folder.seconds)
        comparison = Company.of(folder, model, found.train).beside(this, found.dev)
    for part in result_parts(result, comparison):
        display.console.print()
        display.console.print(part)
    if result.confusion is not None:
        for path in draw_run(folder, histories, result.confusion):
            display.say(f"wrote {path}")
    if result.members:
        display.say(
            f"the ensemble of {len(result.members)} is in {folder.path}; every command takes it as a model"
        )


def _folder_name(recipe: str, settings: "TrainingSettings") -> str:
    first, count = settings.seed, settings.seeds
    return f"{Path(recipe).stem}-" + (f"seed{first}" if count == 1 else f"seeds{first}-{first + count - 1}")


def _begun_with(folder: "RunFolder", say: Callable[[str], None]) -> Path | None:
    """Where a continued run found its data; None if that is not recorded or the data are gone."""
    place = folder.read_data_place()
    if place is None:
        return None
    there = is_file(place) or is_folder(place)
    say(
        f"data: {place}, as before"
        if there
        else f"the data of this run were in {place}, which no longer exists"
    )
    return place if there else None


def _in_full(recipe: str | None, changes: Sequence[str]) -> str:
    from beamtree.training.recipe import load_recipe
    from beamtree.training.recipes import shipped_recipes

    if recipe is not None:
        return load_recipe(recipe, changes).to_toml()
    width = max(map(len, shipped_recipes()))
    return "".join(f"{name:{width}}  {found.about}\n" for name, found in shipped_recipes().items())
