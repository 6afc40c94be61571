"""Files read whole: text, JSON, tensors; what is no file or too large is refused by name, in one line."""

import hashlib
import os
from pathlib import Path

import pytest
import torch
from small_models import small_model

from beamtree import BeamTreeEncoder
from beamtree.classifier.model_folder import load_model, save_model
from beamtree.errors import BeamtreeError
from beamtree.files import bounded as reading
from beamtree.files import tensors as tensorfile
from beamtree.files.bounded import (
    hash_files,
    is_file,
    is_folder,
    machine_memory,
    parse_json,
    read_json,
    read_text,
    shown,
)
from beamtree.files.tensors import load_tensors, save_tensors


def test_text_and_json_are_read(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text('{"größe": [1]}', encoding="utf-8")
    assert read_text(path) == '{"größe": [1]}'
    assert read_json(path) == {"größe": [1]}


@pytest.mark.timeout(20)
def test_what_is_no_file_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "device").symlink_to("/dev/zero")
    for name in ("pipe", "device", "."):
        with pytest.raises(BeamtreeError, match=r"cannot read .*: it is not a file"):
            read_text(tmp_path / name)
    with pytest.raises(BeamtreeError, match=r"cannot read .*loop: Too many levels"):
        read_text(tmp_path / "loop")
    with pytest.raises(BeamtreeError, match=r"cannot read .*: embedded null byte"):
        read_text(Path("a\0b"))


def test_a_file_over_the_bound_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "large"
    path.touch()
    os.truncate(path, 1 << 40)
    with pytest.raises(BeamtreeError, match=r"large has 1,099,511,627,776 bytes, more than the 4,194,304"):
        read_text(path)
    path.unlink()
    path.write_text("short")

    def broken(*arguments: object, **options: object) -> str:
        raise OSError(5, "I/O error")

    monkeypatch.setattr(Path, "open", broken)
    with pytest.raises(BeamtreeError, match=r"cannot read .*large: I/O error"):
        read_text(path)


@pytest.mark.parametrize("content", ["{", "[" * 100_000, "1" * 100_000])
def test_what_is_no_json_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "file").write_text(content)
    with pytest.raises(BeamtreeError, match="file is not JSON"):
        read_json(tmp_path / "file")


def test_a_name_that_no_file_can_have_is_no_file(tmp_path: Path) -> None:
    for name in ("x" * 5000, "a\0b", "absent"):
        assert not is_file(tmp_path / name)
        assert not is_folder(tmp_path / name)
    assert is_folder(tmp_path)


def test_memory_is_what_the_machine_says_or_a_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 << 28 < machine_memory() < 1 << 50

    def silent(name: str) -> int:
        raise ValueError(name)

    monkeypatch.setattr(reading.os, "sysconf", silent)
    assert machine_memory() == 1 << 40


def test_values_are_shown_in_a_line_of_bounded_length() -> None:
    assert shown("a") == "'a'"
    assert len(shown("a" * 1000)) == 81
    for character in "\x1b\u202e\ud800":  # four or six letters when spelt out
        assert len(shown(character * 80)) <= 81
        assert shown("a" + character * 80).endswith(character.encode("unicode_escape").decode() + "…")
    assert shown(int("9" * 4300) ** 2) == "a int too large to show"


@pytest.mark.timeout(20)
def test_only_a_file_that_fits_the_memory_is_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"ab" * 2_000_000)
    (tmp_path / "b").write_bytes(b"c")
    assert hash_files(tmp_path / "a", tmp_path / "b") == hashlib.sha256(b"ab" * 2_000_000 + b"c").hexdigest()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BeamtreeError, match=r"cannot read .*pipe: it is not a file"):
        hash_files(tmp_path / "pipe")
    monkeypatch.setattr(reading, "machine_memory", lambda: 1000)
    with pytest.raises(BeamtreeError, match=r"a has 4,000,000 bytes, more than the 1,000"):
        hash_files(tmp_path / "a")


def test_json_of_too_many_values_is_refused_unless_they_are_marks_in_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MOST_VALUES", 5)
    assert parse_json('["[{,,,,", "\\",{", 1, []]', "it") == ["[{,,,,", '",{', 1, []]
    for text in ("[[[[[[]]]]]]", '[{"a": 1}, {}, 2, 3]', "[1, 2, 3, 4, 5, 6]"):
        with pytest.raises(BeamtreeError, match="it has 6 values or more; at most 5 are allowed"):
            parse_json(text, "it")
    from safetensors.torch import save

    (tmp_path / "x.safetensors").write_bytes(save({}, {"beamtree": "[[[[[[]]]]]]"}))
    with pytest.raises(BeamtreeError, match=r"x\.safetensors has 6 values or more"):
        load_tensors(tmp_path / "x.safetensors")


def test_weights_beyond_what_their_config_or_run_says_are_refused_unread(tmp_path: Path) -> None:
    """By a few bytes or many, but always less than the machine's memory."""
    save_model(small_model("recurrent-grc"), tmp_path / "model")
    BeamTreeEncoder(4).save_pretrained(tmp_path / "block")
    for name, load in (("model", load_model), ("block", BeamTreeEncoder.from_pretrained)):
        path = tmp_path / name / "model.safetensors"
        load(tmp_path / name)
        os.truncate(path, 9 << 20)
        with pytest.raises(BeamtreeError, match=r"model\.safetensors has 9,437,184 bytes, more than the"):
            load(tmp_path / name)


def test_without_a_bound_of_its_own_a_tensor_file_must_fit_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.safetensors"
    save_tensors(path, {"a": torch.zeros(1000)}, {})
    monkeypatch.setattr(tensorfile, "_LARGEST_HEADER", 1000)
    monkeypatch.setattr(tensorfile, "machine_memory", lambda: 400)
    with pytest.raises(BeamtreeError, match=r"x\.safetensors has .* bytes, more than the 1,400 allowed"):
        load_tensors(path)


def test_what_a_library_quotes_of_a_file_is_cut(tmp_path: Path) -> None:
    entry = '{"dtype":"F32","shape":[1],"data_offsets":[4,0]}'
    header = f'{{"{"x" * 100_000}":{entry}}}'.encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(BeamtreeError, match=r"x\.safetensors is damaged .*xxx") as caught:
        load_tensors(path)
    assert len(str(caught.value)) < 1000
