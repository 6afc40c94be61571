"""The models of an explorer: loading them, describing them without revealing folders, and example texts."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import cache
from typing import Any, NamedTuple

import torch

from beamtree.classifier.classifier import Classifier
from beamtree.classifier.inference import choose_device
from beamtree.classifier.model import create_model
from beamtree.classifier.model_folder import find_model, load_model, shipped_models
from beamtree.data.listops import sample_expressions
from beamtree.errors import BeamtreeError
from beamtree.explorer.answer import follows_gold, is_watched
from beamtree.printable import finite

_TWIN = "untrained_twin_of"  # key in the notes of an untrained model
_FIGURES = ("epoch", "train_accuracy", "dev_accuracy")


class Ready(NamedTuple):
    title: str
    texts: tuple[str, ...]


_LISTOPS = (
    Ready("a list in a list", ("[MAX 2 9 [MIN 4 7 ] 0 ]",)),  # the page opens with this one
    Ready("three levels", ("[SM 4 [MAX 2 9 [MIN 4 7 ] 0 ] [MED 1 8 5 ] ]",)),
    Ready("flat", ("[MAX 2 9 4 7 0 ]",)),
    Ready("one digit", ("5",)),
)
_LOGIC = (
    Ready("part of the first", ("( a ( and b ) )", "a")),
    Ready("de Morgan", ("( not ( a ( or b ) ) )", "( ( not a ) ( and ( not b ) ) )")),
    Ready("never both true", ("( c ( and ( not d ) ) )", "( d ( and ( not c ) ) )")),
)
_FILTERS = (
    Ready("one comparison", ("7 < 5",)),
    Ready("and before or", ("1 < 2 or 3 < 4 and blue = red",)),
    Ready("in brackets", ("7 < 5 and not ( blue = red or 2 > 3 )",)),
    Ready("four levels", ("not ( 3 > 1 and ( red != red or not ( 4 < 9 and ( 2 > 8 or grey = grey ) ) ) )",)),
)
_SENTENCES = (
    Ready("short", ("a gripping film with a weak ending",)),
    Ready("negated", ("I did not expect to like it, but I could not look away.",)),
)
_PAIRS = (
    Ready("follows", ("A man plays the guitar on a stage.", "A man is making music.")),
    Ready("contradicts", ("Two dogs run through the snow.", "The dogs are asleep.")),
    Ready("one question twice", ("How do I learn to play chess?", "What is the best way to learn chess?")),
)
_RANDOM = ((1, 50), (1, 100), (2, 99), (6, 83))  # expressions, tokens of each; several are put into one list


def load_models(wanted: Iterable[str], device: str = "cpu") -> dict[str, Classifier]:
    """Load these folders or names, or all models that come with beamtree. Keys are the last folder names."""
    models: dict[str, Classifier] = {}
    for path in list(wanted) or shipped_models():
        folder = find_model(path).resolve()
        name = folder.parent.name if folder.name == "best" else folder.name
        number, unique = 2, name
        while unique in models:
            unique, number = f"{name}-{number}", number + 1
        models[unique] = load_model(path, device=choose_device(device))
    if not models:
        raise BeamtreeError("beamtree is installed without models here: name a model folder or a run folder")
    return models


def add_untrained(models: Mapping[str, Classifier]) -> dict[str, Classifier]:
    """These models and, for comparison, an untrained version of each that searches in a formal language."""
    found = dict(models)
    for name, model in models.items():
        twin = f"{name}-untrained"
        if model.task.tokens and is_watched(model) and twin not in found:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                fresh = create_model(model.settings, model.task)
            found[twin] = fresh.to(next(model.parameters()).device).eval()
            fresh.notes = {_TWIN: name}
    return found


def describe_model(name: str, model: Classifier) -> dict[str, Any]:
    """Describe a model in plain JSON values, without revealing where on the machine it is."""
    settings = asdict(model.settings)
    del settings["encoder"]
    return {
        "name": name,
        "task": model.task.name,
        "encoder": model.settings.title,
        "sentences": model.task.sentences,
        "labels": list(model.task.labels),
        "beam_size": getattr(model.members[0].encoder, "beam_size", None),
        "kind": kind_of(model),
        "follows_gold": kind_of(model) == "search" and follows_gold(model),
        "untrained_twin_of": model.notes.get(_TWIN),
        "members": len(model.members),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "settings": finite(settings),
        "figures": {key: model.notes[key] for key in _FIGURES if _is_figure(model.notes.get(key))},
    }


def _is_figure(value: Any) -> bool:
    """Check a value of the notes, which may come from a stranger."""
    return type(value) in (int, float) and math.isfinite(value)


def kind_of(model: Classifier) -> str:
    """`search`: trees with all steps that led to them; `tree`: only trees; `none`: only a prediction."""
    if is_watched(model):
        return "search"
    return "tree" if model.builds_trees else "none"


def explain_kind(model: Classifier, longest: int = 0) -> str | None:
    """Sentences about what a view of this model lacks. `longest`: number of tokens of the longest text."""
    kind, name = kind_of(model), model.settings.title
    notes = []
    if kind == "none":
        notes.append(f"The encoder {name} builds no tree, so there is only a prediction.")
    if kind == "tree":
        notes.append(f"The encoder {name} shows its trees, but not the steps that led to them.")
    if len(model.members) > 1:
        of = "" if kind == "none" else "; the trees and the values in them are those of the first"
        notes.append(f"The prediction is the mean of {len(model.members)} models{of}.")
    most, front = model.settings.tree_tokens, model.settings.tree_tokens_in_front
    if kind != "none" and 0 < most < longest:
        notes.append(f"The tree covers the first {front} and the last {most - front} of {longest:,} tokens.")
    return " ".join(notes) or None


def examples_for(model: Classifier) -> list[Ready]:
    """Example texts of which the model knows at least half the words. There may be none."""
    return [ready for ready in _examples_of(model.task.name, model.task.sentences) if _is_known(ready, model)]


def _is_known(ready: Ready, model: Classifier) -> bool:
    tokens = [token for text in ready.texts for token in model.task.tokenize(text)]
    return 2 * sum(token in model.vocabulary for token in tokens) >= len(tokens)


@cache
def _examples_of(task: str, sentences: int) -> tuple[Ready, ...]:
    if task == "listops":
        return (*_LISTOPS, *(_random_list(*sizes) for sizes in _RANDOM))
    if task == "logic":
        return _LOGIC
    if task == "filters":
        return _FILTERS
    return _SENTENCES if sentences == 1 else _PAIRS


def _random_list(count: int, length: int) -> Ready:
    # Short expressions are quick to draw, and a list of several serves as a long one.
    drawn = sample_expressions(count, seed=length, min_length=length, max_length=length)
    tokens = [token for example in drawn for token in example.sentences[0]]
    if count > 1:
        tokens = ["[SM", *tokens, "]"]
    return Ready(f"{len(tokens)} tokens", (" ".join(tokens),))
