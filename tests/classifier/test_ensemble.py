"""An ensemble has the mean of its members' probabilities, the trees of the first, and one folder for all."""

import json
from pathlib import Path

import pytest
import torch
from small_models import small_model

from beamtree import Ensemble, Prediction, TreeClassifier, load_model
from beamtree.classifier.ensemble import average
from beamtree.classifier.exports import compare_with_onnx, export_program, save_onnx
from beamtree.classifier.inference import set_beam_size
from beamtree.classifier.model_folder import model_checksum, save_model, weights_checksum
from beamtree.data.listops import sample_expressions
from beamtree.data.vocabulary import Vocabulary
from beamtree.data.words import Words
from beamtree.errors import BeamtreeError
from beamtree.explorer.answer import run_model
from beamtree.explorer.models import explain_kind
from beamtree.explorer.view import make_view
from beamtree.nn.heads import class_losses, class_probabilities
from beamtree.training.evaluate import evaluate

TEXTS = ["[MAX 2 9 [MIN 4 7 ] 0 ]", "7", "[SM 1 2 [MED 5 5 1 ] 3 ]"]


def make(count: int = 3, **options: object) -> Ensemble:
    return Ensemble({f"seed{i}": small_model(seed=i, **options) for i in range(count)}).eval()


def merges_of(prediction: Prediction) -> list[object]:
    return [trees.merges.tolist() for trees in prediction.trees]


@pytest.mark.parametrize("outputs", [1, 2, 5])
def test_the_logits_of_the_mean_are_those_of_the_mean_probabilities(outputs: int) -> None:
    logits = [torch.randn(4, outputs, dtype=torch.float64) * 3 for _ in range(3)]
    mean = sum(map(class_probabilities, logits)) / 3
    torch.testing.assert_close(class_probabilities(average(logits)), mean)
    labels = torch.randint(mean.shape[1], (4,))
    torch.testing.assert_close(class_losses(average(logits), labels), -mean[torch.arange(4), labels].log())


@pytest.mark.parametrize("outputs", [1, 3])
def test_the_mean_of_confident_members_is_finite(outputs: int) -> None:
    sure = torch.zeros(1, outputs)
    sure[0, 0] = 500.0
    assert average([sure, sure]).isfinite().all()
    assert average([sure, sure]).argmax() == 0
    assert average([sure]) is sure


def test_an_ensemble_predicts_the_mean_of_its_members_with_the_trees_of_the_first() -> None:
    model = make()
    each = [member.predict(TEXTS, need_trees=True) for member in model.members]
    for row, found in enumerate(model.predict(TEXTS, need_trees=True)):
        for label in model.task.labels:
            mean = sum(one[row].probabilities[label] for one in each) / 3
            assert found.probabilities[label] == pytest.approx(mean, rel=1e-5)
        assert merges_of(found) == merges_of(each[0][row])
    assert any(merges_of(one) != merges_of(other) for one, other in zip(each[0], each[1], strict=True))


def test_the_explorer_shows_the_mean_and_the_search_of_the_first() -> None:
    model = make()
    sentences = (model.task.tokenize(TEXTS[0]),)
    found, first = run_model(model, sentences, 2), run_model(model.members[0], sentences, 2)
    each = [run_model(member, sentences, 2).probabilities for member in model.members]
    assert found.probabilities == pytest.approx([sum(shares) / 3 for shares in zip(*each, strict=True)])
    assert torch.equal(found.records[0].log_score, first.records[0].log_score)
    assert "mean of 3 models; the trees and the values" in explain_kind(model)
    assert explain_kind(model.members[0]) is None
    view = make_view(model, TEXTS[:1], name="three")
    assert view["prediction"]["label"] == model.predict(TEXTS[:1])[0].label
    assert view["model"]["members"] == 3
    assert view["model"]["parameters"] == 3 * sum(w.numel() for w in model.members[0].parameters())


def test_one_pass_measures_the_ensemble_and_each_member_as_if_alone() -> None:
    model = make()
    examples = sample_expressions(60, seed=3, min_length=4, max_length=12)
    found = evaluate(model, "some", examples)
    assert list(found.members) == list(model.names)
    for name, member in zip(model.names, model.members, strict=True):
        assert found.members[name].to_dict() == evaluate(member, "some", examples).to_dict()
    texts = [" ".join(example.sentences[0]) for example in examples]
    right = [p.label == e.label for p, e in zip(model.predict(texts), examples, strict=True)]
    assert found.total.correct == sum(right)
    assert found.total.trees.f1 == found.members["seed0"].total.trees.f1
    assert found.to_dict()["members"]["seed1"]["accuracy"] == found.members["seed1"].total.accuracy
    assert "members" not in found.members["seed1"].to_dict()


def test_a_beam_size_is_set_in_every_member() -> None:
    model = make()
    set_beam_size(model, 2)
    assert [member.encoder.beam_size for member in model.members] == [2, 2, 2]


def test_a_folder_of_members_is_loaded_as_one_model(tmp_path: Path) -> None:
    model = make()
    model.members[1].notes = {"epoch": 4}
    model.save_pretrained(tmp_path / "model")
    for found in (load_model(tmp_path / "model"), Ensemble.from_pretrained(tmp_path / "model")):
        assert isinstance(found, Ensemble)
        assert not found.training
        assert found.names == ("seed0", "seed1", "seed2")
        assert found.members[1].notes == {"epoch": 4}
        assert [p.probabilities for p in found.predict(TEXTS)] == [
            p.probabilities for p in model.predict(TEXTS)
        ]
        assert found.members[1].words is found.members[0].words
    assert "Ensemble.from_pretrained" in (tmp_path / "model" / "README.md").read_text()


def test_a_checksum_changes_with_any_member(tmp_path: Path) -> None:
    model = make()
    model.save_pretrained(tmp_path)
    before = model_checksum(tmp_path), weights_checksum(tmp_path)
    save_model(small_model(seed=9), tmp_path / "seed2")
    after = model_checksum(tmp_path), weights_checksum(tmp_path)
    assert before[0] != after[0]
    assert before[1] != after[1]


def test_a_class_refuses_the_folder_of_the_other(tmp_path: Path) -> None:
    make().save_pretrained(tmp_path / "several")
    small_model().save_pretrained(tmp_path / "one")
    with pytest.raises(BeamtreeError, match=r"load it with Ensemble\.from_pretrained"):
        TreeClassifier.from_pretrained(tmp_path / "several")
    with pytest.raises(BeamtreeError, match=r"load it with TreeClassifier\.from_pretrained"):
        Ensemble.from_pretrained(tmp_path / "one")


@pytest.mark.parametrize(
    "members", [[], ["seed0", "seed0"], ["../outside"], ["/etc"], [7], "seed0", {"seed0": 1}, ["a"] * 1000]
)
def test_members_are_folders_within_the_ensemble_and_nothing_else(tmp_path: Path, members: object) -> None:
    make(1).save_pretrained(tmp_path / "model")
    small_model().save_pretrained(tmp_path / "outside")
    config = tmp_path / "model" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"members": members}))
    with pytest.raises(BeamtreeError, match="members must be names of folders next to it"):
        load_model(tmp_path / "model")


def test_members_have_the_same_labels_and_words() -> None:
    with pytest.raises(BeamtreeError, match="an ensemble needs at least one member"):
        Ensemble({})
    with pytest.raises(BeamtreeError, match="b has different labels"):
        Ensemble({"a": small_model(), "b": small_model(task="logic")})
    more = Words(Vocabulary(("9", "one", "two")))
    with pytest.raises(BeamtreeError, match="b has a different vocabulary"):
        Ensemble({"a": small_model(), "b": small_model(words=more)})


def test_an_ensemble_is_one_onnx_file(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    model = make(2, encoder="recurrent-grc")
    save_onnx(export_program(model), model, tmp_path / "model.onnx")
    assert compare_with_onnx(model, tmp_path / "model.onnx") < 1e-5
