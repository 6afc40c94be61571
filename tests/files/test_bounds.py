"""How much is read: honest files of great size are, what goes beyond a bound is refused by its name."""

import gzip
import lzma
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import call
from published import brackets
from small_models import small_model

from beamtree import BeamTreeEncoder
from beamtree.classifier import parsing
from beamtree.classifier.model_folder import load_model, save_model
from beamtree.classifier.parsing import parse_lines
from beamtree.data import corpora
from beamtree.data import task as task_module
from beamtree.data.listops.language import evaluate
from beamtree.data.own import look_at
from beamtree.data.task import find_task
from beamtree.data.vocabulary import Vocabulary
from beamtree.errors import BeamtreeError
from beamtree.files import lines as files
from beamtree.files import tensors as tensorfile
from beamtree.files.settings import assignment
from beamtree.files.tensors import save_tensors
from beamtree.training.recipe import load_recipe


def test_a_line_may_be_as_long_as_the_bound_and_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LONGEST_LINE", 10)
    path = tmp_path / "lines.txt"
    path.write_text("123456789\n😀😀😀😀😀😀😀😀😀\n1234567890")
    assert [line for _, line in files.read_lines(path)] == ["123456789", "😀" * 9, "1234567890"]
    path.write_text("1\n12345678901\n")
    with pytest.raises(BeamtreeError, match=r"lines\.txt, line 2 has more than 10 characters, .*: put every"):
        list(files.read_lines(path))
    told = call("parse", "listops-ebt-grc", "-", input="5\n" + "[MAX " * 3 + "\n", rc=2).stderr
    assert "standard input, line 2 has more than 10 characters" in told


def test_lines_come_in_blocks_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LONGEST_LINE", 10)
    lines = ["12345", "1234", "12", "1234567890", "", "", "", "1"]
    blocks = [["12345", "1234"], ["12"], ["1234567890", "", ""], ["", "1"]]
    assert list(files.in_blocks(lines, 3)) == blocks


def test_long_lines_of_a_shared_file_are_parsed_in_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expressions = [f"[MAX {i % 10} 2 {'1 ' * (i % 4)}]" for i in range(20)]
    (tmp_path / "lines.txt").write_text("\n".join(expressions) + "\n")
    words = ["parse", "listops-ebt-grc", "--file", tmp_path / "lines.txt", "--format", "brackets"]
    call(*words, "--out", tmp_path / "whole")
    seen: list[int] = []

    def watched(model: Any, lines: list[str], **options: Any) -> Any:
        seen.append(len(lines))
        return parse_lines(model, lines, **options)

    monkeypatch.setattr(files, "LONGEST_LINE", 40)
    monkeypatch.setattr(parsing, "parse_lines", watched)
    call(*words, "--out", tmp_path / "blocks")
    assert max(seen) <= 4
    assert sum(seen) == 20
    trees = [
        [line.split("\t")[2] for line in (tmp_path / name).read_text().splitlines()]
        for name in ("whole", "blocks")
    ]
    assert trees[0] == trees[1]
    seen.clear()
    call(*words)
    assert max(seen) <= 4


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_an_expression_of_a_million_tokens_is_read_from_a_file(tmp_path: Path, suffix: str) -> None:
    random = np.random.RandomState(0)
    deep = 60_000
    digits = random.randint(0, 10, 1_000_000 - 2 * deep).astype(str).tolist()
    tokens = [*["[SM"] * deep, *digits, *["]"] * deep]
    text = f"{evaluate(tokens)}\t{brackets(tokens)}\n".encode()
    packed = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[suffix]
    path = tmp_path / f"long.tsv{suffix}"
    path.write_bytes(packed(text))
    (example,) = find_task("listops").read_file(path)
    assert example.sentences[0] == tuple(tokens)


def test_a_vocabulary_of_400_000_words_is_saved_and_read(tmp_path: Path) -> None:
    words = Vocabulary(tuple(f"слово{i}, [и]" for i in range(400_000)))
    words.save(tmp_path / "vocabulary.json")
    assert Vocabulary.load(tmp_path / "vocabulary.json") == words


def test_archives_of_several_streams_and_great_but_honest_ones_are_read(tmp_path: Path) -> None:
    random = np.random.RandomState(0)
    rows = "".join(f"{digit}\t{digit}\n" for digit in random.randint(0, 10, 2_500_000))  # 10 MB
    for suffix, packed in ((".gz", gzip.compress), (".xz", lambda text: lzma.compress(text, preset=0))):
        path = tmp_path / f"rows.tsv{suffix}"
        path.write_bytes(packed(rows[: len(rows) // 2].encode()) + packed(rows[len(rows) // 2 :].encode()))
        assert sum(1 for _ in files.read_rows(path)) == 2_500_000
    path = tmp_path / "repeated.tsv.gz"
    path.write_bytes(gzip.compress(b"3\t3\n" * 2_000_000))
    assert sum(1 for _ in files.read_rows(path)) == 2_000_000
    path.write_bytes(gzip.compress(b"3\t3\n" * 2_500_000))
    with pytest.raises(
        BeamtreeError, match=r"repeated\.tsv\.gz unpacks to more than 200 times its size, .*unpack it"
    ):
        next(files.read_rows(path))
    assert sum(1 for _ in files.read_lines(path)) == 2_500_000, "what is not kept may be as long as it is"


def test_an_xz_that_ends_early_or_goes_on_is_named_as_unsound(tmp_path: Path) -> None:
    path = tmp_path / "rows.xz"
    path.write_bytes(lzma.compress(b"1\n2\n") + b"more")
    with pytest.raises(BeamtreeError, match=r"rows\.xz is (not a sound|truncated)"):
        list(files.read_lines(path))
    path.write_bytes(b"")
    with pytest.raises(BeamtreeError, match=r"rows\.xz is truncated"):
        list(files.read_lines(path))


def test_blank_lines_inside_a_file_are_rows_with_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_text("a\n\n \t\nb\n\n \n")
    assert list(files.read_rows(path)) == [(1, "a"), (2, ""), (3, " \t"), (4, "b")]
    path.write_text("\n\n")
    with pytest.raises(BeamtreeError, match="rows is empty"):
        list(files.read_rows(path))


def test_too_many_bad_rows_end_the_reading_and_the_first_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_module, "_MOST", 7)
    rows = task_module.BadRows(skip=True)
    for line in (*range(1, 8), 3):
        rows.meet(tmp_path, line, f"reason {line}")
    assert rows.count == 7
    assert list(rows.found[tmp_path].values()) == [*(f"reason {line}" for line in range(1, 6)), "", ""]
    with pytest.raises(BeamtreeError, match="more than 7 rows cannot be used; of the last reason 9"):
        rows.meet(tmp_path, 9, "reason 9")


def test_a_key_of_many_parts_is_refused_and_texts_with_dots_are_not(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text("[task.own]\nlabel = '" + "a.b... 0.5, " * 200 + "'\n")
    assert load_recipe(path).task.own.label.count(".") == 1000
    for text in (
        "a . " * 20 + "a = 1",
        "['a'" + ".'a'" * 20 + "]",
        '"\\"".' * 20 + "a = 1",
        f"x = {{{'a.' * 20}a = 1}}",
    ):
        path.write_text(text)
        with pytest.raises(
            BeamtreeError, match=r"recipe\.toml is not valid TOML: a key has more than 20 parts"
        ):
            load_recipe(path)
    assert assignment(f"task.name={{{'a.' * 20}a=1}}") == {"task": {"name": f"{{{'a.' * 20}a=1}}"}}


def test_a_label_too_long_to_show_is_a_bad_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text(f"label\ttext\na\tx\nb\tx\n{'c' * 1001}\tx\n{'d' * 1000}\tx\n")
    task = look_at(path)
    assert task.labels == ("a", "b", "d" * 1000)
    with pytest.raises(BeamtreeError, match="line 4: the label is 'ccc"):
        list(task.read_file(path))


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
    with pytest.raises(
        BeamtreeError, match=r"x\.safetensors has .* bytes, more than the 1,400 that it may have"
    ):
        tensorfile.load_tensors(path)


def test_what_a_library_quotes_of_a_file_is_cut(tmp_path: Path) -> None:
    entry = '{"dtype":"F32","shape":[1],"data_offsets":[4,0]}'
    header = f'{{"{"x" * 100_000}":{entry}}}'.encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(BeamtreeError, match=r"x\.safetensors is damaged .*xxx") as caught:
        tensorfile.load_tensors(path)
    assert len(str(caught.value)) < 1000


def test_a_review_of_many_lines_is_bounded_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("neg/1_1.txt", "dull\nfilm\n"), ("pos/1_9.txt", "good\n" * 30)):
        path = tmp_path / "test" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    assert len(list(corpora.IMDB.read(tmp_path, "test"))) == 2
    monkeypatch.setattr(corpora, "LONGEST_LINE", 100)
    with pytest.raises(BeamtreeError, match=r"1_9\.txt has 150 bytes, more than the 100"):
        list(corpora.IMDB.read(tmp_path, "test"))
