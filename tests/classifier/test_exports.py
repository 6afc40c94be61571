"""An exported classifier is one file that gives the model's probabilities at any batch size and length."""

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from small_models import small_model
from torch import Tensor, nn
from typer.testing import CliRunner

from beamtree.classifier import exports
from beamtree.classifier.model import ModelSettings, TreeClassifier, create_model
from beamtree.cli import app
from beamtree.data.batching import EncodedExamples
from beamtree.data.task import CountRule, Example, find_task
from beamtree.data.vectors import SHIPPED_FILE
from beamtree.data.vocabulary import Vocabulary
from beamtree.data.words import VectorUse, Words, choose_words
from beamtree.errors import BeamtreeError, MissingExtraError

Run = Callable[[Tensor], Tensor]
SIZES = [(1, 1), (3, 1), (1, 2), (2, 2), (5, 3), (1, 7), (4, 19), (2, 41)]


def predict(model: TreeClassifier, ids: Tensor) -> Tensor:
    with torch.no_grad():
        return exports.Predictor(model)(ids)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved classifier and its exports by the command."""
    place = tmp_path_factory.mktemp("exports")
    small_model().save_pretrained(place / "model")
    words = ["export", str(place / "model"), "--onnx", str(place / "a.onnx")]
    done = CliRunner().invoke(app, [*words, "--exported-program", str(place / "a.pt2")])
    assert done.exit_code == 0, done.output
    assert "a.pt2, for batches of any size" in done.output
    assert "a.onnx; in onnxruntime its outputs differ from the model's by " in done.output
    return place


@pytest.fixture(scope="module")
def session(folder: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(str(folder / "a.onnx"))


def run(session: onnxruntime.InferenceSession, ids: Tensor) -> Tensor:
    return torch.from_numpy(session.run(["probabilities"], {"ids": ids.numpy()})[0])


@pytest.mark.parametrize(("B", "n"), SIZES)
def test_onnxruntime_gives_the_probabilities_of_the_model(session: Any, B: int, n: int) -> None:
    model = small_model()
    ids = exports.random_ids(model, B, n, torch.Generator().manual_seed(B * 100 + n))
    torch.testing.assert_close(run(session, ids), predict(model, ids), rtol=0, atol=2e-6)


def test_ties_are_broken_as_the_model_breaks_them(session: Any) -> None:
    ids = torch.tensor([3, 8])[torch.randint(0, 2, (16, 11), generator=torch.Generator().manual_seed(1))]
    torch.testing.assert_close(run(session, ids), predict(small_model(), ids), rtol=0, atol=2e-6)


def test_padding_changes_nothing(session: Any) -> None:
    ids = torch.tensor([[5, 9, 10, 7]])
    padded = nn.functional.pad(ids, (0, 5))
    torch.testing.assert_close(run(session, padded), run(session, ids), rtol=0, atol=1e-6)


def test_the_file_is_valid_onnx_and_names_inputs_labels_and_tokens(folder: Path, session: Any) -> None:
    proto = onnx.load(folder / "a.onnx")
    onnx.checker.check_model(proto, full_check=True)
    assert "Loop" in {node.op_type for node in proto.graph.node}
    assert {entry.domain for entry in proto.opset_import} == {""}  # standard operators only
    task = find_task("listops")
    facts = session.get_modelmeta().custom_metadata_map
    assert json.loads(facts["labels"]) == list(task.labels)
    assert json.loads(facts["tokens"]) == list(task.tokens)
    assert session.get_inputs()[0].shape == ["batch", "length"]
    assert session.get_outputs()[0].shape == ["batch", 10]


@pytest.mark.parametrize("size", exports.CHECKED_SIZES)
def test_a_file_that_differs_at_any_checked_size_is_noticed(folder: Path, size: tuple[int, int]) -> None:
    def differ(model: nn.Module, inputs: tuple[Tensor, ...], logits: Tensor) -> Tensor:
        return logits + torch.arange(10) if inputs[0].shape == size else logits

    model = small_model()
    assert exports.compare_with_onnx(model, folder / "a.onnx") < 2e-6
    model.register_forward_hook(differ)
    assert exports.compare_with_onnx(model, folder / "a.onnx") > 0.1


def test_the_exported_program_agrees_too(folder: Path) -> None:
    program, model = torch.export.load(folder / "a.pt2").module(), small_model()
    for B, n in [(1, 1), (1, 2), (4, 9)]:
        ids = exports.random_ids(model, B, n, torch.Generator().manual_seed(n))
        torch.testing.assert_close(program(ids), predict(model, ids), rtol=0, atol=2e-6)


@pytest.mark.slow
def test_pairs_of_sentences_two_classes_and_ready_made_vectors_are_exported_too(tmp_path: Path) -> None:
    torch.manual_seed(0)
    known = Words(Vocabulary(("is", "it", "so", "?", "why")), torch.randn(3, 5).half())
    settings = ModelSettings("ebt-grc-noslice", d_model=8, classifier_hidden=8)
    model = create_model(settings, find_task("qqp"), known).eval()
    path = tmp_path / "model.onnx"
    exports.save_onnx(exports.export_program(model), model, path)
    session = onnxruntime.InferenceSession(str(path))
    for B, n in [(1, 1), (1, 2), (3, 8)]:
        ids = exports.random_ids(model, B, n, torch.Generator().manual_seed(n))
        found = run(session, ids)
        assert found.shape == (B, 2)
        torch.testing.assert_close(found, predict(model, ids), rtol=0, atol=2e-6)
    assert exports.compare_with_onnx(model, path) < 2e-6


@pytest.mark.slow
@pytest.mark.parametrize("name", ["recurrent-grc", "balanced-grc", "rotary-transformer"])
def test_other_encoders_are_exported_too(tmp_path: Path, name: str) -> None:
    model, path = small_model(name), tmp_path / "model.onnx"
    exports.save_onnx(exports.export_program(model), model, path)
    assert exports.compare_with_onnx(model, path) < 2e-6


def test_complex_numbers_are_refused_before_an_onnx_file_is_written(tmp_path: Path) -> None:
    model, path = small_model("s4d"), tmp_path / "model.onnx"
    program = exports.export_program(model)
    ids = exports.random_ids(model, 3, 7, torch.Generator().manual_seed(1))
    torch.testing.assert_close(program.module()(ids), predict(model, ids), rtol=0, atol=2e-6)
    with pytest.raises(BeamtreeError, match=r"'s4d' computes with complex numbers, .*--exported-program"):
        exports.save_onnx(program, model, path)
    assert not path.exists()


@pytest.mark.slow
def test_shipped_vectors_pooling_and_tree_tokens_are_exported_too(tmp_path: Path) -> None:
    use = VectorUse(tuned=True, unit=True)
    seen = Counter({"film": 3, "a": 2, "zqzqz": 6})
    words = choose_words(CountRule(2, ()), seen, seen, SHIPPED_FILE, use)
    settings = ModelSettings(d_model=16, classifier_hidden=8, readout="pooled", tree_tokens=6, word_pairs=40)
    model = create_model(settings, find_task("imdb"), words).eval()
    assert model.word_scores is not None
    torch.nn.init.normal_(model.word_scores.scores.weight, std=0.1)
    texts = [
        Example((("a", "film", "zqzqz"),), "1"),
        Example((("zqzqz", "a", "film"),), "1"),
        Example((("a",),), "0"),
    ]
    model.word_scores.count(EncodedExamples.encode(texts, words.vocabulary, ("0", "1")), 2)
    film = torch.tensor([words.vocabulary.encode(["a", "film"])])
    assert model.word_scores(film).item() != model.word_scores(film.flip(1)).item()  # pairs have an effect
    program = exports.export_program(model)
    exports.save_onnx(program, model, tmp_path / "a.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "a.onnx"))
    torch.testing.assert_close(run(session, film), predict(model, film), rtol=0, atol=2e-6)
    for B, n in ((1, 1), (3, 5), (2, 6), (4, 19)):
        ids = exports.random_ids(model, B, n, torch.Generator().manual_seed(B * 100 + n))
        torch.testing.assert_close(run(session, ids), predict(model, ids), rtol=0, atol=2e-6)


def test_an_encoder_that_cannot_be_exported_is_refused_by_name() -> None:
    with pytest.raises(BeamtreeError, match=r"cannot export this model: CRvNN cannot be exported"):
        exports.export_program(small_model("crvnn"))
    with pytest.raises(
        BeamtreeError, match=r"the encoder 'gold-grc' follows given trees: export its encoder alone"
    ):
        exports.export_program(small_model("gold-grc"))
    pairs = small_model("gau", "qqp", words=Words(Vocabulary(("is", "it"))))
    with pytest.raises(
        BeamtreeError, match=r"the encoder 'gau' reads two sentences together: export its encoder alone"
    ):
        exports.export_program(pairs)


def test_an_error_inside_torch_becomes_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stumble(*_: Any, **__: Any) -> None:
        raise RuntimeError("a stone\nand its colour")

    program = exports.export_program(small_model())
    monkeypatch.setattr(torch.export, "export", stumble)
    with pytest.raises(BeamtreeError, match=r"cannot export this model: a stone$"):
        exports.export_program(small_model())
    monkeypatch.setattr(torch.onnx, "export", stumble)
    with pytest.raises(BeamtreeError, match=r"cannot write this model as ONNX \(2\.13 can\): a stone$"):
        exports.save_onnx(program, small_model(), tmp_path / "x.onnx")
    assert not list(tmp_path.iterdir())


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("onnxscript", "onnxruntime"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=r"beamtree\[onnx\]"):
        exports.translate_sorting()
    with pytest.raises(MissingExtraError, match=r"beamtree\[onnx\]"):
        exports.compare_with_onnx(small_model(), tmp_path / "x.onnx")


def test_the_command_needs_a_file_name_and_does_not_overwrite(folder: Path) -> None:
    nothing = CliRunner().invoke(app, ["export", str(folder / "model")])
    assert nothing.exit_code == 2
    assert "--onnx FILE, --exported-program FILE or both" in nothing.output
    there = CliRunner().invoke(app, ["export", str(folder / "model"), "--onnx", str(folder / "a.onnx")])
    assert there.exit_code == 2
    assert "a.onnx exists: --overwrite replaces it" in there.output
