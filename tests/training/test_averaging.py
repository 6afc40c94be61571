"""Averaging the weights: what is kept is their running mean, what learns is left alone."""

from pathlib import Path

import pytest
import torch
from small_runs import run_in, small_recipe

from beamtree.classifier.model_folder import load_model
from beamtree.files.tensors import load_tensors
from beamtree.training.recipe import Recipe

DECAY = 0.8


def averaging_recipe(averaging: float, **training: object) -> Recipe:
    return small_recipe(
        model={"encoder": "ebt-grc", "options": {"beam_size": 2}},
        training={"averaging": averaging, "patience": 10, **training},
    )


def test_the_model_kept_is_the_running_mean_of_the_weights_after_every_step(tmp_path: Path) -> None:
    mean: dict[str, torch.Tensor] = {}
    plain = averaging_recipe(0.0, max_epochs=1)
    for steps in range(1, 6):  # 40 examples by 8
        run_in(tmp_path / "plain", plain, steps=1)
        for name, weight in load_model(tmp_path / "plain" / "last").state_dict().items():
            mean[name] = weight if steps == 1 else DECAY * mean[name] + (1 - DECAY) * weight
    run_in(tmp_path / "averaged", averaging_recipe(DECAY, max_epochs=1))
    for kept in ("last", "best"):
        for name, weight in load_model(tmp_path / "averaged" / kept).state_dict().items():
            torch.testing.assert_close(weight, mean[name], rtol=0, atol=1e-6)


def test_averaging_does_not_change_what_learns(tmp_path: Path) -> None:
    learnt = []
    for averaging in (0.0, DECAY):
        outcome = run_in(tmp_path / str(averaging), averaging_recipe(averaging))
        tensors, _ = load_tensors(tmp_path / str(averaging) / "checkpoint" / "state.safetensors")
        weights = {name: tensor for name, tensor in tensors.items() if name.startswith("model.")}
        learnt.append((weights, [epoch["train_loss"] for epoch in outcome.history]))
    (weights, losses), (others, other_losses) = learnt
    assert losses == other_losses
    assert all(weights[name].equal(others[name]) for name in weights)


@pytest.mark.parametrize("steps", [1, 7])
def test_a_resumed_run_goes_on_with_its_mean(tmp_path: Path, steps: int) -> None:
    recipe = averaging_recipe(DECAY)
    run_in(tmp_path / "whole", recipe)
    assert not run_in(tmp_path / "halved", recipe, steps=steps).finished
    assert run_in(tmp_path / "halved", recipe).finished
    wanted, _ = load_tensors(tmp_path / "whole" / "last" / "model.safetensors")
    found, _ = load_tensors(tmp_path / "halved" / "last" / "model.safetensors")
    assert all(found[name].equal(wanted[name]) for name in wanted)
