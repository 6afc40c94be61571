"""Weights that are not finite are refused where they are loaded, outputs where they are made."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import call
from reported import make_run
from small_models import small_model
from small_runs import run_in, small_recipe

from beamtree import BeamTreeContextualizer, BeamTreeEncoder
from beamtree.classifier import model_folder
from beamtree.classifier.exports import compare_with_onnx
from beamtree.classifier.model import TreeClassifier
from beamtree.classifier.model_folder import load_model, save_model
from beamtree.errors import BeamtreeError
from beamtree.explorer.view import make_view
from beamtree.files.tensors import load_tensors, save_tensors
from beamtree.paper.runs import read_run
from beamtree.training.evaluate import evaluate
from beamtree.training.run_folder import RunFolder
from beamtree.trees.beam_trees import BeamTrees

EXPRESSION = "[MAX 2 9 [MIN 4 7 ] 0 ]"
NOT_FINITE = [math.nan, math.inf, -math.inf]


def spoil(path: Path, name: str, value: float) -> None:
    """One number of one tensor, under a checksum that is right."""
    tensors, notes = load_tensors(path)
    tensors[name].view(-1)[-1] = value
    save_tensors(path, tensors, notes)


@pytest.mark.parametrize("value", NOT_FINITE)
@pytest.mark.parametrize("name", ["embedding.table.weight", "encoder.scorer.out.bias", "head.out.bias"])
def test_a_model_that_is_not_finite_is_refused_by_every_command(
    tmp_path: Path, name: str, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(small_model(), tmp_path / "run" / "best")
    spoil(tmp_path / "run" / "best" / "model.safetensors", name, value)
    told = f"model.safetensors: the tensor '{name}' holds numbers that are not finite"
    (tmp_path / "test.tsv").write_text("9\t[MAX 2 9 ]\n")
    for words in (
        ["parse", tmp_path / "run", EXPRESSION],
        ["parse", tmp_path / "run" / "best", "-", "--format", "json"],
        ["eval", tmp_path / "run", tmp_path / "test.tsv"],
        ["serve", tmp_path / "run", "--port", 0],
        ["export", tmp_path / "run", "--onnx", tmp_path / "x.onnx"],
    ):
        assert told in call(*words, rc=2, input="5\n").stderr
    for load in (load_model, TreeClassifier.from_pretrained):
        with pytest.raises(BeamtreeError, match="not finite"):
            load(tmp_path / "run" / "best")
    monkeypatch.setattr(model_folder, "PRETRAINED", tmp_path / "run")
    with pytest.raises(BeamtreeError, match="not finite"):
        load_model("best")


@pytest.mark.parametrize("value", NOT_FINITE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", [BeamTreeEncoder, BeamTreeContextualizer])
def test_a_block_that_is_not_finite_is_refused(
    tmp_path: Path, kind: Any, dtype: torch.dtype, value: float
) -> None:
    kind(4, dtype=dtype).save_pretrained(tmp_path)
    assert kind.from_pretrained(tmp_path)
    name = next(iter(load_tensors(tmp_path / "model.safetensors")[0]))
    spoil(tmp_path / "model.safetensors", name, value)
    with pytest.raises(BeamtreeError, match=f"the tensor '{name}' holds numbers that are not finite"):
        kind.from_pretrained(tmp_path)


@pytest.mark.parametrize("name", ["model.head.out.bias", "optimizer.0.slow"])
def test_a_run_does_not_go_on_from_a_checkpoint_that_is_not_finite(tmp_path: Path, name: str) -> None:
    run_in(tmp_path, small_recipe(), steps=2)
    path = RunFolder(tmp_path).checkpoint_file
    spoil(path, name, math.nan)
    with pytest.raises(BeamtreeError, match=rf"state\.safetensors: the tensor '{name}' holds numbers that"):
        run_in(tmp_path, small_recipe())


def test_empty_and_whole_numbers_are_finite(tmp_path: Path) -> None:
    tensors = {"none": torch.zeros(0, 3), "whole": torch.tensor([1, 2]), "flag": torch.tensor([True])}
    save_tensors(tmp_path / "x.safetensors", tensors, {})
    assert load_tensors(tmp_path / "x.safetensors")[0].keys() == tensors.keys()


def overflowing(encoder: str, name: str) -> TreeClassifier:
    """Weights that are finite and too large."""
    model = small_model(encoder)
    with torch.no_grad():
        dict(model.named_parameters())[name].fill_(3e38)
    return model


CASES = [
    ("ebt-grc", "embedding.table.weight"),
    ("ebt-grc", "encoder.scorer.out.weight"),
    ("ebt-grc", "head.hidden.weight"),
    ("crvnn", "embedding.table.weight"),
    ("transformer", "embedding.table.weight"),
]


@pytest.mark.parametrize(("encoder", "name"), CASES)
def test_an_output_that_is_not_finite_is_refused_wherever_it_is_made(
    tmp_path: Path, encoder: str, name: str
) -> None:
    model = overflowing(encoder, name)
    examples = list(model.task.read_file(write(tmp_path / "test.tsv", "9\t[MAX 2 9 ]\n")))
    uses: list[Callable[[], Any]] = [
        lambda: model.predict([EXPRESSION]),
        lambda: model.predict([EXPRESSION], need_trees=True),
        lambda: make_view(model, [EXPRESSION], name="x"),
        lambda: evaluate(model, "test", examples),
    ]
    for use in uses:
        with pytest.raises(BeamtreeError, match=r"output is not finite|cannot be run: merges"):
            use()
    save_model(model, tmp_path / "model")
    for words in (
        ["parse", tmp_path / "model", EXPRESSION],
        ["parse", tmp_path / "model", "-", "--format", "json"],
        ["parse", tmp_path / "model", "-", "--format", "html"],
        ["eval", tmp_path / "model", tmp_path / "test.tsv", "--json"],
    ):
        result = call(*words, rc=2 if "html" not in words else 0, input=f"{EXPRESSION}\n")
        assert "nan" not in result.output.lower().split()
        assert "NaN" not in result.stdout.split('class="record"')[-1].split("</script>")[0]


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_the_page_says_that_a_model_is_no_good() -> None:
    from fastapi.testclient import TestClient

    from beamtree.explorer.app import create_app  # needs the extra `web`

    app = create_app({"bad": overflowing(*CASES[0])})
    with TestClient(app, base_url="http://localhost") as client:
        answer = client.post("/api/view", json={"texts": [EXPRESSION]})
    assert answer.status_code == 422
    assert "not finite" in answer.json()["error"]["message"]


def test_an_exported_model_is_not_compared_with_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")

    class Session:
        def __init__(self, *arguments: Any, **options: Any) -> None: ...

        def run(self, names: Any, inputs: dict[str, Any]) -> Any:
            return [torch.full((len(inputs["ids"]), 10), math.nan).numpy()]

    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    with pytest.raises(BeamtreeError, match="not finite"):
        compare_with_onnx(overflowing(*CASES[2]), Path("x.onnx"))


def test_notes_of_a_stranger_are_no_figures_unless_they_are_finite_numbers() -> None:
    model = small_model()
    model.notes = {"epoch": 3, "train_accuracy": math.nan, "dev_accuracy": "<b>1</b>"}
    view = make_view(model, [EXPRESSION], name="x")
    assert view["model"]["figures"] == {"epoch": 3}
    assert json.dumps(view, allow_nan=False)


def test_json_that_is_written_for_others_has_null_for_what_is_not_finite(tmp_path: Path) -> None:
    def refuse(constant: str) -> Any:
        pytest.fail(constant)

    trees = BeamTrees(
        torch.zeros(1, 2, 1, dtype=torch.int64),
        torch.tensor([[0.0, math.nan]]),
        torch.zeros(1, dtype=torch.float64),
        torch.tensor([2]),
    )
    written = json.loads(trees.to_json(), parse_constant=refuse)
    assert written["sequences"][0]["beams"][1]["log_score"] is None
    run = RunFolder(tmp_path)
    run.write_metrics([{"epoch": 1, "dev_loss": math.inf}])
    assert json.loads(run.metrics_file.read_text(), parse_constant=refuse)["dev_loss"] is None


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e999", "null"])
def test_a_report_has_no_figures_that_are_not_finite(tmp_path: Path, value: str) -> None:
    run = make_run(tmp_path / "run", epochs=1)
    path = RunFolder(run).metrics_file
    path.write_text(path.read_text().replace("0.25", value))
    with pytest.raises(
        BeamtreeError, match=r"metrics\.jsonl, line 1: dev_loss must be float, got (nan|inf|None)"
    ):
        read_run(run)
