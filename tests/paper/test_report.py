"""`beamtree report`: pages in which every figure can be traced to its run."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from command_line import call
from published import brackets
from reported import make_run
from small_runs import run_in, small_recipe

from beamtree.data.listops import sample_expressions
from beamtree.errors import BeamtreeError
from beamtree.paper.published import TABLES
from beamtree.paper.runs import read_run


class Page(HTMLParser):
    """All the text of a page, its links and its ids; nothing may come from elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.links: set[str] = set()
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        assert tag not in ("script", "link", "img", "iframe")
        self.links |= {found["href"] or ""} if "href" in found else set()
        self.ids |= {found["id"] or ""} if "id" in found else set()

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_page_needs_nothing_else_and_links_every_figure_to_its_run(tmp_path: Path) -> None:
    folder = tmp_path / "<b>|odd & long"
    make_run(folder, accuracy={"near-iid": 0.9})
    make_run(tmp_path / "om", "listops-om", accuracy={"near-iid": 0.8})
    result = call("report", folder, tmp_path / "om", "--out", tmp_path / "out" / "docs")
    assert f"wrote {tmp_path / 'out' / 'docs' / 'results.html'}" in result.stderr
    page = Page((tmp_path / "out/docs/results.html").read_text())
    assert page.links == {"#run-1", "#run-2"}
    assert {"run-1", "run-2", "listops", "runs"} <= page.ids
    assert str(folder) in page.texts
    style = (tmp_path / "out/docs/results.html").read_text()
    assert "prefers-color-scheme: dark" in style
    assert "http" not in style
    short = (tmp_path / "out/docs/results.md").read_text()
    assert "[In full](results-in-full.md)" in short
    assert "| EBT-GRC | 90.00 (99.9) |" in short
    markdown = (tmp_path / "out/docs/results-in-full.md").read_text()
    assert "<b>\\|odd" in markdown
    assert "| EBT-GRC | ours | **90.00** |" in markdown
    for block in re.findall(r"(?:^\|.*\n)+", markdown, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1


def test_without_a_folder_the_markdown_goes_to_stdout(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", accuracy={"near-iid": 0.9})
    output = call("report", run, "--table", "listops").stdout
    assert output.startswith("# Results\n")
    assert f"Written by `beamtree report {run} --table listops`" in output
    assert re.findall(r"^## (.*)", output, re.MULTILINE) == [TABLES["listops"].title, "Runs"]
    assert f"`beamtree train listops --out {run}; beamtree eval {run} --save`" in output


def test_a_table_that_no_run_fills_is_said_to_be_empty(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    result = call("report", run, "--table", "shipped")
    assert "beamtree: No run has figures for the table 'shipped'." in result.stderr
    assert (
        "no table 'listop'; did you mean 'listops'?" in call("report", run, "--table", "listop", rc=2).stderr
    )


def test_a_real_run_goes_from_training_by_eval_to_the_report(tmp_path: Path) -> None:
    run = tmp_path / "run"
    recipe = small_recipe(
        training={"max_epochs": 1}, model={"encoder": "ebt-grc", "options": {"beam_size": 2}}
    )
    run_in(run, recipe)
    data = tmp_path / "test_200_300.tsv"
    drawn = sample_expressions(9, seed=4, min_length=4, max_length=9)
    data.write_text("".join(f"{one.label}\t{brackets(one.sentences[0])}\n" for one in drawn))
    assert f"wrote {run / 'eval.json'}" in call("eval", run, "--data", tmp_path, "--save").stderr
    call("eval", run, "--data", tmp_path, "--split", "200-300", "--beam", 3, "--save")
    saved = json.loads((run / "eval-beam3.json").read_text())
    assert saved["command"] == f"beamtree eval {run} --data {tmp_path} --split 200-300 --beam 3"
    call("eval", run, "--data", tmp_path, "--merge-equal-trees", "--save")
    saved = json.loads((run / "eval-merged.json").read_text())
    assert saved["command"] == f"beamtree eval {run} --data {tmp_path} --merge-equal-trees"
    measured = read_run(run)
    assert [e.search for e in measured.evaluations] == [(3, False), (None, True), (None, False)]
    assert all(list(e.splits) == ["200-300"] for e in measured.evaluations)
    output = call("report", run).stdout
    accuracy = json.loads((run / "eval.json").read_text())["splits"][0]["accuracy"]
    assert f"| {100 * accuracy:.2f} [" in output
    assert "tested with 3 beams" in output
    assert "equal trees merged in the test" in output

    (run / "best" / "model.safetensors").write_bytes(b"others")
    (run / "eval-beam3.json").unlink()
    again = f"beamtree eval {run} --data {tmp_path} --merge-equal-trees --save'"
    with pytest.raises(BeamtreeError, match=f"other weights than those now in best/.*{re.escape(again)}"):
        read_run(run)


def test_eval_saves_into_run_folders_only(tmp_path: Path) -> None:
    result = call("eval", "logic-ebt-grc", "--save", rc=2)
    assert "--save writes to a run folder, but logic-ebt-grc has no recipe.toml" in result.stderr
    assert "there is no model 'nowhere'" in call("eval", "nowhere", "--save", rc=2).stderr
