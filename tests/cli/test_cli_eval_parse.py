"""`beamtree eval` and `beamtree parse` as a user calls them, what they print and what they refuse."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import call
from published import brackets
from small_models import small_model

from beamtree.classifier.model_folder import load_model, save_model
from beamtree.classifier.parsing import parse_lines
from beamtree.cli.formats import as_json
from beamtree.data import listops

EXPRESSION = "[MAX 2 9 [MIN 4 7 ] 0 ]"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name, encoder, task in (
        ("trees", "ebt-grc", "listops"),
        ("flat", "transformer", "listops"),
        ("pairs", "ebt-grc", "logic"),
    ):
        save_model(small_model(encoder, task, seed=3), folder / name)
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data" / "listops"
    folder.mkdir(parents=True)
    for name, low, high in (("test_200_300.tsv", 60, 70), ("test_d20s.tsv", 1, 30)):
        drawn = listops.sample_expressions(12, seed=low, min_length=low, max_length=high)
        lines = [f"{one.label}\t{brackets(one.sentences[0])}\n" for one in drawn]
        (folder / name).write_text("".join(lines))
    return folder


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    drawn = listops.sample_expressions(30, seed=9, min_length=1, max_length=15)
    path = tmp_path / "lines.txt"
    path.write_text("".join(" ".join(one.sentences[0]) + "\n" for one in drawn) + "[MAX 1\n")
    return path


def test_parse_says_how_much_of_a_long_text_is_not_in_its_tree(tmp_path: Path) -> None:
    model = small_model("ebt-grc")
    model.settings = replace(model.settings, tree_tokens=5)
    save_model(model, tmp_path / "bounded")
    said = call("parse", tmp_path / "bounded", "[MAX 1 2 3 4 5 6 ]", "--beams").output
    assert said.count("3 tokens in the middle are not in the tree") == said.count("in the middle") == 1
    assert "in the middle" not in call("parse", tmp_path / "bounded", "[MAX 1 2 3 ]").output
    path = tmp_path / "texts.txt"
    path.write_text("[MAX 1 2 3 4 5 6 ]\n[MAX 1 2 3 ]\n")
    json_lines = call("parse", tmp_path / "bounded", "--file", path, "--format", "json")
    found = [json.loads(line)["sentences"][0] for line in json_lines.stdout.splitlines()]
    assert [(len(one["tokens"]), one["left_out"]) for one in found] == [(5, 3), (5, 0)]
    told = "the trees of 1 text leave out tokens in the middle (model.tree_tokens)\n"
    for words in (
        ("parse", tmp_path / "bounded", "--file", path, "--format", "brackets"),
        ("parse", tmp_path / "bounded", "[MAX 1 2 3 4 5 6 ]", "--format", "svg"),
        ("predict", tmp_path / "bounded", path, "--trees"),
    ):
        assert call(*words).stderr.endswith(told)
    assert "in the middle" not in call("predict", tmp_path / "bounded", path).output


def test_a_log_hears_how_far_eval_is(models: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = call("eval", models / "trees", "--data", data, "--batch-tokens", 100)
    monkeypatch.setattr("beamtree.cli.conventions.LINE_EVERY", 0.0)
    told = call("eval", models / "trees", "--data", data, "--batch-tokens", 100)
    assert quiet.stderr == ""
    lines = told.stderr.splitlines()
    assert len(lines) > 2
    assert lines[-1].startswith("200-300: ")
    assert " of 12 examples" in lines[-1]
    assert told.stdout == quiet.stdout


def test_eval_prints_a_table_of_splits_in_the_papers_order(models: Path, data: Path) -> None:
    output = call("eval", models / "trees", "--data", data).output
    assert output.index("near-iid") < output.index("200-300")
    words = ("accuracy %", "95 %", "interval", "loss", "bracketing", "F1 %", "exact", "by length", "by depth")
    for word in words:
        assert word in output
    assert max(map(len, output.splitlines())) <= 80


def test_eval_shows_a_dash_where_an_encoder_has_no_trees(models: Path, data: Path) -> None:
    output = call("eval", models / "flat", "--data", data / "test_d20s.tsv").output
    row = next(line for line in output.splitlines() if line.startswith(" test_d20s.tsv"))
    assert row.split()[-2:] == ["–", "–"]


def test_eval_as_json_agrees_with_itself_over_folders_and_files(models: Path, data: Path) -> None:
    whole = json.loads(call("eval", models / "trees", "--data", data.parent, "--json").stdout)
    assert (whole["task"], whole["encoder"]) == ("listops", "ebt-grc")
    assert [split["split"] for split in whole["splits"]] == ["near-iid", "200-300"]
    assert whole["splits"][0]["description"] == listops.TASK.splits["near-iid"]
    files = [data / "test_d20s.tsv", data / "test_200_300.tsv"]
    single = json.loads(
        call("eval", models / "trees", "--data", *files, "--json", "--batch-tokens", 50).stdout
    )
    for one, other in zip(whole["splits"], single["splits"], strict=True):
        assert one["examples"] == other["examples"] == 12
        assert one["accuracy"] == other["accuracy"]
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)


def test_eval_finds_its_data_where_the_environment_says(
    models: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BEAMTREE_DATA", str(data.parent))
    assert "near-iid" in call("eval", models / "trees", "--split", "near-iid", "--beam", 2).output


def test_eval_draws_plots(models: Path, data: Path, tmp_path: Path) -> None:
    result = call("eval", models / "trees", "--data", data, "--plot", tmp_path / "plots")
    names = sorted(path.name for path in (tmp_path / "plots").iterdir())
    stems = ("accuracy-by-depth", "accuracy-by-length")
    assert names == [stem + suffix for stem in stems for suffix in (".png", ".svg")]
    assert "accuracy-by-length.svg" in result.stderr


def test_eval_of_pairs_has_trees_too(models: Path, tmp_path: Path) -> None:
    (tmp_path / "test3").write_text("^\t( not a )\ta\n<\t( a ( and b ) )\ta\n")
    result = json.loads(call("eval", models / "pairs", "--data", tmp_path, "--json").stdout)
    assert result["splits"][0]["split"] == "test3"
    assert result["splits"][0]["trees"] == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("3\t[MAX 1 q ]\n", "line 1: unknown token 'q' at position 3"),
        ("3\t[MAX 1 3\n", "line 1: unbalanced brackets"),
        ("4\t[MAX 1 3 ]\n", "line 1: the label is '4', but '3' is right"),
        ("[MAX 1 3 ]\n", "line 1: expected label and expression, separated by tabs; found 1 column(s)"),
    ],
)
def test_eval_refuses_bad_data_with_file_and_line(
    models: Path, tmp_path: Path, content: str, message: str
) -> None:
    (tmp_path / "bad.tsv").write_text(content)
    result = call("eval", models / "trees", "--data", tmp_path / "bad.tsv", rc=2)
    assert "bad.tsv" in result.stderr
    assert message in result.stderr
    assert result.stderr.endswith("(to leave such rows out: --bad-rows skip)\n") == bool(content)
    assert (tmp_path / "bad.tsv").read_text() == content


def test_eval_refuses_what_is_not_there(models: Path, data: Path, tmp_path: Path) -> None:
    absent = call("eval", models / "trees", "--data", tmp_path / "absent", rc=2).stderr
    assert "there is no file or folder" in absent
    assert "beamtree data listops" in absent
    missing = call("eval", models / "trees", "--data", data, "--split", "lra-test", rc=2).stderr
    assert "has no basic_test.tsv" in missing
    (tmp_path / "none").mkdir()
    assert (
        "holds no split of task 'listops'"
        in call("eval", models / "trees", "--data", tmp_path / "none", rc=2).stderr
    )
    assert "there is no model" in call("eval", tmp_path / "model", "--data", data, rc=2).stderr


def test_parse_draws_the_tree_of_an_expression_or_all_with_their_scores(models: Path) -> None:
    output = call("parse", models / "trees", EXPRESSION).output
    assert output.splitlines()[0] == EXPRESSION
    assert "probability" in output
    assert "┴" in output
    beams = call("parse", models / "trees", EXPRESSION, "--beams", "--beam", 3).output
    assert "beam 3  weight" in beams
    assert "beam 4" not in beams


def test_parse_takes_two_texts_for_a_pair(models: Path) -> None:
    for texts in (["( not a )", "a"], ["( not a )\ta"]):
        assert "sentence 2" in call("parse", models / "pairs", *texts).output
    alone = call("parse", models / "pairs", "( not a )", rc=2).stderr
    assert "this model reads pairs: give two texts, got 1" in alone


def test_parse_explains_a_bad_expression_without_a_line_number(models: Path) -> None:
    message = call("parse", models / "trees", "[MAX 2 b ]", rc=2).stderr
    assert "cannot read '[MAX 2 b ]': unknown token 'b' at position 3" in message


@pytest.mark.parametrize("source", ["dash", "file dash", "pipe"])
def test_parse_reads_standard_input(models: Path, source: str) -> None:
    arguments: list[str] = {"dash": ["-"], "file dash": ["--file", "-"], "pipe": []}[source]
    result = call("parse", models / "trees", *arguments, "--format", "json", input=f"{EXPRESSION}\n\n3\n")
    records = [json.loads(line) for line in result.stdout.splitlines()]
    assert [record["line"] for record in records] == [1, 2, 3]
    assert records[1]["error"] == "the line is empty"
    assert "1 of 3 lines could not be read" in result.stderr


def test_parse_needs_exactly_one_source(models: Path, lines: Path) -> None:
    both = call("parse", models / "trees", EXPRESSION, "--file", lines, rc=2).stderr
    assert "give one of: a TEXT to parse, --file FILE, or - for standard input" in both
    assert "standard input is empty" in call("parse", models / "trees", "-", input="", rc=2).stderr


def test_parse_writes_a_file_line_by_line_as_the_model_says(
    models: Path, lines: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    result = call("parse", models / "trees", "--file", lines, "--out", out)
    model = load_model(models / "trees")
    expected = [as_json(record) for record in parse_lines(model, lines.read_text().splitlines())]
    assert out.read_text().splitlines() == expected
    assert "1 of 31 lines could not be read" in result.stderr
    assert "31 lines" in result.stderr


def test_parse_resumes_to_the_same_bytes_and_notices_another_model(
    models: Path, lines: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.txt"
    command = ["parse", models / "trees", "--file", lines, "--out", out, "--format", "brackets"]
    call(*command)
    whole = out.read_bytes()
    assert "exists: --overwrite replaces it, --resume completes it" in call(*command, rc=2).stderr
    out.rename(tmp_path / "out.txt.part0of1")
    os.truncate(tmp_path / "out.txt.part0of1", len(whole) // 2)
    assert "is unfinished" in call(*command, rc=2).stderr
    assert "made with another beam (None, now 3)" in call(*command, "--resume", "--beam", 3, rc=2).stderr
    call(*command, "--resume")
    assert out.read_bytes() == whole
    assert "was already complete" in call(*command, "--resume").stderr
    other = ["parse", models / "flat", *command[2:], "--resume"]
    assert "it was made with another model" in call(*other, rc=2).stderr
    assert "it was made with another beams" in call(*command, "--resume", "--beams", rc=2).stderr
    assert out.read_bytes() == whole
    call(*other[:-1], "--overwrite")
    assert out.read_bytes() != whole


def test_parse_stopped_by_the_user_says_how_to_go_on(
    models: Path, lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import beamtree.classifier.parsing

    def interrupt(*arguments: Any, **options: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(beamtree.classifier.parsing, "parse_lines", interrupt)
    out = tmp_path / "out.jsonl"
    result = call("parse", models / "trees", "--file", lines, "--out", out, rc=130)
    assert f"--resume continues {out}" in result.stderr


def test_parse_strictly_stops_at_the_first_bad_line(models: Path, lines: Path, tmp_path: Path) -> None:
    result = call("parse", models / "trees", "--file", lines, "--strict", "--out", tmp_path / "o.json", rc=2)
    assert "line 31: unbalanced brackets" in result.stderr
    assert not (tmp_path / "o.json").exists()


def test_parse_needs_a_file_to_resume_or_share_out(
    models: Path, lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.html"
    resumed = call("parse", models / "trees", "--file", lines, "--out", out, "--resume", rc=2).stderr
    assert "--resume needs --file, --out and --format json or brackets" in resumed
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    shared = call("parse", models / "trees", EXPRESSION, rc=2).stderr
    assert "dividing a file among processes needs --file, --out" in shared


@pytest.mark.parametrize("suffix", [".html", ".SVG", ".txt", ".JSON"])
def test_parse_takes_the_format_from_the_name_and_keeps_what_is_there(
    models: Path, tmp_path: Path, suffix: str
) -> None:
    out = tmp_path / f"tree{suffix}"
    assert f"wrote {out}" in call("parse", models / "trees", EXPRESSION, "--out", out, "--beams").stderr
    content = out.read_text()
    mark = {".html": "<!DOCTYPE html>", ".svg": "<svg", ".txt": EXPRESSION, ".json": '{"line": 1'}[
        suffix.lower()
    ]
    assert content.startswith(mark)
    assert (
        "exists: --overwrite replaces it"
        in call("parse", models / "trees", EXPRESSION, "--out", out, rc=2).stderr
    )
    assert out.read_text() == content
    call("parse", models / "trees", EXPRESSION, "--out", out, "--overwrite")
    if suffix != ".html":
        assert len(out.read_text()) < len(content), "one tree instead of five"


def test_parse_writes_no_text_into_a_file_named_as_a_picture(models: Path, tmp_path: Path) -> None:
    message = call("parse", models / "trees", EXPRESSION, "--out", tmp_path / "tree.PNG", rc=2).stderr
    assert "cannot write .PNG: choose .svg for a picture, or .html for an interactive page" in message
    assert not list(tmp_path.iterdir())


def test_parse_draws_one_svg_for_one_text_only(models: Path, tmp_path: Path) -> None:
    out = tmp_path / "tree.svg"
    message = call("parse", models / "trees", EXPRESSION, "[SM 1 2 ]", "--out", out, rc=2).stderr
    assert "svg shows only one text: use --format html for several" in message
    assert list(tmp_path.iterdir()) == []


def test_parse_to_a_place_that_cannot_be_written_to_says_so(
    models: Path, lines: Path, tmp_path: Path
) -> None:
    inside = lines / "out.json"  # lines is a file
    assert (
        "there is no folder" in call("parse", models / "trees", "--file", lines, "--out", inside, rc=2).stderr
    )
    assert "cannot make" in call("parse", models / "trees", EXPRESSION, "--out", inside, rc=2).stderr


@pytest.mark.slow
def test_torchrun_shares_a_file_out_and_joins_it_in_order(models: Path, tmp_path: Path) -> None:
    drawn = listops.sample_expressions(40, seed=2, min_length=3, max_length=12)
    source, out = tmp_path / "lines.txt", tmp_path / "out.txt"
    source.write_text("".join(" ".join(one.sentences[0]) + "\n" for one in drawn))
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = ["-m", "beamtree.cli", "parse", models / "trees", "--file", source, "--out", out]
    subprocess.run([*launch, *command, "--format", "brackets"], check=True, timeout=120)
    for line, one in zip(out.read_text().splitlines(), drawn, strict=True):
        assert line.split("\t")[2].replace("(", "").replace(")", "").split() == list(one.sentences[0])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lines.txt", "out.txt", "out.txt.job.json"]


def test_parse_makes_a_page_of_a_file_bad_lines_included(models: Path, lines: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    call("parse", models / "trees", "--file", lines, "--out", out)
    page = out.read_text()
    assert page.count('class="record"') == 31
    assert "Line 31: unbalanced brackets" in page
    assert page.rstrip().endswith("</html>")
