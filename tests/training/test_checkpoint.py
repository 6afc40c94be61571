"""Checkpoints with a valid checksum and impossible content are refused by name and left as they are."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import run_in, small_recipe

from beamtree.errors import BeamtreeError
from beamtree.files import tensors as tensorfile
from beamtree.files.tensors import load_tensors, save_tensors
from beamtree.training.run_folder import RunFolder

RECIPE = small_recipe(training={"max_epochs": 2})
Spoil = Callable[[dict[str, Any], dict[str, Any]], object]


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("begun")
    run_in(folder, RECIPE, steps=7)
    return folder


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda tensors, notes: notes.pop("position"), "KeyError: 'position'"),
        (lambda tensors, notes: notes.update(position=3), "must be a mapping"),
        (
            lambda tensors, notes: notes["position"].update(epochs=-1),
            "epochs and steps must be whole numbers",
        ),
        (lambda tensors, notes: notes["position"].update(epoch_seconds="long"), "epoch_seconds a number"),
        (lambda tensors, notes: notes["position"].update(history=[{"epoch": "1"}]), "KeyError: 'best'"),
        (
            lambda tensors, notes: notes["position"].update(history=[{"epoch": "1", "best": True}]),
            "history must hold",
        ),
        (
            lambda tensors, notes: notes["position"].update(history=[{"epoch": 0, "best": True}]),
            "history must hold",
        ),
        (lambda tensors, notes: notes.update(schedule=[]), "TypeError"),
        (lambda tensors, notes: notes["optimizer"]["groups"][0].update(lr="fast"), "other settings"),
        (lambda tensors, notes: notes["optimizer"]["groups"].pop(), "other settings"),
        (lambda tensors, notes: notes["optimizer"]["numbers"]["0"].update(updates=0), "optimizer.0.updates"),
        (lambda tensors, notes: tensors.update({"optimizer.0.slow": torch.zeros(2)}), "optimizer.0.slow"),
        (lambda tensors, notes: tensors.update({"../../etc/passwd": torch.zeros(2)}), "KeyError"),
        (lambda tensors, notes: tensors.pop("process.sums"), "KeyError: 'sums'"),
        (lambda tensors, notes: tensors.update({"process.sums": torch.zeros(1, 2)}), "bytes and float64"),
        (
            lambda tensors, notes: tensors.update({"process.random": torch.zeros(1, 9, dtype=torch.uint8)}),
            r"process.random is \(1, 9\)",
        ),
    ],
)
def test_impossible_content_is_refused_by_name(begun: Path, spoil: Spoil, reason: str) -> None:
    path = RunFolder(begun).checkpoint_file
    whole = path.read_bytes()
    tensors, notes = load_tensors(path)
    spoil(tensors, notes)
    save_tensors(path, tensors, notes)
    spoilt = path.read_bytes()
    try:
        with pytest.raises(BeamtreeError, match=rf"state\.safetensors does not fit .*{reason}") as caught:
            run_in(begun, RECIPE)
        assert "\n" not in str(caught.value)
        assert path.read_bytes() == spoilt
    finally:
        path.write_bytes(whole)


def test_the_same_checkpoint_unspoilt_is_accepted(begun: Path) -> None:
    assert run_in(begun, RECIPE).finished


@pytest.mark.parametrize("notes", [[], "text", None, 5])
def test_notes_that_are_no_table_are_refused(tmp_path: Path, notes: Any) -> None:
    save_tensors(tmp_path / "x.safetensors", {"a": torch.zeros(2)}, notes)
    with pytest.raises(BeamtreeError, match=r"x\.safetensors has no checksum"):
        load_tensors(tmp_path / "x.safetensors")


def test_a_file_of_more_bytes_than_its_tensors_may_have_is_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorfile, "_LARGEST_HEADER", 1000)
    path = tmp_path / "x.safetensors"
    save_tensors(path, {"a": torch.zeros(1000)}, {})
    assert load_tensors(path, largest=4000)[0]["a"].numel() == 1000
    with pytest.raises(BeamtreeError, match="more than the 1,400 allowed"):
        load_tensors(path, largest=400)
