"""Trains several seeds of a recipe, one after another in one folder, which is an ensemble in the end."""

from typing import TYPE_CHECKING

from beamtree.classifier.model_folder import save_ensemble
from beamtree.training.display import Display
from beamtree.training.examples import LearningData
from beamtree.training.fit import TrainingEnd, fit
from beamtree.training.processes import failing_together
from beamtree.training.recipe import Recipe, by_seed
from beamtree.training.run_folder import RunFolder, best_epoch
from beamtree.training.schedule import Stopping

if TYPE_CHECKING:
    from accelerate import Accelerator


def fit_seeds(
    recipe: Recipe,
    folder: RunFolder,
    data: LearningData,
    *,
    accelerator: "Accelerator",
    stopping: Stopping,
    display: Display,
) -> dict[str, TrainingEnd]:
    """Train in a folder that has begun, from where it stopped; several seeds each in a folder within it.

    Returns how each ended, by the name of its folder; the last one shows how the whole ended.
    """
    alone = by_seed(recipe) or {"": recipe}
    main = accelerator.is_main_process
    outcomes: dict[str, TrainingEnd] = {}
    for number, (name, own) in enumerate(alone.items(), start=1):
        place = RunFolder(folder.path / name)
        if name:
            display.say(f"seed {own.training.seed}, {number} of {len(alone)}, in {place.path}")
            with failing_together():
                if main:
                    begin_within(place, own, data)
                    if not folder.data_place_file.is_file():
                        folder.write_data_place(data.place)
        outcomes[name] = outcome = fit(
            own, place, data, accelerator=accelerator, stopping=stopping, display=display
        )
        with failing_together():
            if main and name:  # only now, so that a run that cannot continue as asked stays unchanged
                folder.keep_recipe(recipe)
                folder.write_data_place(data.place)
        if not outcome.finished:
            return outcomes
        display.say(_ending(outcome, place))
        accelerator.free_memory()  # lets go of the wrapped model, which keeps the process group alive
    with failing_together():
        if main and len(alone) > 1:
            save_ensemble(folder.path, list(alone))
    return outcomes


def begin_within(place: RunFolder, recipe: Recipe, data: LearningData) -> None:
    """Begin a run that is part of another, or check that it may continue."""
    if place.begun:
        place.refuse_other_settings(recipe)
    else:
        place.begin(recipe)
    place.write_data_facts(data.facts(recipe.task), data.hashes())


def _ending(outcome: TrainingEnd, folder: RunFolder) -> str:
    best = best_epoch(outcome.history)
    assert best is not None  # the first epoch is always the best so far
    macro = f" and macro-F1 {best['dev_macro_f1']:.2%}" if "dev_macro_f1" in best else ""
    return (
        f"finished: {outcome.reason}; best epoch {best['epoch']} with dev accuracy "
        f"{best['dev_accuracy']:.2%}{macro}, in {folder.best}"
    )
