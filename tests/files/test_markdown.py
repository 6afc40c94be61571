"""Text of strangers in Markdown and YAML: seen as it is, and nothing but text."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from reported import make_run
from small_models import small_model

from beamtree.classifier.model import TreeClassifier
from beamtree.data.own import restore
from beamtree.data.vocabulary import Vocabulary
from beamtree.data.words import Words
from beamtree.files.tensors import load_tensors, save_tensors
from beamtree.paper.report import build_report, to_html, to_markdown
from beamtree.printable import code, plain, printable, without_links
from beamtree.saving.folder import write_card

INJECTIONS = [
    "\n\n# Heading",
    "[link](https://evil.example)",
    "![image](https://evil.example/x.png)",
    "<script>alert(1)</script>",
    "<https://evil.example>",
    "https://evil.example www.evil.example a@evil.example",
    "a | b | [c](d)",
    "\\| [c](d) | \\",
    "`code` ``` and \\` more",
    "\\<img src=x>",
    "\\[c](d)",
    "---\nlicense: mit\n---",
    "*bold* _it_ ~~gone~~ $x$ &lt; :smile:",
    "\r\n- item\n1. one\n> said\n    code\n===\n",
]
LINKS = ("link_open", "image", "html_inline", "html_block", "heading_open", "fence", "code_block", "hr")


def tokens_of(text: str) -> list[Any]:
    """Everything that a reader of GitHub's Markdown finds, from the top down."""
    found = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
    return [*found, *(child for token in found for child in token.children or ())]


def cells_of(text: str) -> list[list[str]]:
    """The texts of a table as they are seen."""
    rows: list[list[str]] = []
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline" and rows:
            rows[-1].append("".join(child.content for child in token.children or ()))
    return rows


@given(st.one_of(st.sampled_from(INJECTIONS), st.text()))
def test_words_and_names_are_seen_as_they_are_in_a_cell(text: str) -> None:
    seen = " ".join(printable(text).split())
    for write in (plain, code):
        rows = cells_of(f"| a | b |\n| --- | --- |\n| {write(text)} | end |\n")
        assert len(rows) == 2
        assert rows[1][-1] == "end"
        assert len(rows[1]) == 2
        assert " ".join(rows[1][0].split()) == seen
        assert not {token.type for token in tokens_of(f"x {write(text)} x")} & {*LINKS, "em_open", "s_open"}


@given(st.one_of(st.sampled_from(INJECTIONS), st.text()), st.sampled_from(INJECTIONS))
def test_a_sentence_with_a_quotation_has_no_link_html_or_second_line(text: str, other: str) -> None:
    sentence = without_links(f"We say {text}{other}.")
    assert "\n" not in sentence
    assert not {token.type for token in tokens_of(sentence)} & set(LINKS)


def test_a_bare_address_is_no_link_to_readers_that_look_for_them() -> None:
    for write in (plain, without_links):
        assert "s://" not in write("https://evil.example")
    assert "www." not in plain("www.evil.example")
    assert "a@" not in plain("a@evil.example")


def read_card(text: str) -> tuple[dict[str, Any], str]:
    _, head, body = text.split("---\n", 2)
    return yaml.safe_load(head), body


@given(st.sampled_from(INJECTIONS), st.one_of(st.sampled_from(INJECTIONS), st.text()))
def test_a_card_of_strange_words_keeps_its_head_and_its_headings(first: str, second: str) -> None:
    facts = {first: second, "names": [first, second], "number": 1234.5, "other": {"a": first}}
    card = write_card(first, "Said.", "pass", facts, tags=[second, "no", "a: b"])
    head, body = read_card(card)
    assert head == {"library_name": "beamtree", "tags": ["beamtree", second, "no", "a: b"]}
    tokens = tokens_of(body)
    assert [token.tag for token in tokens if token.type == "heading_open"] == ["h1", "h2"]
    assert [token.type for token in tokens if token.type in LINKS] == [
        "heading_open",
        "fence",
        "heading_open",
        "fence",
    ]
    assert len(cells_of(body)) == 5


@pytest.mark.parametrize("text", INJECTIONS)
def test_notes_in_a_strangers_weights_are_text_in_a_saved_readme(tmp_path: Path, text: str) -> None:
    label = " ".join(text.split())
    own = {"label": "label", "texts": ["text"], "tokenizer": "blanks"}
    model = small_model(task=restore([label, "b"], own), words=Words(Vocabulary(("a",))))
    model.save_pretrained(tmp_path / "theirs")
    weights = tmp_path / "theirs" / "model.safetensors"
    tensors, _ = load_tensors(weights)
    save_tensors(
        weights, tensors, {"epoch": text, "dev_loss": [text, {"x": text}], "dev_accuracy": text * 99}
    )
    loaded = TreeClassifier.from_pretrained(tmp_path / "theirs")
    assert loaded.notes["epoch"] == text
    loaded.save_pretrained(tmp_path / "mine")
    head, body = read_card((tmp_path / "mine" / "README.md").read_text())
    assert head == {
        "library_name": "beamtree",
        "pipeline_tag": "text-classification",
        "tags": ["beamtree", "ebt-grc", "own"],
    }
    kinds = [token.type for token in tokens_of(body)]
    assert [kind for kind in kinds if kind in LINKS] == ["heading_open", "fence", "heading_open", "fence"]
    rows = {row[0]: row[1] for row in cells_of(body)[1:]}
    assert rows["labels"] == f"{label}, b"
    assert rows["best epoch"] == printable(text)
    assert len(rows["dev accuracy"]) <= 1200


@pytest.mark.parametrize("text", INJECTIONS)
def test_a_strangers_run_has_no_links_in_a_report(tmp_path: Path, text: str) -> None:
    run = make_run(tmp_path / "run", accuracy={"near-iid": 0.5})
    found = json.loads((run / "eval.json").read_text())
    found["command"] = text
    found["splits"].append(found["splits"][0] | {"split": text})
    (run / "eval.json").write_text(json.dumps(found))
    (tmp_path / "remarks.toml").write_text(f"[[notes]]\nsaid = {json.dumps(text)}\n")
    report = build_report([tmp_path])
    kinds = {token.type for token in tokens_of(to_markdown(report, text))}
    assert not kinds & {*LINKS} - {"heading_open"}
    page = to_html(report, text)
    assert not any(mark in page for mark in ("<script", "<img", "javascript:", 'href="http'))
