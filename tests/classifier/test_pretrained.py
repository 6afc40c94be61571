"""The models in the package are small, agree with their cards and kept runs, and are right on fresh data."""

import hashlib
import json
from pathlib import Path

import pytest

from beamtree import load_model
from beamtree.classifier.model_folder import PRETRAINED, shipped_models
from beamtree.cli.demo import LOGIC, SHIPPED
from beamtree.data.listops import sample_expressions
from beamtree.data.logic import generate_logic, read
from beamtree.data.task import Example
from beamtree.files.tensors import load_tensors

RUNS = Path(__file__).resolve().parents[2] / "docs" / "runs"
MADE_BY = {SHIPPED: "listops-seed2", LOGIC: "logic-seed2"}
MEGABYTES = {SHIPPED: 3, LOGIC: 5}


def accuracy(name: str, examples: list[Example]) -> float:
    task_on_pairs = load_model(name).task.sentences == 2
    texts = [tuple(map(" ".join, one.sentences)) for one in examples]
    found = load_model(name).predict(texts if task_on_pairs else [text[0] for text in texts])
    return sum(one.label == example.label for one, example in zip(found, examples, strict=True)) / len(found)


def test_every_model_in_the_package_has_a_run_that_made_it() -> None:
    assert shipped_models() == tuple(sorted(MADE_BY))


@pytest.mark.parametrize("name", sorted(MADE_BY))
def test_the_weights_are_those_of_the_kept_run_in_float32_and_small(name: str) -> None:
    file = PRETRAINED / name / "model.safetensors"
    assert file.stat().st_size < MEGABYTES[name] * 10**6
    tensors, _ = load_tensors(file)
    assert {str(tensor.dtype) for tensor in tensors.values()} == {"torch.float32"}
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    for kept in ("eval.json", "eval-cpu.json"):
        assert json.loads((RUNS / MADE_BY[name] / kept).read_text(encoding="utf-8"))["weights"] == digest


@pytest.mark.parametrize("name", sorted(MADE_BY))
def test_a_gpu_and_the_cpu_agree_to_a_tenth_of_a_percent_and_the_card_says_so(name: str) -> None:
    card = (PRETRAINED / name / "README.md").read_text(encoding="utf-8")
    measured = []
    for kept in ("eval.json", "eval-cpu.json"):
        content = json.loads((RUNS / MADE_BY[name] / kept).read_text(encoding="utf-8"))
        measured.append({one["split"]: 100 * one["accuracy"] for one in content["splits"]})
    for split, on_cpu in measured[1].items():
        if split in measured[0]:
            assert on_cpu == pytest.approx(measured[0][split], abs=0.1)
            assert f"{on_cpu:.2f}" in card
    for percent in measured[0].values():
        assert f"{percent:.2f}" in card


def test_the_listops_model_is_right_on_fresh_expressions() -> None:
    assert accuracy(SHIPPED, list(sample_expressions(60, seed=31, min_length=10, max_length=80))) == 1


def test_the_logic_model_is_right_on_fresh_formulas_of_more_operators_than_it_has_seen(
    tmp_path: Path,
) -> None:
    generate_logic(tmp_path, seed=32, pairs=12_000)
    assert accuracy(LOGIC, list(read(tmp_path, "test7"))) > 0.93
    labels = [
        load_model(LOGIC).predict([pair])[0].label
        for pair in (
            ("a", "a"),
            ("( a ( and b ) )", "a"),
            ("a", "( a ( or b ) )"),
            ("a", "( not a )"),
            ("( a ( and b ) )", "( not a )"),
            ("( a ( or b ) )", "( not a )"),
            ("a", "b"),
        )
    ]
    assert "".join(labels) == "=<<^|v#"
