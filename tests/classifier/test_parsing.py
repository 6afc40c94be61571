"""Lines of text are parsed and written in every format; bad lines become error records."""

import io
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from command_line import call
from rich.console import Console
from small_models import small_model

import beamtree.classifier.parsing
import beamtree.files.lines
from beamtree.classifier.parsing import Parsed, Unparsed, parse_lines, parse_stream
from beamtree.cli.formats import as_brackets, as_json, as_svg, print_text
from beamtree.data import listops, logic
from beamtree.data.unlabelled import TextRow
from beamtree.errors import BeamtreeError
from beamtree.trees.brackets import merges_from_brackets, spans_of

LINES = ["[MAX 2 9 [MIN 4 7 ] 0 ]", "[MAX 2", "5", "", "[SM 1 2 [MED 3 3 3 ] ]", "[MIN 1 x ]", "3\t[SM 1 2 ]"]
PAIR = "( not a )\t( a ( and b ) )"


@pytest.fixture(scope="module")
def records() -> list[Parsed | Unparsed]:
    return parse_lines(small_model(), LINES)


@pytest.fixture(scope="module")
def pair() -> Parsed | Unparsed:
    return parse_lines(small_model(task=logic.TASK), [PAIR])[0]


def drawn(record: Parsed | Unparsed, width: int = 100, **options: bool) -> str:
    console = Console(file=io.StringIO(), width=width)
    with console.capture() as text:
        print_text(console, record, **options)
    return text.get()


def test_every_line_has_its_record_in_order(records: list[Parsed | Unparsed]) -> None:
    assert [(record.line, record.text) for record in records] == list(enumerate(LINES, start=1))
    assert [isinstance(record, Parsed) for record in records] == [
        True,
        False,
        True,
        False,
        True,
        False,
        False,
    ]


def test_predictions_are_those_of_predict(records: list[Parsed | Unparsed]) -> None:
    parsed = [record for record in records if isinstance(record, Parsed)]
    predictions = small_model().predict([record.text for record in parsed], need_trees=True)
    for record, prediction in zip(parsed, predictions, strict=True):
        assert record.label == prediction.label
        assert record.probability == pytest.approx(prediction.probability, rel=1e-5)
        assert [one.brackets() for one in prediction.trees] == [[one.brackets()] for one in record.trees]
        assert set(prediction.probabilities) == set(small_model().task.labels)
        assert sum(prediction.probabilities.values()) == pytest.approx(1, abs=1e-5)
        assert max(prediction.probabilities.values()) == prediction.probability


def test_a_pair_predicted_has_the_trees_of_both_and_none_unless_asked(pair: Parsed | Unparsed) -> None:
    assert isinstance(pair, Parsed)
    model, first = small_model(task=logic.TASK), "( not ( b ( or a ) ) )"
    one, other = model.predict([(first, "c"), tuple(PAIR.split("\t"))], need_trees=True)
    assert [one.brackets() for one in other.trees] == [[tree.brackets()] for tree in pair.trees]
    assert one.trees[1].brackets() == ["c"]
    assert model.predict([(first, "c")])[0].trees == ()
    assert small_model(encoder="transformer").predict(["5"], need_trees=True)[0].trees == ()


def test_a_bad_line_says_what_is_wrong_with_it(records: list[Parsed | Unparsed]) -> None:
    reasons = {record.line: str(record) for record in records if isinstance(record, Unparsed)}
    assert "line 2: unbalanced brackets" in reasons[2]
    assert reasons[4] == "line 4: the line is empty"
    assert "unknown token 'x' at position 3" in reasons[6]
    assert "expected one text, found 2 columns (labels are not part of the input)" in reasons[7]


def test_a_line_that_is_too_long_becomes_an_error_record() -> None:
    short, long = parse_lines(small_model(), ["[SM 1 2 ]", "[SM 1 2 3 ]"], max_length=4)
    assert isinstance(short, Parsed)
    assert isinstance(long, Unparsed)
    assert long.reason == "the text has 5 tokens, more than --max-length 4"


def test_a_pair_needs_two_sentences() -> None:
    model = small_model(task=logic.TASK)
    lone, half = parse_lines(model, ["( not a )", "a\t"])
    assert isinstance(lone, Unparsed)
    assert "expected 2 sentences separated by a tab, found 1 column (" in lone.reason
    assert isinstance(half, Unparsed)


def test_pairs_parsed_together_have_the_trees_they_have_alone() -> None:
    model = small_model(task=logic.TASK)
    lines = [PAIR, "( b ( or c ) )\ta", "( not ( b ( or a ) ) )\t( ( not c ) ( and a ) )"]
    for line, record in zip(lines, parse_lines(model, lines), strict=True):
        (alone,) = parse_lines(model, [line])
        assert as_brackets(record).split("\t")[2:] == as_brackets(alone).split("\t")[2:]


def test_a_chunk_may_consist_of_bad_lines_only() -> None:
    rows = [TextRow(7, "x"), TextRow(8, "y")]
    assert [record.line for record in parse_lines(small_model(), rows)] == [7, 8]


def test_a_stream_is_cut_into_chunks_and_keeps_counting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beamtree.classifier.parsing, "CHUNK_LINES", 3)
    taken: list[str] = []

    def lines() -> Any:
        for line in LINES:
            taken.append(line)
            yield line

    stream = parse_stream(small_model(), lines())
    assert next(stream).line == 1
    assert len(taken) == 3, "no more than a chunk is read ahead"
    assert [record.line for record in stream] == [2, 3, 4, 5, 6, 7]


def test_a_stream_keeps_counting_after_a_chunk_that_long_lines_cut_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(beamtree.files.lines, "LONGEST_LINE", len(LINES[0]))
    records = parse_stream(small_model(), LINES)
    assert [(record.line, record.text) for record in records] == list(enumerate(LINES, start=1))


def test_batches_do_not_change_records(records: list[Parsed | Unparsed]) -> None:
    for one, other in zip(records, parse_lines(small_model(), LINES, batch_tokens=1), strict=True):
        assert as_brackets(one).split("\t")[2:] == as_brackets(other).split("\t")[2:]


def test_brackets_are_label_probability_and_tree(records: list[Parsed | Unparsed]) -> None:
    label, probability, tree = as_brackets(records[0]).split("\t")
    assert label in listops.TASK.labels
    assert 0.1 <= float(probability) <= 1
    tokens, merges = merges_from_brackets(tree)
    assert tokens == LINES[0].split()
    record = records[0]
    assert isinstance(record, Parsed)
    assert spans_of(merges) == spans_of(record.trees[0].alone().k_best()[0].merges)
    assert as_brackets(records[2]).endswith("\t5")
    assert as_brackets(records[1]).startswith("error\t\tline 2: unbalanced brackets")


def test_brackets_of_all_beams_come_with_weights_that_sum_to_one(
    records: list[Parsed | Unparsed], pair: Parsed | Unparsed
) -> None:
    columns = as_brackets(records[0], beams=True).split("\t")[2:]
    assert len(columns) == 10
    assert sum(map(float, columns[::2])) == pytest.approx(1, abs=1e-5)
    both = as_brackets(pair, beams=True).split("\t")[2:]
    first, second = both[: both.index("")], both[both.index("") + 1 :]
    for beams in (first, second):
        assert sum(map(float, beams[::2])) == pytest.approx(1, abs=1e-5)
    assert first[1].count("-LRB-") == 1
    assert second[1].count("-LRB-") == 2


def test_json_holds_prediction_tokens_and_trees(records: list[Parsed | Unparsed]) -> None:
    best = json.loads(as_json(records[0]))
    assert (best["line"], best["text"]) == (1, LINES[0])
    assert best["label"] in listops.TASK.labels
    assert best["sentences"][0]["tokens"] == LINES[0].split()
    assert len(best["sentences"][0]["trees"]) == 1
    every = json.loads(as_json(records[0], beams=True))["sentences"][0]["trees"]
    assert every[0] == best["sentences"][0]["trees"][0]
    assert [tree["log_score"] for tree in every] == sorted(
        (tree["log_score"] for tree in every), reverse=True
    )
    assert spans_of(merges_from_brackets(every[4]["brackets"])[1]) == spans_of(every[4]["merges"])
    assert json.loads(as_json(records[3])) == {"line": 4, "text": "", "error": "the line is empty"}
    assert "\n" not in as_json(records[0], beams=True)


def test_the_terminal_shows_text_label_probability_and_tree(records: list[Parsed | Unparsed]) -> None:
    text = drawn(records[0])
    assert text.splitlines()[0] == LINES[0]
    assert "→" in text
    assert "%" in text
    assert text.rstrip().splitlines()[-1].split() == LINES[0].split()
    assert "┴" in text
    assert "cannot be read: line 2: unbalanced" in drawn(records[1])


def test_a_long_tree_keeps_to_the_terminals_width() -> None:
    line = "[MAX " + " ".join("123456789" * 3) + " ]"
    text = drawn(parse_lines(small_model(), [line])[0], width=40)
    assert max(map(len, text.splitlines()[2:])) <= 40


def test_all_beams_are_listed_and_equal_trees_drawn_once(records: list[Parsed | Unparsed]) -> None:
    record = records[4]
    assert isinstance(record, Parsed)
    text = drawn(record, beams=True)
    beams = record.trees[0].alone().k_best()
    for beam, tree in enumerate(beams, start=1):
        assert f"beam {beam}  weight {tree.weight:.3f}  log-score {tree.log_score:.3f}" in text
    distinct = {frozenset(spans_of(tree.merges)) for tree in beams}
    assert text.count("[MED") == len(distinct) + 1, "once in the text and once for each tree"
    assert text.count("merged in another order") == len(beams) - len(distinct)


def test_a_pair_is_drawn_one_sentence_after_the_other(pair: Parsed | Unparsed) -> None:
    text = drawn(pair)
    assert text.index("sentence 1") < text.index("sentence 2")
    assert "sentence 2  beam 1  weight" in drawn(pair, beams=True)


def test_an_encoder_without_trees_still_predicts() -> None:
    (record,) = parse_lines(small_model(encoder="transformer"), [LINES[0]])
    assert "builds no tree" in drawn(record)
    assert len(as_brackets(record).split("\t")) == 2
    assert json.loads(as_json(record))["sentences"] == []
    with pytest.raises(BeamtreeError, match="nothing to draw: this encoder builds no tree"):
        as_svg(record)


def test_svg_is_one_picture_also_for_many_trees(
    records: list[Parsed | Unparsed], pair: Parsed | Unparsed
) -> None:
    def sizes(picture: str) -> tuple[int, list[int], list[int]]:
        root = ElementTree.fromstring(picture)
        inner = root.findall("{http://www.w3.org/2000/svg}svg")
        return (
            int(root.attrib["height"]),
            [int(one.attrib["y"]) for one in inner],
            [int(one.attrib["height"]) for one in inner],
        )

    assert sizes(as_svg(records[0]))[1:] == ([], [])
    for picture, count in ((as_svg(records[0], beams=True), 5), (as_svg(pair), 2)):
        height, tops, heights = sizes(picture)
        assert len(tops) == count
        assert all(top + high < below for top, high, below in zip(tops, heights, tops[1:], strict=False))
        assert tops[-1] + heights[-1] == height
    with pytest.raises(BeamtreeError, match="nothing to draw: line 2: unbalanced"):
        as_svg(records[1])


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

    monkeypatch.setattr(beamtree.files.lines, "LONGEST_LINE", 40)
    monkeypatch.setattr(beamtree.classifier.parsing, "parse_lines", watched)
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
