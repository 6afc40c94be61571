"""A classifier as a folder: `config.json`, `model.safetensors` and `vocabulary.json`; nothing in it is code.

The `config.json` of an ensemble names its members, which are model folders or run folders inside its folder.
"""

import difflib
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from beamtree.classifier.classifier import Prediction
from beamtree.classifier.ensemble import Ensemble
from beamtree.classifier.model import ModelSettings, TreeClassifier, check_model, create_model
from beamtree.data.own import restore
from beamtree.data.task import find_task
from beamtree.data.vocabulary import Vocabulary
from beamtree.data.words import Words, saved_words
from beamtree.errors import BeamtreeError, nearest
from beamtree.files.atomic import make_folder
from beamtree.files.bounded import hash_files, is_file, is_folder, shown
from beamtree.files.settings import from_table
from beamtree.files.tensors import load_tensors, save_tensors
from beamtree.saving.folder import (
    CONFIG,
    VOCABULARY,
    WEIGHTS,
    bytes_of,
    check_fit,
    make_with_weights,
    read_config,
    sizes_of,
    write_config,
)

__all__ = [  # includes names that the old module `beamtree.model` had, which is now this one (moved.py)
    "PRETRAINED",
    "ModelSettings",
    "Prediction",
    "TreeClassifier",
    "check_model",
    "create_model",
    "find_model",
    "load_model",
    "member_folders",
    "model_checksum",
    "save_ensemble",
    "save_model",
    "shipped_models",
    "weights_checksum",
]

_KINDS = {"task": (str, "text"), "labels": (list, "a list"), "model": (dict, "a table")}
PRETRAINED = Path(__file__).resolve().parent / "pretrained"
_MEMBER = re.compile(r"\w[\w-]*")  # cannot lead out of the ensemble's folder
_MOST_MEMBERS = 100


def save_model(model: TreeClassifier, folder: Path, notes: dict[str, Any] | None = None) -> None:
    """Write a model folder; over one of the same config and words it only replaces the weights, at once."""
    make_folder(folder)
    content: dict[str, Any] = {
        "task": model.task.name,
        "labels": list(model.task.labels),
        "model": asdict(model.settings),
    }
    if model.parser is not None:
        content["parser"] = asdict(model.parser.settings)
    if model.task.own is not None:
        content["own"] = dict(model.task.own)
    if (vectors := model.words.describe_vectors()) is not None:
        content["vectors"] = vectors
    write_config(folder, content)
    model.words.own.save(folder / VOCABULARY)
    save_tensors(folder / WEIGHTS, model.state_dict(), notes or {})


def save_ensemble(folder: Path, names: Sequence[str]) -> None:
    """Turn a folder that contains model or run folders with these names into an ensemble of them."""
    write_config(folder, {"members": list(names)})


def load_model(path_or_name: str | Path, *, device: torch.device | str = "cpu") -> TreeClassifier | Ensemble:
    """Load a model folder, a run folder's best model or a shipped model by name, in evaluation mode."""
    folder = find_model(path_or_name)
    folders = member_folders(folder)
    if "" in folders:
        return _load_one(folder, device)
    members: dict[str, TreeClassifier] = {}
    for name, place in folders.items():
        members[name] = _load_one(place, device, next(iter(members.values()), None))
    return Ensemble(members).eval()


def member_folders(folder: Path) -> dict[str, Path]:
    """Return the model folders of an ensemble by name; for a single model its folder, by the name ""."""
    config = read_config(folder, {})
    if "members" not in config:
        return {"": folder}
    names = config["members"]
    if (
        not isinstance(names, list)
        or not all(isinstance(name, str) and _MEMBER.fullmatch(name) for name in names)
        or not 0 < len(names) == len(set(names)) <= _MOST_MEMBERS
    ):
        raise BeamtreeError(
            f"{folder / CONFIG}: members must be names of folders next to it, got {shown(names)}"
        )
    return {name: find_model(folder / name) for name in names}


def model_checksum(folder: Path) -> str:
    """Return the checksum of all files that determine what a model predicts."""
    names = (CONFIG, VOCABULARY, WEIGHTS)
    return hash_files(*(place / name for place in member_folders(folder).values() for name in names))


def weights_checksum(folder: Path) -> str:
    """Return the checksum of the weights alone, with which an evaluation records what it measured."""
    return hash_files(*(place / WEIGHTS for place in member_folders(folder).values()))


def _load_one(folder: Path, device: torch.device | str, like: TreeClassifier | None = None) -> TreeClassifier:
    """Load a single model; it shares the words of `like` if they are the same."""
    config = read_config(folder, _KINDS)
    source = str(folder / CONFIG)
    settings = _settings(config["model"], source)
    parser = _settings(config["parser"], source, "parser.") if "parser" in config else None
    vocabulary, vectors = Vocabulary.load(folder / VOCABULARY), config.get("vectors")
    shared: Words | None = None
    if like is not None and (like.words.own, like.words.describe_vectors()) == (vocabulary, vectors):
        shared = like.words

    def make() -> TreeClassifier:  # with its words, because their vectors' size comes from the config too
        return TreeClassifier(settings, task, shared or saved_words(vocabulary, vectors), parser)

    try:
        task = find_task(config["task"])
        if task.own is not None:
            task = restore(config["labels"], config.get("own"))
        wanted = sizes_of(make)
    except BeamtreeError as error:
        raise BeamtreeError(f"{source}: {error}") from error
    if config["labels"] != list(task.labels):
        raise BeamtreeError(f"{source}: its labels are not those of the task {task.name!r}")
    tensors, notes = load_tensors(folder / WEIGHTS, largest=bytes_of(wanted))
    check_fit(wanted, tensors, folder / WEIGHTS, f"{CONFIG} and {VOCABULARY}")
    model = make_with_weights(make, tensors, device)
    model.notes = notes
    return model


def read_settings(path_or_name: str | Path) -> ModelSettings:
    """Read the settings of a model without its weights; those of the first member of an ensemble."""
    folder = next(iter(member_folders(find_model(path_or_name)).values()))
    return _settings(read_config(folder, _KINDS)["model"], str(folder / CONFIG))


def _settings(table: Any, source: str, prefix: str = "model.") -> ModelSettings:
    if not isinstance(table, dict):
        raise BeamtreeError(f"{source}: {prefix.rstrip('.')} must be a table, got {shown(table)}")
    return from_table(ModelSettings, table, source=source, prefix=prefix)


def shipped_models() -> tuple[str, ...]:
    """Return the names of the models that come with beamtree."""
    return tuple(sorted(entry.name for entry in PRETRAINED.glob("*") if (entry / CONFIG).is_file()))


def find_model(path_or_name: str | Path) -> Path:
    """Find the model folder of a path (a model or run folder) or of a name that comes with beamtree."""
    path = Path(path_or_name)
    for folder in (path, path / "best"):
        if is_file(folder / CONFIG):
            return folder
    if is_file(path / "last" / CONFIG):
        raise BeamtreeError(
            f"there is no best model in {path / 'best'} yet, because the first epoch is not finished: "
            f"continue with beamtree train --resume {path}, or use the weights so far, {path / 'last'}"
        )
    shipped = shipped_models()
    if str(path_or_name) in shipped:
        return PRETRAINED / str(path_or_name)
    if is_file(path / "recipe.toml") and any(path.glob("seed*/recipe.toml")):
        raise BeamtreeError(
            f"not all seeds of {path} are trained: continue with beamtree train --resume {path}"
        )
    if is_folder(path):
        raise BeamtreeError(f"{path} is not a model folder: neither it nor {path / 'best'} has a config.json")
    known = nearest(str(path_or_name), shipped) if shipped else ""
    beside = [found.name for found in path.parent.iterdir()] if is_folder(path.parent) else []
    if len(path.parts) > 1 and (close := difflib.get_close_matches(path.name, beside, n=1)):
        known = f"; did you mean {shown(str(path.parent / close[0]))}?"
    elif not beside and re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", str(path_or_name)):  # as on the hub
        call = f"TreeClassifier.from_pretrained({shown(str(path_or_name))})"
        known = f"; to load it from the Hugging Face hub, use {call}"
    raise BeamtreeError(f"there is no model {shown(str(path_or_name))}: no folder or shipped model{known}")
