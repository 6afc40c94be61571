"""The models of one explorer, by names that tell nothing of the machine's folders."""

from collections.abc import Iterable

from beamtree.classifier.inference import choose_device
from beamtree.classifier.model import TreeClassifier, find_model, load_model, shipped_models
from beamtree.errors import BeamtreeError


def load_models(wanted: Iterable[str], device: str = "cpu") -> dict[str, TreeClassifier]:
    """The models of these folders and names, or all that come with beamtree; named by their last folder."""
    models: dict[str, TreeClassifier] = {}
    for path in list(wanted) or shipped_models():
        folder = find_model(path).resolve()
        name = folder.parent.name if folder.name == "best" else folder.name
        number, unique = 2, name
        while unique in models:
            unique, number = f"{name}-{number}", number + 1
        models[unique] = load_model(path, device=choose_device(device))
    if not models:
        raise BeamtreeError("beamtree comes without a model here: name a model folder or a run folder")
    return models
