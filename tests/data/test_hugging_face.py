"""A Hugging Face encoder is found, checked and read without running any code of its folder."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from hugging_face import save_bert, save_gpt
from safetensors.torch import load_file, save_file

from beamtree.data.hugging_face import SubwordVocabulary, find_encoder
from beamtree.data.vocabulary import FIRST_WORD
from beamtree.errors import BeamtreeError, MissingExtraError


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return shutil.copytree(saved, tmp_path / "bert")


def pieces(folder: Path, words: list[str]) -> list[list[str]]:
    """Return the subwords of each word, by their names in the tokenizer's file."""
    model = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    names = {number: piece for piece, number in model.items()}
    found: list[list[str]] = []
    for number in find_encoder(str(folder)).encode(words):
        subword, begins = divmod(number - FIRST_WORD, 2)
        if begins:
            found.append([])
        found[-1].append(names[subword])
    return found


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["The", "filming"], [["the"], ["film", "##ing"]]),
        (["n't", "good"], [["n", "[UNK]", "t"], ["good"]]),  # its own tokenizer splits there
        (["\u200b", "bad"], [["[UNK]"], ["bad"]]),  # and drops this
        (["bad", "\u200b"], [["bad"], ["[UNK]"]]),
        (["\u200b", "\u200b"], [["[UNK]"], ["[UNK]"]]),
        (["good"] * 40, [["good"]] * 40),  # the truncation in its file is ignored
    ],
)
def test_every_word_has_its_subwords(saved: Path, words: list[str], wanted: list[list[str]]) -> None:
    assert pieces(saved, words) == wanted


def test_byte_level_subwords_carry_the_blank_before_their_word(tmp_path: Path) -> None:
    found = pieces(save_gpt(tmp_path), ["good", "film", "é"])
    assert ["".join(subwords) for subwords in found] == ["good", "Ġfilm", "ĠÃ©"]


def test_no_word_is_unknown(saved: Path) -> None:
    vocabulary = SubwordVocabulary(find_encoder(str(saved)))
    assert "brontosaurus" in vocabulary
    assert vocabulary.tokens == ()


def test_weights_are_read_once_for_all_and_anew_when_the_files_change(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = find_encoder(str(folder))
    assert find_encoder(str(folder)) is first
    assert first.network is first.network
    assert not any(weight.requires_grad for weight in first.network.parameters())
    save_bert(folder, seed=1)
    monkeypatch.setattr("beamtree.data.hugging_face._opened", None)  # nothing of another one is read
    with pytest.raises(BeamtreeError, match="has changed: its checksum is"):
        find_encoder(str(folder), first.sha256)
    monkeypatch.undo()
    assert find_encoder(str(folder)).sha256 != first.sha256


def refusal(folder: Path) -> str:
    with pytest.raises(BeamtreeError) as told:
        _ = find_encoder(str(folder)).network
    return str(told.value)


def test_code_in_a_folder_is_never_run(folder: Path) -> None:
    (folder / "evil.py").write_text("raise SystemExit('code of the folder was run')\n")
    config = json.loads((folder / "config.json").read_text())
    for model_type in ("evil", "bert"):
        code = {"AutoConfig": "evil.Config", "AutoModel": "evil.Model", "AutoTokenizer": "evil.Tokenizer"}
        (folder / "config.json").write_text(json.dumps(config | {"model_type": model_type, "auto_map": code}))
        if model_type == "evil":
            assert f"the encoder in {folder} cannot be read" in refusal(folder)
        else:  # what transformers knows itself is taken from there
            assert type(find_encoder(str(folder)).network).__name__ == "BertModel"


def test_pickled_weights_are_not_read(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    assert "the weights in" in refusal(folder)
    assert "cannot be read" in refusal(folder)
    (folder / "other.safetensors").unlink()
    assert "no .safetensors file, and pickled weights are not read" in refusal(folder)


def test_missing_weights_are_refused_except_those_of_the_pooler(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    without = {name: tensor for name, tensor in weights.items() if "pooler" not in name}
    save_file(without, folder / "model.safetensors", {"format": "pt"})
    assert find_encoder(str(folder)).network is not None
    lost = next(name for name in without if "encoder.layer.1" in name)
    save_file({name: without[name] for name in without if name != lost}, folder / "model.safetensors")
    assert "they lack encoder.layer.1" in refusal(folder)


def test_a_folder_without_an_encoder_is_refused(folder: Path, tmp_path: Path) -> None:
    assert "has no config.json" in refusal(tmp_path)
    assert "there is no folder" in refusal(tmp_path / "nowhere")
    (folder / "config.json").write_text("{")
    assert f"the encoder in {folder} cannot be read" in refusal(folder)


def test_a_tokenizer_of_another_encoder_is_refused(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 40}))
    assert "has subwords without a vector: the encoder has 40 vectors" in refusal(folder)


def test_an_encoder_for_very_short_texts_is_refused(tmp_path: Path) -> None:
    assert "reads 2 subwords at once, which is too few" in refusal(save_bert(tmp_path, positions=4))


def test_the_hub_is_asked_only_if_allowed(monkeypatch: pytest.MonkeyPatch, saved: Path) -> None:
    asked: list[bool] = []

    def snapshot(name: str, *, allow_patterns: list[str], local_files_only: bool) -> str:
        assert name == "owner/encoder"
        assert not any(pattern.endswith((".py", ".bin")) for pattern in allow_patterns)
        asked.append(not local_files_only)
        if local_files_only:
            raise OSError("it is not in the cache")
        return str(saved)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    with pytest.raises(BeamtreeError, match="to get it from the hub: hf download owner/encoder"):
        find_encoder("owner/encoder")
    assert find_encoder("owner/encoder", download=True).folder == saved
    assert asked == [False, True]


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r"beamtree\[transformers\]"):
        find_encoder(str(folder))
