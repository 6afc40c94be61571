"""What there is to say of a model before it is asked anything."""

import math
from dataclasses import asdict
from typing import Any

from beamtree.classifier.model import TreeClassifier
from beamtree.explorer.outcome import is_watched

_FIGURES = ("epoch", "train_accuracy", "dev_accuracy")


def describe_model(name: str, model: TreeClassifier) -> dict[str, Any]:
    """Plain JSON values; nothing of it tells where on the machine the model lies."""
    settings = asdict(model.settings)
    return {
        "name": name,
        "task": model.task.name,
        "encoder": settings.pop("encoder"),
        "sentences": model.task.sentences,
        "labels": list(model.task.labels),
        "beam_size": getattr(model.encoder, "beam_size", None),
        "kind": kind_of(model),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "settings": _finite(settings),
        "figures": {key: model.notes[key] for key in _FIGURES if _is_figure(model.notes.get(key))},
    }


def _finite(value: Any) -> Any:
    """None for a number that JSON does not have; Python reads it in files, browsers do not."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _is_figure(value: Any) -> bool:
    """Notes may be a stranger's."""
    return type(value) in (int, float) and math.isfinite(value)


def kind_of(model: TreeClassifier) -> str:
    """`search`: trees with all steps that led to them; `tree`: trees only; `none`: a prediction only."""
    if is_watched(model):
        return "search"
    return "tree" if model.builds_trees else "none"


def explain_kind(model: TreeClassifier) -> str | None:
    """A sentence for people on what a view of this model lacks."""
    kind, name = kind_of(model), model.settings.encoder
    if kind == "none":
        return f"The encoder {name} builds no tree: there is a prediction only."
    if kind == "tree":
        return f"The encoder {name} shows its trees, but not the steps that led to them."
    return None
