"""Text of strangers reaches terminals and error lines without what could steer them, the rest as it is."""

import io
import json
import logging
import os
import re
import traceback
import unicodedata
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import call
from hypothesis import given
from hypothesis import strategies as st
from small_models import small_model

from beamtree import BeamTreeEncoder
from beamtree.classifier.model_folder import load_model, save_model
from beamtree.data.own import restore
from beamtree.data.vocabulary import Vocabulary
from beamtree.data.words import Words
from beamtree.errors import BeamtreeError, MissingExtraError
from beamtree.files.bounded import shown
from beamtree.printable import printable, printable_lines, write_json
from beamtree.training.recipe import load_recipe
from beamtree.trees.brackets import merges_from_brackets, write_brackets
from beamtree.trees.drawing import clip_label, count_columns

# Every character that a terminal obeys, or that turns the order in which others are read.
STEERING = [
    *map(chr, [*range(0x20), *range(0x7F, 0xA0)]),
    *"\u061c\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069",
]
HOSTILE = "\x1b]0;owned\x07\x9b31m\u202eevil\u2066\u200f\u061c"
ORDINARY = [
    "naïve café, größer!",
    "Ελλάδα Россия",
    "漢字 かな\u3000한글",
    "हिन्दी",
    "می\u200cخواهم",
    "שלום",
    "👩\u200d💻 ❤\ufe0f 🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    "e\u0301a\u0308\u0323",
    "C:\\x\\new",
]


def harmless(text: str) -> bool:
    return not set(STEERING) & set(text.replace("\n", "").replace("\t", ""))


def test_what_could_steer_a_terminal_is_spelt_and_nothing_else() -> None:
    for character in STEERING:
        assert printable(f"a{character}b") == f"a{character.encode('unicode_escape').decode()}b"
    for text in ORDINARY:
        assert printable(text) == text
        assert shown(text) == f"'{text}'"
        assert clip_label(text, 99) == text
    assert printable("\ud800\udcff") == "\\ud800\\udcff"
    assert printable_lines("a\x1b\nb\u2028c") == "a\\x1b\nb\\u2028c"


@given(st.text())
def test_whatever_is_printed_can_be_and_stays_as_it_is_when_printed_again(text: str) -> None:
    once = printable(text)
    assert harmless(once)
    assert "\n" not in once
    once.encode()
    assert printable(once) == once
    kept = "".join(c for c in text if unicodedata.category(c)[0] in "LMNPS")
    assert printable(kept) == kept


def test_joiners_and_marks_take_no_column() -> None:
    assert count_columns("e\u0301") == 1
    assert count_columns("می\u200cخ") == 3
    assert count_columns("❤\ufe0f") == 1


@given(st.text(), st.floats())
def test_json_is_harmless_valid_and_whole(text: str, number: float) -> None:
    value = {text: [text, {"": number}], "tuple": (1, text)}
    for options in ({}, {"ensure_ascii": False}, {"indent": 2, "ensure_ascii": False}):
        written = write_json(value, **options)
        assert harmless(written)
        written.encode()
        found = json.loads(written, parse_constant=lambda name: pytest.fail(name))
        finite = number if abs(number) < float("inf") else None
        assert found == {text: [text, {"": finite}], "tuple": [1, text]}


@given(
    st.lists(st.text(min_size=1).filter(lambda text: not re.search(r"\s|␣|-[LR]RB-|\\", text)), min_size=1)
)
def test_brackets_are_harmless_and_read_back(tokens: list[str]) -> None:
    spans = [(0, end) for end in range(2, len(tokens) + 1)]
    written = write_brackets(tokens, spans)
    assert harmless(written)
    if not re.search(r"[()]", "".join(tokens)):
        assert merges_from_brackets(written)[0] == tokens
    assert merges_from_brackets(r"(a\x41 C:\new)")[0] == [r"a\x41", r"C:\new"]


def test_every_error_is_one_harmless_line_in_a_trace_too() -> None:
    for error in (BeamtreeError(HOSTILE + "\n\rb"), MissingExtraError(HOSTILE, "x")):
        told = "".join(traceback.format_exception(error))
        assert harmless(told)
        assert "\\x1b]0;owned\\x07\\x9b31m\\u202eevil" in told
        assert len(told.splitlines()) == 1


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of a stranger whose labels and words turn the direction of writing."""
    task = restore(["a\u202eb", "c"], {"label": "label", "texts": ["text"], "tokenizer": "blanks"})
    words = Words(Vocabulary(("known", f"k{HOSTILE}")))
    folder = tmp_path / f"m{HOSTILE}"
    save_model(small_model(task=task, words=words), folder)
    for name in ("config.json", "vocabulary.json"):
        assert harmless((folder / name).read_text())
    assert json.loads((folder / "vocabulary.json").read_text()) == ["known", f"k{HOSTILE}"]
    return folder


@pytest.mark.parametrize("format", ["text", "brackets", "json", "svg", "html"])
def test_parse_prints_a_hostile_text_without_harm_in_every_format(model: Path, format: str) -> None:
    texts = [f"known k{HOSTILE} {ORDINARY[6]} x{HOSTILE}\u2029"]
    output = call("parse", model, *texts, "--format", format, "--beams").output
    assert harmless(output)
    assert ORDINARY[6].split()[0] in output
    if format == "json":
        record = json.loads(output)
        assert record["text"] == texts[0]
        assert record["label"] in ("a\u202eb", "c")
        assert record["unknown"] == [*ORDINARY[6].split(), f"x{HOSTILE}"]
    if format == "svg":
        assert ElementTree.fromstring(output).tag.endswith("svg")
    if format == "html":
        record = re.findall(r'class="record"[^>]*>(.*?)</script>', output)[0]
        assert json.loads(record)["sentences"][0]["text"] == texts[0]


def test_lines_that_cannot_be_read_are_told_without_harm(tmp_path: Path) -> None:
    file = tmp_path / f"li{HOSTILE}nes.txt"
    file.write_text(f"[MAX 2 9 ]\n[MAX 2 q{HOSTILE} ]\n{ORDINARY[6]}\n")
    for options in ([], ["--format", "brackets"], ["--format", "json"], ["--strict"]):
        output = call(
            "parse", "listops-ebt-grc", "--file", file, *options, rc=2 if "--strict" in options else 0
        )
        assert harmless(output.output)
    assert harmless(call("parse", "listops-ebt-grc", f"5{HOSTILE}", rc=2).output)
    told = call("parse", "listops-ebt-grc", ORDINARY[6], rc=2).output
    assert f"cannot read '{ORDINARY[6]}': unknown token '{ORDINARY[6].split()[0]}'" in told
    out = tmp_path / f"o{HOSTILE}.jsonl"
    assert harmless(call("parse", "listops-ebt-grc", "--file", file, "--out", out).output)
    assert [json.loads(line)["text"] for line in out.read_text().splitlines()] == file.read_text().split(
        "\n"
    )[:3]


def test_eval_names_files_and_rows_without_harm(tmp_path: Path) -> None:
    file = tmp_path / f"[red]t{HOSTILE}[bold].tsv"
    file.write_text(f"9\t[MAX 2 9 ]\n{HOSTILE}\t5\n3\tq{HOSTILE}\n")
    assert harmless(call("eval", "listops-ebt-grc", file, rc=2).output)
    output = call("eval", "listops-ebt-grc", file, "--bad-rows", "skip").output
    assert harmless(output)
    assert "[red]t" in output, "brackets in a name are no markup"
    found = json.loads(call("eval", "listops-ebt-grc", file, "--bad-rows", "skip", "--json").stdout)
    assert found["splits"][0]["split"] == file.name


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """The terminal on which bars are drawn, every change of which is seen."""
    from rich.console import Console
    from rich.progress import Progress

    drawn = io.StringIO()
    terminal = Console(file=drawn, force_terminal=True, width=200, color_system=None)
    monkeypatch.setattr(
        "rich.console.Console", lambda stderr=False, **how: terminal if stderr else Console(**how)
    )
    update = Progress.update
    monkeypatch.setattr(Progress, "update", lambda self, *_, **how: update(self, *_, **how, refresh=True))
    return drawn


def test_a_bar_shows_a_name_as_it_is(screen: io.StringIO) -> None:
    from beamtree.cli.conventions import counting

    with counting("[red]name[/]", "examples") as show:
        show(0, 1)
    assert "[red]name[/]" in screen.getvalue()


def test_bars_name_files_without_harm(tmp_path: Path, screen: io.StringIO) -> None:
    file = tmp_path / f"[red]t{HOSTILE}.tsv"
    file.write_text("9\t[MAX 2 9 ]\n")
    call("eval", "listops-ebt-grc", file)
    (tmp_path / "vectors").mkdir()
    (tmp_path / "vectors" / f"[red]v{HOSTILE}.txt").write_text("a 1 2\n")
    call("data", "check", tmp_path)
    drawn = screen.getvalue()
    assert "[red]t\\x1b]0;owned" in drawn
    assert "[red]v\\x1b]0;owned" in drawn
    assert not set(HOSTILE[10:]) & set(STEERING) & set(drawn)


def test_data_check_names_folders_rows_and_vectors_without_harm(tmp_path: Path) -> None:
    root = tmp_path / f"[red]da{HOSTILE}ta[bold"
    (root / "vectors").mkdir(parents=True)
    (root / "vectors" / f"v{HOSTILE}[x].txt").write_text("a 1 2\n")
    (root / "logic").mkdir()
    (root / "logic" / "test3").write_text(f"={HOSTILE}\ta\ta\n")
    output = call("data", "check", root).output
    assert harmless(output)
    assert "but '=' is right" in output
    (root / "vectors" / f"w{HOSTILE}.txt").write_text("a 1 2\n")
    assert harmless(call("data", "check", root).output)


def test_train_tells_labels_vectors_and_folders_without_harm(tmp_path: Path) -> None:
    table = tmp_path / f"t{HOSTILE}.tsv"
    rows = [("\u202epos", "a b"), ("neg", f"c {HOSTILE.replace(chr(27), '').replace(chr(7), '')}")] * 10
    table.write_text("label\ttext\n" + "".join(f"{label}\t{text}\n" for label, text in rows))
    (tmp_path / "vectors").mkdir()
    (tmp_path / "vectors" / f"v{HOSTILE}.txt").write_text("a 1 2\nb 1 2\nc 3 4\n")
    small = [f"--set=model.{key}=4" for key in ("d_model", "embedding_size", "classifier_hidden")]
    out = tmp_path / f"r{HOSTILE}un"
    output = call("train", "own", "--data", table, "--out", out, "--max-steps", 1, *small).output
    assert harmless(output)
    assert "\\u202epos" in output
    assert harmless(call("train", "--resume", out, "--max-steps", 1).output)


def test_a_recipe_keeps_every_text_and_shows_it_without_harm(tmp_path: Path) -> None:
    change = f"task.own.label={json.dumps(HOSTILE)}"
    path = tmp_path / "recipe.toml"
    written = call("train", "own", "--set", change, "--show").output
    assert harmless(written)
    path.write_text(written)
    assert load_recipe(path).task.own.label == HOSTILE
    with pytest.raises(BeamtreeError, match=r"task\.own\.label must be Unicode text, got '\\udcff'"):
        load_recipe("own", ["task.own.label=\udcff"])


@pytest.mark.parametrize(
    "content",
    [
        f"{json.dumps(HOSTILE)} = 1",
        f"[task]\n{json.dumps(HOSTILE)} = 1",
        f"[task]\nname = {json.dumps(HOSTILE)}",
        f"[model.options]\n{json.dumps(HOSTILE)} = 1",
        f"[model.options]\n{json.dumps(HOSTILE)} = []",
        f"[model]\nencoder = {json.dumps(HOSTILE)}",
        f"extends = {json.dumps(HOSTILE)}",
        f"[training]\nselection = {json.dumps(HOSTILE)}",
        f"x = {HOSTILE}",
    ],
)
def test_a_strangers_recipe_is_refused_without_harm(tmp_path: Path, content: str) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(content.replace("\\u001b", "\\u001B"))
    assert harmless(
        call("train", path, "--set", "task.sampled.train=9", "--set", "task.sampled.dev=2", rc=2).output
    )


def edit_config(folder: Path, change: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


CHANGES = {
    "format": lambda config: config.update(format=HOSTILE, beamtree=HOSTILE),
    "task": lambda config: config.update(task=HOSTILE),
    "labels": lambda config: config.update(labels=[HOSTILE, "b"]),
    "own": lambda config: config.update(own={HOSTILE: HOSTILE}),
    "key": lambda config: config["model"].update({HOSTILE: 1}),
    "encoder": lambda config: config["model"].update(encoder=HOSTILE),
    "option": lambda config: config["model"]["options"].update({HOSTILE: 1}),
    "value": lambda config: config["model"]["options"].update(beam_size=HOSTILE),
    "vectors": lambda config: config.update(vectors={"words": HOSTILE}),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_strangers_config_is_refused_without_harm(model: Path, change: Any) -> None:
    edit_config(model, change)
    for words in (["parse", model, "5"], ["eval", model, model], ["serve", model, "--port", "0"]):
        assert harmless(call(*words, rc=2).output)
    with pytest.raises(BeamtreeError) as caught:
        load_model(model)
    assert harmless("".join(traceback.format_exception(caught.value)))


BLOCK_CHANGES = {
    "block": lambda config: config.update(block=HOSTILE),
    "option": lambda config: config["options"].update({HOSTILE: 1}),
    "nested": lambda config: config["options"].update(source={HOSTILE: 1}),
    "value": lambda config: config["options"].update(d_model=HOSTILE),
}


@pytest.mark.parametrize("change", BLOCK_CHANGES.values(), ids=BLOCK_CHANGES)
def test_a_strangers_block_is_refused_without_harm(tmp_path: Path, change: Any) -> None:
    folder = tmp_path / f"b{HOSTILE}"
    BeamTreeEncoder(4).save_pretrained(folder)
    edit_config(folder, change)
    with pytest.raises(BeamtreeError) as caught:
        BeamTreeEncoder.from_pretrained(folder)
    assert harmless("".join(traceback.format_exception(caught.value)))


def test_a_strangers_weights_name_their_tensors_without_harm(tmp_path: Path) -> None:
    from beamtree.files.tensors import load_tensors, save_tensors

    BeamTreeEncoder(4).save_pretrained(tmp_path)
    tensors, _ = load_tensors(tmp_path / "model.safetensors")
    save_tensors(tmp_path / "model.safetensors", {**tensors, HOSTILE: torch.zeros(1)}, {})
    with pytest.raises(BeamtreeError, match="unknown tensor") as caught:
        BeamTreeEncoder.from_pretrained(tmp_path)
    assert harmless(str(caught.value))


def test_a_strangers_run_is_reported_without_harm(tmp_path: Path) -> None:
    shipped = Path(__file__).parents[2] / "docs" / "runs" / "listops-seed0"
    run = tmp_path / f"r{HOSTILE}\nun"
    run.mkdir()
    recipe = load_recipe(shipped / "recipe.toml", ["model.options.beam_size=4"])
    (run / "recipe.toml").write_text(recipe.to_toml())
    (run / "metrics.jsonl").write_bytes((shipped / "metrics.jsonl").read_bytes())
    found = json.loads((shipped / "eval.json").read_text())
    del found["weights"]
    found["command"] = f"beamtree eval {HOSTILE}\n# injected"
    found["splits"][0]["split"] = f"s{HOSTILE}\n# injected"
    (run / "eval.json").write_text(json.dumps(found))
    output = call("report", run).output
    assert harmless(output)
    assert "\n# injected" not in output
    told = call("report", run, "--out", tmp_path / f"o{HOSTILE}").output
    assert harmless(told)
    for name in ("results.md", "results-in-full.md", "results.html"):
        assert harmless((tmp_path / f"o{HOSTILE}" / name).read_text())
    found["splits"][0]["accuracy"] = 7
    (run / "eval.json").write_text(json.dumps(found))
    assert harmless(call("report", run, rc=2).output)
    assert harmless(call("report", run, shipped, "--skip").output)


def test_the_console_of_the_explorer_prints_what_it_quotes_without_harm(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import uvicorn

    from beamtree.explorer import server

    monkeypatch.setattr(uvicorn.Server, "run", lambda *_, **__: None)
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    server.run(lambda: None, None, debug=True)  # type: ignore[arg-type]
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        logging.getLogger("beamtree.explorer").debug("the trace of %s", HOSTILE, exc_info=True)
    told = capsys.readouterr().err
    assert "ValueError: \\x1b]0;owned" in told
    assert harmless(told)
    assert len(told.splitlines()) > 3


def test_file_names_that_are_no_text_can_be_told(tmp_path: Path) -> None:
    path = os.fsdecode(bytes(tmp_path) + b"/\xff\x1b.txt")
    told = call("parse", "listops-ebt-grc", "--file", path, rc=2).output
    assert "there is no file" in told
    assert "\\udcff\\x1b.txt" in told
