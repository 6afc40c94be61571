"""A classifier's folder: `config.json`, `model.safetensors` and `vocabulary.json`; nothing in it is code."""

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from beamtree.classifier.model import ModelSettings, Prediction, TreeClassifier, check_model, create_model
from beamtree.data.own import restore
from beamtree.data.task import find_task
from beamtree.data.vocabulary import Vocabulary
from beamtree.data.words import saved_words
from beamtree.errors import BeamtreeError, nearest
from beamtree.files.atomic import make_folder
from beamtree.files.bounded import is_file, is_folder, shown
from beamtree.files.settings import from_table
from beamtree.files.tensors import load_tensors, save_tensors
from beamtree.saving.folder import (
    CONFIG,
    VOCABULARY,
    WEIGHTS,
    bytes_of,
    check_fit,
    filled,
    read_config,
    sizes_of,
    write_config,
)

__all__ = [  # the old module `beamtree.model` is this one now (moved.py), and had all of these
    "PRETRAINED",
    "ModelSettings",
    "Prediction",
    "TreeClassifier",
    "check_model",
    "create_model",
    "find_model",
    "load_model",
    "save_model",
    "shipped_models",
]

_KINDS = {"task": (str, "text"), "labels": (list, "a list"), "model": (dict, "a table")}
PRETRAINED = Path(__file__).resolve().parent / "pretrained"


def save_model(model: TreeClassifier, folder: Path, notes: dict[str, Any] | None = None) -> None:
    """Write a model folder. Where one of the same shape stands, only its weights change, in one rename."""
    make_folder(folder)
    content: dict[str, Any] = {
        "task": model.task.name,
        "labels": list(model.task.labels),
        "model": asdict(model.settings),
    }
    if model.task.own is not None:
        content["own"] = dict(model.task.own)
    if model.words.vectors is not None:
        content["vectors"] = model.words.describe_vectors()
    write_config(folder, content)
    model.words.own.save(folder / VOCABULARY)
    save_tensors(folder / WEIGHTS, model.state_dict(), notes or {})


def load_model(path_or_name: str | Path, *, device: torch.device | str = "cpu") -> TreeClassifier:
    """The model of a folder, of a run folder (its best) or of a name that ships with beamtree; evaluating."""
    folder = find_model(path_or_name)
    config = read_config(folder, _KINDS)
    source = str(folder / CONFIG)
    settings = from_table(ModelSettings, config["model"], source=source, prefix="model.")
    vocabulary, vectors = Vocabulary.load(folder / VOCABULARY), config.get("vectors")

    def make() -> TreeClassifier:  # words and all: their vectors have the size that the config says
        return TreeClassifier(settings, task, saved_words(vocabulary, vectors))

    try:
        task = find_task(config["task"])
        if task.own is not None:
            task = restore(config["labels"], config.get("own"))
        wanted = sizes_of(make)
    except BeamtreeError as error:
        raise BeamtreeError(f"{source}: {error}") from error
    if config["labels"] != list(task.labels):
        raise BeamtreeError(f"{source} lists other labels than the task {task.name!r} has")
    tensors, notes = load_tensors(folder / WEIGHTS, largest=bytes_of(wanted))
    check_fit(wanted, tensors, folder / WEIGHTS, f"{CONFIG} and {VOCABULARY}")
    model = filled(make, tensors, device)
    model.notes = notes
    return model


def shipped_models() -> tuple[str, ...]:
    """The names of the models that come with beamtree."""
    return tuple(sorted(entry.name for entry in PRETRAINED.glob("*") if (entry / CONFIG).is_file()))


def find_model(path_or_name: str | Path) -> Path:
    """The model folder that a path or a shipped name means."""
    path = Path(path_or_name)
    for folder in (path, path / "best"):
        if is_file(folder / CONFIG):
            return folder
    if is_file(path / "last" / CONFIG):
        raise BeamtreeError(
            f"no epoch of {path} is finished, so that none is best; {path / 'last'} has the weights so far"
        )
    shipped = shipped_models()
    if str(path_or_name) in shipped:
        return PRETRAINED / str(path_or_name)
    if is_folder(path):
        raise BeamtreeError(f"{path} is no model folder: it has no config.json, nor has {path / 'best'}")
    known = nearest(str(path_or_name), shipped) if shipped else ""
    if re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", str(path_or_name)):  # as the hub names its repositories
        known = f"; TreeClassifier.from_pretrained({shown(str(path_or_name))}) asks the Hugging Face hub"
    raise BeamtreeError(f"there is no model {shown(str(path_or_name))}, neither a folder nor shipped{known}")
