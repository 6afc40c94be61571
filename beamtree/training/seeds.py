"""Several seeds of one recipe, one after another in one folder, which is an ensemble when all are trained."""

from typing import TYPE_CHECKING

from beamtree.classifier.model_folder import save_ensemble
from beamtree.processes.launched import failing_together
from beamtree.training.display import Display
from beamtree.training.examples import LearningData
from beamtree.training.fit import TrainingEnd, fit
from beamtree.training.recipe import Recipe, by_seed
from beamtree.training.run_folder import RunFolder
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
    """Train in a folder that has begun, from where it stopped; of several seeds each in a folder within it.

    How each ended, by the name of its folder; the last of them tells how the whole did.
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
            if main and name:  # only now: a run that cannot go on as asked stays as it was
                folder.write_recipe(recipe)
                folder.write_data_place(data.place)
        if not outcome.finished:
            return outcomes
        display.say(_ending(outcome, place))
        accelerator.free_memory()  # the wrapped model, which holds on to the process group
    with failing_together():
        if main and len(alone) > 1:
            save_ensemble(folder.path, list(alone))
    return outcomes


def begin_within(place: RunFolder, recipe: Recipe, data: LearningData) -> None:
    """Begin a run that is part of another, or see that it may go on."""
    if place.begun:
        place.refuse_other_settings(recipe)
    else:
        place.begin(recipe)
    place.write_data_facts(data.facts(recipe.task))


def _ending(outcome: TrainingEnd, folder: RunFolder) -> str:
    best = [record for record in outcome.history if record["best"]][-1]
    macro = f" and macro-F1 {best['dev_macro_f1']:.2%}" if "dev_macro_f1" in best else ""
    return (
        f"finished: {outcome.reason}; best epoch {best['epoch']} with dev accuracy "
        f"{best['dev_accuracy']:.2%}{macro}, in {folder.best}"
    )
