"""What beamtree 0.1.0 saved before its modules moved still loads, and says, draws and trains the same."""

import io
import json
import shutil
from pathlib import Path

import pytest
import torch
from every_block import BLOCKS
from old_files import OLD, RECIPE, answers, operator_schemas, predictions
from small_runs import run_in, without_times

from beamtree import BeamTreeEncoder, load_model
from beamtree.files.tensors import load_tensors
from beamtree.training.run_folder import RunFolder

SAVED_THEN = [name for name in BLOCKS if "bilstm" not in name]  # which is younger


@pytest.fixture(scope="module")
def blocks() -> dict[str, bytes]:
    return torch.load(OLD / "blocks.pt")


@pytest.fixture(scope="module")
def outputs() -> dict[str, dict[str, torch.Tensor]]:
    return torch.load(OLD / "outputs.pt")


@pytest.mark.parametrize("name", SAVED_THEN)
def test_a_whole_block_pickled_then_answers_and_draws_as_then(
    name: str, blocks: dict[str, bytes], outputs: dict[str, dict[str, torch.Tensor]]
) -> None:
    block = torch.load(io.BytesIO(blocks[name]), weights_only=False)
    found = answers(block)
    for key, wanted in outputs[name].items():
        torch.testing.assert_close(
            found[key], wanted, rtol=1e-4, atol=1e-5, msg=lambda m, key=key: f"{key}: {m}"
        )


@pytest.mark.parametrize("name", ["TaggerHead", "SlicedScorer"])
def test_a_part_pickled_then_loads(name: str, blocks: dict[str, bytes]) -> None:
    assert type(torch.load(io.BytesIO(blocks[name]), weights_only=False)).__name__ == name


@pytest.mark.parametrize("name", SAVED_THEN)
def test_one_seed_makes_the_weights_it_made_then(name: str, blocks: dict[str, bytes]) -> None:
    torch.manual_seed(SAVED_THEN.index(name))
    made = BLOCKS[name](dropout=0.1).state_dict()
    old = torch.load(io.BytesIO(blocks[name]), weights_only=False).state_dict()
    assert made.keys() == old.keys()
    for key in old:
        torch.testing.assert_close(made[key], old[key])


def test_a_model_folder_saved_then_predicts_as_then() -> None:
    wanted = json.loads((OLD / "predictions.json").read_text())
    for found, old in zip(predictions(load_model(OLD / "model")), wanted, strict=True):
        assert found["label"] == old["label"]
        assert found["probabilities"] == pytest.approx(old["probabilities"], abs=2e-5)


def test_a_block_folder_saved_then_answers_as_then() -> None:
    found = answers(BeamTreeEncoder.from_pretrained(OLD / "block"))
    for key, wanted in torch.load(OLD / "block_outputs.pt").items():
        torch.testing.assert_close(found[key], wanted, rtol=1e-4, atol=1e-5)


def test_a_run_stopped_then_and_resumed_now_ends_as_it_would_have(tmp_path: Path) -> None:
    shutil.copytree(OLD / "run", tmp_path / "run")
    assert run_in(tmp_path / "run", RECIPE).finished
    ended = without_times(RunFolder(OLD / "ended").read_metrics())
    for found, wanted in zip(without_times(RunFolder(tmp_path / "run").read_metrics()), ended, strict=True):
        assert found == pytest.approx(wanted, rel=1e-3)
    weights, _ = load_tensors(tmp_path / "run" / "last" / "model.safetensors")
    old, _ = load_tensors(OLD / "ended" / "last" / "model.safetensors")
    assert weights.keys() == old.keys()
    for key in old:
        torch.testing.assert_close(weights[key], old[key], rtol=1e-3, atol=1e-4)


def test_operators_keep_their_names_and_schemas() -> None:
    """A program exported then calls them by these."""
    assert operator_schemas() == json.loads((OLD / "operators.json").read_text())
