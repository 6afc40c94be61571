"""Tasks, and models with them, can be pickled; a bad row of any kind is an error with file and line, or is
skipped and counted, but never a traceback."""

import copy
import gzip
import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from beamtree import load_model
from beamtree.cli.demo import SHIPPED
from beamtree.data import task as task_module
from beamtree.data.own import restore
from beamtree.data.task import REFUSE, TASKS, BadRows, find_task
from beamtree.data.tokenizers import MAX_WORDS
from beamtree.errors import BeamtreeError

GOOD = b"neutral\tA man sleeps.\tHe dreams.\n"
HEADER = b"label\tpremise\thypothesis\n"
BAD = {
    "missing column": (b"neutral\tA man sleeps.\n", "the column 'hypothesis' is missing"),
    "wrong label": (b"maybe\tA man.\tA dog.\n", "the label is 'maybe', not one of entailment, neutral,"),
    "control character": (b"neutral\tA \x07man.\tA dog.\n", "a control character, U+0007, in the text"),
    "null": (b"neutral\tA man.\tA \x00dog.\n", "a control character, U+0000, in the text"),
    "endless": (b"neutral\t" + b"word " * 100_000 + b"\tA dog.\n", "a sentence has 100,000 words, more than"),
    "both": (b"neutral\tA \x07caf\xe9.\tA dog.\n", "the byte 0xe9 is not UTF-8 text"),
    "latin-1": (b"neutral\tA caf\xe9.\tA dog.\n", "the byte 0xe9 is not UTF-8 text"),
    "no words": (b"neutral\tA man.\t  \n", "a sentence has no words"),
    "empty line": (b"\n", "the column 'premise' is missing"),
    "stray tab": (b"neutral\tA man.\tA\tdog.\n", "there are 4 columns, but 3 in the first line"),
}


@pytest.mark.parametrize("name", TASKS)
def test_an_unpickled_or_copied_task_is_the_same_object(name: str) -> None:
    task = find_task(name)
    assert pickle.loads(pickle.dumps(task)) is task
    assert copy.deepcopy(task) is task


def test_a_task_on_own_data_keeps_its_labels_and_columns() -> None:
    task = restore(["good", "bad"], {"label": "label", "texts": ["text"], "tokenizer": "words"})
    arrived = pickle.loads(pickle.dumps(task))
    assert (arrived.labels, arrived.own) == (task.labels, task.own)
    assert arrived.tokenize("Not bad.") == task.tokenize("Not bad.")


def test_a_changed_task_keeps_its_changes_when_copied() -> None:
    changed = replace(find_task("sst5"), labels=("low", "high"))
    assert copy.copy(changed).labels == ("low", "high")


def test_an_unpickled_model_predicts_the_same() -> None:
    model, texts = load_model(SHIPPED), ["[MAX 2 9 [MIN 4 7 ] 0 ]", "[SM 4 5 ]"]
    arrived = pickle.loads(pickle.dumps(model))
    assert [one.label for one in arrived.predict(texts)] == [one.label for one in model.predict(texts)]


@pytest.mark.parametrize("name", TASKS)
def test_an_unknown_split_is_refused_with_the_nearest_name(name: str, tmp_path: Path) -> None:
    task = find_task(name)
    split = list(task.splits)[1]
    with pytest.raises(BeamtreeError, match=f"has no split '{split}x'; did you mean '{split[:3]}"):
        next(task.read(tmp_path, f"{split}x"))


def read_snli(path: Path, bad_rows: BadRows = REFUSE) -> list:
    return list(find_task("snli").read_file(path, bad_rows))


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_row_is_refused_with_its_file_and_line(kind: str, tmp_path: Path) -> None:
    row, reason = BAD[kind]
    path = tmp_path / "pairs.tsv"
    path.write_bytes(HEADER + GOOD + row + GOOD)
    with pytest.raises(BeamtreeError) as caught:
        read_snli(path)
    assert str(caught.value).startswith(f"{path}, line 3: ")
    assert reason in str(caught.value)


def test_bad_rows_are_skipped_counted_and_reported_if_the_user_chose_so(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv.gz"
    path.write_bytes(gzip.compress(HEADER + GOOD + b"".join(row + GOOD for row, _ in BAD.values())))
    with pytest.raises(BeamtreeError, match=r"missing or no text \(to leave such rows out: --set x\)$"):
        read_snli(path, BadRows.chosen("refuse", "--set x"))
    skipped = BadRows.chosen("skip")
    assert len(read_snli(path, skipped)) == 1 + len(BAD)
    assert skipped.count == len(BAD)
    (told,) = skipped.report()
    assert told.startswith(f"{path}: {len(BAD)} bad rows were skipped (line 3: the column 'hypothesis' is")
    assert told.endswith("; …)")
    read_snli(path, skipped)
    assert skipped.count == len(BAD)  # a file read twice has no more of them


@pytest.mark.parametrize("end", [b"\n", b"\r\n\r\n", b"  \n\t\t\n"])
@pytest.mark.parametrize(
    ("task", "name", "rows"),
    [
        ("snli", "pairs.tsv", HEADER + GOOD),
        ("snli", "pairs.tsv", HEADER + GOOD.rstrip() + b"\t \n"),
        ("snli", "pairs.csv", b"label,premise,hypothesis\nneutral,A man.,A dog.\n"),
        ("snli", "pairs.jsonl", b'{"label": "neutral", "premise": "A man.", "hypothesis": "A dog."}\n'),
        ("sst5", "test.txt", b"(3 (2 It) (4 works))\n"),
        ("listops", "test.tsv", b"3\t[SM 1 2 ]\n"),
        ("logic", "test1", b"=\ta\ta\n"),
    ],
)
def test_blank_columns_and_lines_at_the_end_are_no_rows(
    task: str, name: str, rows: bytes, end: bytes, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(rows + end)
    assert len(list(find_task(task).read_file(tmp_path / name))) == 1
    (tmp_path / name).write_bytes(end)
    with pytest.raises(BeamtreeError, match=f"{name} is empty"):
        list(find_task(task).read_file(tmp_path / name))


def test_any_other_choice_is_refused() -> None:
    with pytest.raises(BeamtreeError, match="refuse or skip, got 'ignore'"):
        BadRows.chosen("ignore")


def test_json_lines_are_rows_too(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    sound = {"gold_label": "neutral", "sentence1": "A man.", "sentence2": "A dog.", "annotator": ["x"]}
    lines = [
        json.dumps(sound),
        json.dumps({**sound, "gold_label": "-"}),
        '{"gold_label": "neutral", ',
        "[1, 2]",
        json.dumps({**sound, "sentence2": 5}),
        json.dumps({**sound, "sentence2": "A \ud800 dog."}),
    ]
    path.write_text("\n".join(lines) + "\n")
    skipped = BadRows(skip=True)
    (example,) = read_snli(path, skipped)
    assert example.sentences == (("a", "man", "."), ("a", "dog", "."))
    assert list(skipped.found[path]) == [3, 4, 5, 6]  # the undecided pair is left out and not bad
    assert "not JSON" in skipped.found[path][3]
    assert "a JSON object is wanted" in skipped.found[path][4]
    assert "'hypothesis' is missing or no text" in skipped.found[path][5]
    assert "half of a character, U+D800" in skipped.found[path][6]


def test_a_header_without_a_column_is_refused_whatever_was_chosen(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_bytes(b"label\tpremise\ttext\n" + GOOD)
    with pytest.raises(BeamtreeError, match="line 1: no column 'hypothesis' or 'sentence2'; the header is"):
        read_snli(path, BadRows(skip=True))


def test_quoted_rows_may_hold_tabs_and_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "quora_duplicate_questions.tsv"
    lines = [
        '"id"\t"qid1"\t"qid2"\t"question1"\t"question2"\t"is_duplicate"',
        '"0"\t"1"\t"2"\t"What\tis ""it""?"\t"Who\nis it?"\t"1"',
        '"1"\t"3"\t"4"\t"What?"\t""\t"0"',
    ]
    path.write_text("\n".join(lines) + "\n")
    skipped = BadRows(skip=True)
    (example,) = find_task("qqp").read_file(path, skipped)
    assert example.sentences == (("what", "is", '"', "it", '"', "?"), ("who", "is", "it", "?"))
    assert example.label == "duplicate"
    assert skipped.found[path] == {4: "a sentence has no words"}


def test_a_quote_that_never_ends_is_an_error_of_its_row(tmp_path: Path) -> None:
    path = tmp_path / "quora_duplicate_questions.tsv"
    path.write_text("question1\tquestion2\tis_duplicate\n" + '"' + "word " * 50_000 + "\n")
    with pytest.raises(BeamtreeError, match="line 2: field larger than field limit"):
        list(find_task("qqp").read_file(path))


def test_a_quoted_row_that_cannot_be_read_is_skipped_and_the_next_one_read(tmp_path: Path) -> None:
    path = tmp_path / "quora_duplicate_questions.tsv"
    path.write_bytes(b"question1\tquestion2\tis_duplicate\nWhat\ris?\tWho?\t1\nWhen?\tWhere?\t0\n")
    skipped = BadRows(skip=True)
    (example,) = find_task("qqp").read_file(path, skipped)
    assert example.sentences == (("when", "?"), ("where", "?"))
    assert list(skipped.found[path]) == [2]


def test_names_of_columns_may_stand_in_quotation_marks_where_texts_do_not(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text('"Label"\t"premise"\t"hypothesis"\nneutral\tA man.\t"A dog."\n')
    (example,) = read_snli(path)
    assert example.sentences[1] == ('"', "a", "dog", ".", '"')


def test_the_longest_sentence_allowed_is_read(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("label\tpremise\thypothesis\nneutral\t" + "word " * MAX_WORDS + "\tA dog.\n")
    (example,) = read_snli(path)
    assert len(example.sentences[0]) == MAX_WORDS == 10_000


@pytest.mark.parametrize(
    ("task", "good", "bad"), [("listops", "1\t1", "2\t1"), ("logic", "#\ta\tb", "=\ta\tb")]
)
def test_formal_languages_skip_bad_rows_too(task: str, good: str, bad: str, tmp_path: Path) -> None:
    path = tmp_path / "test0"
    path.write_text(f"{good}\n{bad}\n{good}\n")
    skipped = BadRows(skip=True)
    assert len(list(find_task(task).read_file(path, skipped))) == 2
    assert list(skipped.found[path]) == [2]


def test_too_many_bad_rows_end_the_reading_and_the_first_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_module, "_MOST", 7)
    rows = BadRows(skip=True)
    for line in (*range(1, 8), 3):
        rows.add(tmp_path, line, f"reason {line}")
    assert rows.count == 7
    assert list(rows.found[tmp_path].values()) == [*(f"reason {line}" for line in range(1, 6)), "", ""]
    with pytest.raises(
        BeamtreeError, match="more than 7 rows cannot be used, so check its format; the last one: reason 9"
    ):
        rows.add(tmp_path, 9, "reason 9")
