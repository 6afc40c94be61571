"""A run stopped anywhere and resumed ends as if it had never stopped, and nothing saved is lost."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import run_in, small_examples, small_recipe, without_times

from beamtree.classifier.model import create_model
from beamtree.classifier.model_folder import load_model
from beamtree.data.task import find_task
from beamtree.errors import BeamtreeError
from beamtree.files.tensors import load_tensors, save_tensors
from beamtree.training.recipe import Recipe
from beamtree.training.run import create_optimizer
from beamtree.training.run_folder import RunFolder

# Dropout and Gumbel noise on, two micro-batches a step, a rate that falls: everything a checkpoint must hold.
NOISY = small_recipe(
    model={"encoder": "ebt-grc", "options": {"beam_size": 2}},
    training={
        "micro_batch_size": 4,
        "plateau_patience": 0,
        "patience": 10,
        "learning_rate": 0.2,
        "selection": "accuracy",
    },
)
STEPS = 15  # 3 epochs of 40 examples by 8


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uninterrupted")
    run_in(folder, NOISY)
    return folder


def assert_same_ending(folder: Path, uninterrupted: Path) -> None:
    assert without_times(RunFolder(folder).read_metrics()) == without_times(
        RunFolder(uninterrupted).read_metrics()
    )
    for name in ("best", "last"):
        weights, _ = load_tensors(folder / name / "model.safetensors")
        wanted, _ = load_tensors(uninterrupted / name / "model.safetensors")
        assert weights.keys() == wanted.keys()
        assert all(weights[key].equal(wanted[key]) for key in wanted)


@pytest.mark.parametrize("steps", [1, 4, 5, 6, 12])
def test_a_run_stopped_at_any_step_and_resumed_ends_bit_for_bit_as_one_never_stopped(
    tmp_path: Path, uninterrupted: Path, steps: int
) -> None:
    outcome = run_in(tmp_path, NOISY, steps=steps)
    assert not outcome.finished
    assert outcome.reason == f"stopped after {steps} steps, as asked"
    assert len(outcome.history) == steps // 5
    assert run_in(tmp_path, NOISY).finished
    assert_same_ending(tmp_path, uninterrupted)


def test_a_run_with_adamw_resumes_bit_for_bit_too(tmp_path: Path) -> None:
    recipe = replace(NOISY, training=replace(NOISY.training, optimizer="adamw"))
    run_in(tmp_path / "whole", recipe)
    for steps in (3, 6, None):
        run_in(tmp_path / "parts", recipe, steps=steps)
    assert_same_ending(tmp_path / "parts", tmp_path / "whole")
    assert run_in(tmp_path / "whole", recipe).history != run_in(tmp_path / "ranger", NOISY).history


def test_a_run_begun_with_the_fused_adamw_of_a_gpu_continues_on_a_cpu(tmp_path: Path) -> None:
    recipe = replace(NOISY, training=replace(NOISY.training, optimizer="adamw"))
    run_in(tmp_path / "whole", recipe)
    run_in(tmp_path / "begun", recipe, steps=4)
    checkpoint = RunFolder(tmp_path / "begun").checkpoint_file
    tensors, notes = load_tensors(checkpoint)
    assert [group["fused"] for group in notes["optimizer"]["groups"]] == [None]
    for group in notes["optimizer"]["groups"]:
        group["fused"] = True
    save_tensors(checkpoint, tensors, notes)
    assert run_in(tmp_path / "begun", recipe).finished
    assert_same_ending(tmp_path / "begun", tmp_path / "whole")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_adamw_on_a_gpu_takes_the_same_steps_in_one_launch() -> None:
    recipe = replace(NOISY, training=replace(NOISY.training, optimizer="adamw"))
    models = [create_model(recipe.model, find_task("listops")).cuda() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    fused, plain = (
        create_optimizer(model, recipe, torch.device(device))
        for model, device in zip(models, ("cuda", "cpu"), strict=True)
    )
    assert [optimizer.param_groups[0]["fused"] for optimizer in (fused, plain)] == [True, None]
    for _ in range(5):
        for one, other in zip(*(model.parameters() for model in models), strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        fused.step()
        plain.step()
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_stopping_again_and_again_changes_nothing(tmp_path: Path, uninterrupted: Path) -> None:
    while not run_in(tmp_path, NOISY, steps=2).finished:
        pass
    assert_same_ending(tmp_path, uninterrupted)


def test_the_learning_rate_fell_in_that_run(uninterrupted: Path) -> None:
    rates = {record["learning_rate"] for record in RunFolder(uninterrupted).read_metrics()}
    assert len(rates) > 1


def test_a_run_whose_limit_falls_on_the_last_step_is_finished(tmp_path: Path) -> None:
    assert run_in(tmp_path, NOISY, steps=STEPS).finished


def test_a_finished_run_resumed_stays_as_it_is_and_a_longer_one_goes_on(
    tmp_path: Path, uninterrupted: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(uninterrupted, folder)
    assert run_in(folder, NOISY).reason == "all 3 epochs are done"
    assert_same_ending(folder, uninterrupted)
    longer = RunFolder(folder).continue_with(None, ["training.max_epochs=4"])
    history = run_in(folder, longer).history
    assert [record["epoch"] for record in history] == [1, 2, 3, 4]


def test_the_time_of_an_epoch_is_that_of_its_parts_together(tmp_path: Path) -> None:
    run_in(tmp_path, NOISY, steps=2)
    path = RunFolder(tmp_path).checkpoint_file
    tensors, notes = load_tensors(path)
    notes["position"]["epoch_seconds"] = 1000.0  # as if the two steps had taken so long
    save_tensors(path, tensors, notes)
    first, second, _ = run_in(tmp_path, NOISY).history
    assert 1000 < first["seconds"] < 1100
    tokens = sum(len(example.sentences[0]) for example in small_examples(NOISY)[0])
    assert tokens / 1100 < first["tokens_per_second"] < tokens / 1000
    assert second["seconds"] < 100


def test_the_loss_shown_within_an_epoch_is_the_mean_over_its_examples_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[tuple[int, float, float]] = []
    monkeypatch.setattr(
        "beamtree.training.display.Display.show",
        lambda self, step, loss, accuracy, speed: shown.append((step, loss, accuracy)),
    )
    recipe = small_recipe(task={"sampled": {"train": 24}}, training={"max_epochs": 1})
    (record,) = run_in(tmp_path, recipe).history
    assert [step for step, _, _ in shown] == [1, 2, 3]
    assert all(1.8 < loss < 3 for _, loss, _ in shown)  # about log 10: it knows nothing yet
    assert shown[-1][1:] == pytest.approx((record["train_loss"], record["train_accuracy"]))


def test_checkpoints_inside_an_epoch_come_by_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from beamtree.training.run import Run

    saved_at = []
    save = Run.save

    def noting(self: Run) -> None:
        saved_at.append(self.position.total_steps)
        save(self)

    monkeypatch.setattr(Run, "save", noting)
    run_in(tmp_path / "often", small_recipe(training={"checkpoint_minutes": 0, "max_epochs": 1}))
    assert saved_at == [1, 2, 3, 4, 5]
    saved_at.clear()
    run_in(tmp_path / "seldom", small_recipe(training={"max_epochs": 1}))
    assert saved_at == [5]


class Killed(BaseException):
    """Stands for a SIGKILL: nothing but the files survives."""


@pytest.mark.parametrize("moment", ["fsync", "replace", "replaced"])
@pytest.mark.parametrize("strike", [1, 2, 3, 6, 10, 14])
def test_a_run_killed_at_any_write_resumes_and_ends_the_same(
    tmp_path: Path, uninterrupted: Path, monkeypatch: pytest.MonkeyPatch, moment: str, strike: int
) -> None:
    name = "fsync" if moment == "fsync" else "replace"
    real = getattr(os, name)
    calls = 0

    def struck(*args: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == strike and moment != "replaced":
            raise Killed
        real(*args)
        if calls == strike:
            raise Killed

    monkeypatch.setattr(os, name, struck)
    with pytest.raises(Killed):
        run_in(tmp_path, NOISY)
    monkeypatch.undo()
    RunFolder(tmp_path).refuse_if_taken(overwrite=True)
    assert run_in(tmp_path, NOISY).finished
    assert_same_ending(tmp_path, uninterrupted)
    assert not list(tmp_path.rglob(".*.part"))


def test_a_full_disk_gives_one_sentence_and_keeps_the_last_checkpoint(
    tmp_path: Path, uninterrupted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_in(tmp_path, NOISY, steps=7)
    real = os.fsync

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BeamtreeError, match=r"cannot write .*: No space left on device"):
        run_in(tmp_path, NOISY)
    monkeypatch.setattr(os, "fsync", real)
    assert run_in(tmp_path, NOISY).finished
    assert_same_ending(tmp_path, uninterrupted)


def test_a_damaged_checkpoint_is_refused_by_name(tmp_path: Path) -> None:
    run_in(tmp_path, NOISY, steps=2)
    path = RunFolder(tmp_path).checkpoint_file
    whole = path.read_bytes()
    path.write_bytes(whole[:-100] + bytes(100))
    with pytest.raises(BeamtreeError, match=r"state\.safetensors is damaged: .*checksum"):
        run_in(tmp_path, NOISY)
    path.write_bytes(whole)
    tensors, notes = load_tensors(path)
    save_tensors(path, tensors, {**notes, "format": 99})
    with pytest.raises(BeamtreeError, match=r"has checkpoint format 99; this version of beamtree reads 1"):
        run_in(tmp_path, NOISY)


def test_a_checkpoint_of_another_model_is_refused_in_one_sentence(tmp_path: Path) -> None:
    run_in(tmp_path, NOISY, steps=2)
    wider = small_recipe(
        model={"encoder": "ebt-grc", "d_model": 12, "options": {"beam_size": 2}},
        training={"micro_batch_size": 4},
    )
    with pytest.raises(
        BeamtreeError, match=r"state\.safetensors does not fit the model of the run's recipe\.toml"
    ) as caught:
        run_in(tmp_path, wider)
    assert "\n" not in str(caught.value)


def test_other_data_than_the_run_began_with_are_refused(tmp_path: Path) -> None:
    run_in(tmp_path, NOISY, steps=2)
    other = small_recipe(
        task={"sampled": {"train": 41}},
        model={"encoder": "ebt-grc", "options": {"beam_size": 2}},
    )
    with pytest.raises(BeamtreeError, match="its data have changed since it began"):
        run_in(tmp_path, other)


def write_recipe(path: Path, recipe: Recipe) -> Path:
    path.write_text(recipe.to_toml(), encoding="utf-8")
    return path


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "beamtree.cli", *map(str, arguments)]


@pytest.mark.slow
def test_a_process_killed_and_then_terminated_is_resumed_by_the_same_command(tmp_path: Path) -> None:
    recipe = small_recipe(
        model={"encoder": "ebt-grc", "options": {"beam_size": 2}},
        training={"max_epochs": 6, "patience": 6, "checkpoint_minutes": 0},
    )
    path = write_recipe(tmp_path / "recipe.toml", recipe)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    subprocess.run(command("train", path, "--out", whole), check=True, env=environment, timeout=120)

    again = command("train", path, "--resume", cut)
    checkpoint = RunFolder(cut).checkpoint_file
    for number in (signal.SIGKILL, signal.SIGTERM):
        before = checkpoint.stat().st_ino if checkpoint.exists() else None
        process = subprocess.Popen(again, env=environment, stdout=subprocess.PIPE, text=True)
        while not checkpoint.exists() or checkpoint.stat().st_ino == before:
            time.sleep(0.005)
            assert process.poll() is None
        process.send_signal(number)
        said, _ = process.communicate(timeout=60)
        if number == signal.SIGTERM:
            assert process.returncode == 128 + signal.SIGTERM
            assert f"stopped by SIGTERM; continue with: beamtree train --resume {cut}" in said
        else:
            assert process.returncode == -signal.SIGKILL
    subprocess.run(again, check=True, env=environment, timeout=120)
    assert_same_ending(cut, whole)
    assert load_model(cut).predict(["[MAX 1 2 ]"])


def test_a_folder_with_metrics_but_no_checkpoint_is_not_trained_anew(
    uninterrupted: Path, tmp_path: Path
) -> None:
    """As in docs/runs: no checkpoint, and figures that must not be lost."""
    kept = tmp_path / "kept"
    shutil.copytree(uninterrupted, kept)
    shutil.rmtree(kept / "checkpoint")
    before = {path: path.read_bytes() for path in kept.rglob("*") if path.is_file()}
    with pytest.raises(
        BeamtreeError, match=r"kept cannot be resumed: it has no checkpoint.* records of 3 epochs"
    ):
        run_in(kept, NOISY)
    assert {path: path.read_bytes() for path in kept.rglob("*") if path.is_file()} == before
