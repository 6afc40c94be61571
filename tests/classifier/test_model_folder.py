"""Model folders: a loaded model predicts what the saved one did; what does not fit is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import small_model

import beamtree
from beamtree.classifier import model_folder
from beamtree.classifier.model import ModelSettings, create_model
from beamtree.classifier.model_folder import load_model, save_model
from beamtree.data.task import find_task
from beamtree.errors import BeamtreeError
from beamtree.files.tensors import load_tensors, save_tensors

EXPRESSIONS = ["[MAX 2 9 [MIN 4 7 ] 0 ]", "7", "[SM 1 2 ]", "[MED 1 2 3 4 5 ]"]
PAIRS = [("a", "( not b )"), ("( a ( and b ) )", "c"), ("( not ( not d ) )", "d")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_model(small_model("recurrent-grc"), tmp_path / "model", {"epoch": 3})
    return tmp_path / "model"


@pytest.mark.parametrize("encoder", ["recurrent-grc", "gold-grc", "ebt-grc"])
def test_a_loaded_model_predicts_what_the_saved_one_did(tmp_path: Path, encoder: str) -> None:
    model = small_model(encoder)
    save_model(model, tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert not loaded.training
    assert loaded.predict(EXPRESSIONS) == model.predict(EXPRESSIONS)


def test_a_prediction_does_not_depend_on_the_rest_of_its_batch() -> None:
    model = small_model("ebt-grc")
    together = model.predict(EXPRESSIONS)
    for text, expected in zip(EXPRESSIONS, together, strict=True):
        (alone,) = model.predict([text])
        assert alone.label == expected.label
        assert alone.probability == pytest.approx(expected.probability, abs=1e-6)


def test_a_pair_task_takes_pairs_and_order_matters() -> None:
    model = small_model("recurrent-grc", task="logic")
    forth = model.predict(PAIRS)
    back = model.predict([(second, first) for first, second in PAIRS])
    assert len(forth) == 3
    assert all(prediction.label in ["=", "<", ">", "^", "|", "v", "#"] for prediction in forth)
    assert [p.probability for p in forth] != [p.probability for p in back]


def test_predicting_nothing_gives_nothing() -> None:
    assert small_model("recurrent-grc").predict([]) == []


@pytest.mark.parametrize(
    ("task", "texts", "message"),
    [
        ("listops", [("1", "2")], r"texts\[0\] must be a text for task 'listops', got \('1', '2'\)"),
        ("listops", ["1", 5], r"texts\[1\] must be a text for task 'listops', got 5"),
        ("listops", "[MAX 1 2 ]", r"texts must be a list of texts, got one text: '\[MAX"),
        ("logic", ["a"], r"texts\[0\] must be a pair of texts for task 'logic', got 'a'"),
        ("logic", [("a",)], r"texts\[0\] must be a pair of texts"),
        ("listops", ["1", "[MAX 1 2"], r"texts\[1\]: unbalanced brackets"),
        ("logic", [("a", "b"), ("a", "")], r"texts\[1\]: not a formula"),
        ("listops", ["[MAX 1 x ]"], "x"),
        ("listops", ["[MAX 1 2"], "unbalanced|closed"),
    ],
)
def test_a_wrong_text_is_refused_by_name(task: str, texts: list[Any], message: str) -> None:
    with pytest.raises(BeamtreeError, match=message):
        small_model("recurrent-grc", task=task).predict(texts)


def test_loading_does_not_disturb_the_random_numbers(folder: Path) -> None:
    torch.manual_seed(7)
    wanted = torch.rand(3)
    torch.manual_seed(7)
    load_model(folder)
    assert torch.equal(torch.rand(3), wanted)


def test_a_run_folder_means_its_best_model_and_a_name_means_a_shipped_one(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(small_model("recurrent-grc"), tmp_path / "run" / "best")
    assert load_model(tmp_path / "run").predict(EXPRESSIONS) == load_model(folder).predict(EXPRESSIONS)
    monkeypatch.setattr(model_folder, "PRETRAINED", tmp_path)
    assert load_model("model").predict(EXPRESSIONS) == load_model(folder).predict(EXPRESSIONS)
    with pytest.raises(BeamtreeError, match=r"there is no model 'mdel': .*did you mean 'model'\?"):
        load_model("mdel")
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        BeamtreeError, match=r"empty is not a model folder: neither it nor .*best has a config.json"
    ):
        load_model(tmp_path / "empty")
    save_model(small_model("recurrent-grc"), tmp_path / "begun" / "last")
    with pytest.raises(
        BeamtreeError,
        match=r"no best model in .*begun/best yet, .* use the weights so far, .*begun/last",
    ):
        load_model(tmp_path / "begun")
    monkeypatch.setattr(model_folder, "PRETRAINED", tmp_path / "nothing")
    with pytest.raises(BeamtreeError, match=r"there is no model '\.\./model': no folder or shipped model$"):
        load_model("../model")


def test_for_a_name_like_those_on_the_hub_the_error_says_how_to_load_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mine").mkdir()
    with pytest.raises(BeamtreeError, match=r"there is no model 'runs/nothere': no folder or shipped model"):
        load_model("runs/nothere")
    wanted = r"no model 'you/name': .*Hugging Face hub, use TreeClassifier.from_pretrained\('you/name'\)"
    with pytest.raises(BeamtreeError, match=wanted):
        load_model("you/name")


def edit_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def test_another_format_is_refused_with_both_versions(folder: Path) -> None:
    edit_config(folder, format=2, beamtree="9.1")
    with pytest.raises(BeamtreeError) as caught:
        load_model(folder)
    assert str(caught.value) == (
        f"{folder / 'config.json'} has model format 2, written by beamtree '9.1'; "
        f"this is beamtree {beamtree.__version__}, which reads format 1"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "chess"}, "there is no task 'chess'"),
        ({"task": 5}, "config.json: task must be text, got 5"),
        ({"labels": ["0", "1"]}, "config.json: its labels are not those of the task 'listops'"),
        ({"model": []}, r"config.json: model must be a table, got \[\]"),
        ({"model": {"encodr": "x"}}, "no setting 'model.encodr'; did you mean 'model.encoder'"),
        ({"model": {"encoder": "ebt"}}, "there is no encoder 'ebt'"),
        ({"model": {"d_model": 2.5}}, "config.json: model.d_model must be a whole number, got 2.5"),
        ({"model": {"d_model": 2**40}}, "config.json: model.d_model must be at most 65536"),
        ({"model": {"d_model": 65536}}, "does not fit config.json"),
        (
            {"model": {"encoder": "om", "options": {"memory_slots": 2**60}}},
            "config.json: model.options.memory_slots must be at most 4096",
        ),
        ({"model": {"options": {"beams": 2}}}, "no option 'beams'"),
        ({"model": {"options": {"device": "cpu"}}}, "model.options.device cannot be set"),
        ({"model": {"encoder": "transformer", "options": {"layers": 2000}}}, "layers must be at most 1024"),
        ({"model": {"encoder": "ebt-grc", "options": {"beam_size": 0}}}, "beam_size must be .* at least 1"),
    ],
)
def test_an_impossible_config_is_refused_by_name(folder: Path, changes: dict[str, Any], message: str) -> None:
    edit_config(folder, **changes)
    with pytest.raises(BeamtreeError, match=message):
        load_model(folder)


def test_a_model_larger_than_the_machine_is_refused_before_it_is_made() -> None:
    settings = ModelSettings(d_model=65536, embedding_size=65536, classifier_hidden=65536)
    with pytest.raises(
        BeamtreeError, match=r"the weights would take \d+ GiB, more than this machine's memory"
    ):
        create_model(settings, find_task("listops"))


def test_a_header_that_claims_too_much_is_refused_unread(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes((1 << 40).to_bytes(8, "little") + b"{}")
    with pytest.raises(BeamtreeError, match=r"model\.safetensors is damaged: its header claims more than"):
        load_model(folder)


def test_a_config_that_is_no_json_or_no_config_is_refused(folder: Path) -> None:
    path = folder / "config.json"
    for content, message in [
        ("{", "config.json is not JSON"),
        ("[" * 100_000, "config.json is not JSON"),
        ("[]", "it has no format"),
        ("{}", "it has no format"),
    ]:
        path.write_text(content)
        with pytest.raises(BeamtreeError, match=message):
            load_model(folder)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(BeamtreeError, match=r"config.json is not UTF-8 text"):
        load_model(folder)


def test_a_vocabulary_that_does_not_match_the_weights_is_refused(folder: Path) -> None:
    (folder / "vocabulary.json").write_text(json.dumps(["a", "b"]))
    with pytest.raises(
        BeamtreeError, match=r"'embedding.table.weight' is float32 \(18, 8\), expected float32 \(5, 8\)"
    ):
        load_model(folder)
    (folder / "vocabulary.json").unlink()
    with pytest.raises(BeamtreeError, match=r"cannot read .*vocabulary\.json"):
        load_model(folder)


def test_weights_of_another_name_shape_or_type_are_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    tensors, _ = load_tensors(path)
    name = "head.out.bias"
    for changed, message in [
        ({**tensors, "more": torch.zeros(1)}, "it has an unknown tensor 'more'"),
        ({key: value for key, value in tensors.items() if key != name}, "it lacks 'head.out.bias'"),
        ({**tensors, name: torch.zeros(3)}, r"'head.out.bias' is float32 \(3,\), expected float32 \(10,\)"),
        ({**tensors, name: torch.zeros(10).double()}, r"'head.out.bias' is float64 \(10,\)"),
    ]:
        save_tensors(path, changed, {})
        with pytest.raises(BeamtreeError, match=message):
            load_model(folder)


def test_every_flipped_byte_and_every_truncation_of_the_weights_is_noticed(folder: Path) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    places = [*range(0, len(whole), 97), len(whole) - 1]
    for place in places:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
        with pytest.raises(BeamtreeError, match=r"model\.safetensors"):
            load_model(folder)
        path.write_bytes(whole[:place])
        with pytest.raises(BeamtreeError, match=r"model\.safetensors"):
            load_model(folder)
    path.unlink()
    with pytest.raises(BeamtreeError, match=r"model\.safetensors"):
        load_model(folder)


def test_a_safetensors_file_from_elsewhere_is_refused(folder: Path) -> None:
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(2)}, folder / "model.safetensors")
    with pytest.raises(BeamtreeError, match="has no checksum: it was not written by beamtree"):
        load_model(folder)


def test_notes_travel_with_the_weights_and_odd_tensors_survive(tmp_path: Path) -> None:
    tensors = {
        "empty": torch.zeros(0, 3),
        "scalar": torch.tensor(2, dtype=torch.int64),
        "brief": torch.randn(3, 2).bfloat16().T,
        "flags": torch.tensor([True, False]),
    }
    save_tensors(tmp_path / "x.safetensors", tensors, {"epoch": 3, "score": -0.1})
    loaded, notes = load_tensors(tmp_path / "x.safetensors")
    assert notes == {"epoch": 3, "score": -0.1}
    assert loaded.keys() == tensors.keys()
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)
    assert all(loaded[name].dtype == tensors[name].dtype for name in tensors)


def test_the_error_for_a_folder_of_a_block_says_how_to_load_it(tmp_path: Path) -> None:
    beamtree.BeamTreeEncoder(4).save_pretrained(tmp_path)
    with pytest.raises(
        BeamtreeError, match=r"holds a BeamTreeEncoder, .* with BeamTreeEncoder\.from_pretrained"
    ):
        load_model(tmp_path)
