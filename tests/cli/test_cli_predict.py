"""`beamtree predict`: tables in and out, rows in order, nothing lost by a kill, no formula, no drawing."""

import csv
import gzip
import io
import json
from pathlib import Path

import pytest
from command_line import call
from small_models import small_model

import beamtree.classifier.parsing
from beamtree.classifier.model import TreeClassifier
from beamtree.classifier.model_folder import load_model, save_model
from beamtree.cli.formats import harmless
from beamtree.data.own import restore
from beamtree.data.vocabulary import Vocabulary
from beamtree.data.words import Words

TEXTS = ["a lovely film", "dull , dull !", "=1+1", "it is late", "a man sleeps"]
VOCABULARY = Words(Vocabulary(("a", "lovely", "film", "dull", "man", "sleeps", "it", "is", "late")))


def own_model(
    folder: Path, *, texts: tuple[str, ...] = ("text",), labels: tuple[str, ...] = ("neg", "pos")
) -> str:
    task = restore(list(labels), {"label": "label", "texts": list(texts), "tokenizer": "words"})
    save_model(small_model(task=task, words=VOCABULARY), folder)
    return str(folder)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return own_model(tmp_path_factory.mktemp("models") / "own")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("models") / "pairs"
    return own_model(folder, texts=("premise", "hypothesis"), labels=("no", "so", "yes"))


def rows_of(path: Path) -> list[dict[str, str]]:
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    with path.open(encoding="utf-8", newline="") as file:
        quotes = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if path.suffix == ".tsv" else {}
        return list(csv.DictReader(file, **quotes))


def write(path: Path, content: str) -> Path:
    packed = path.suffix == ".gz"
    path.write_bytes(gzip.compress(content.encode()) if packed else content.encode())
    return path


def in_csv(rows: list[list[str]]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()


SOURCES = {
    "texts.txt": "\n".join(TEXTS) + "\n",
    "texts.txt.gz": "\n".join(TEXTS),
    "table.tsv": "label\ttext\n" + "".join(f"pos\t{text}\n" for text in TEXTS),
    "bare.tsv": "text\n" + "".join(f"{text}\n" for text in TEXTS),
    "table.csv.gz": in_csv([["review", "sentiment"], *([text, "pos"] for text in TEXTS)]),
    "table.jsonl": "".join(json.dumps({"stars": 3, "Text": text}) + "\n" for text in TEXTS),
}


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl"])
@pytest.mark.parametrize("source", SOURCES)
def test_every_kind_of_file_gives_a_row_for_each_of_its_own(
    model: str, source: str, kind: str, tmp_path: Path
) -> None:
    out = tmp_path / f"out.{kind}"
    told = call("predict", model, write(tmp_path / source, SOURCES[source]), "--out", out).stderr
    assert told == f"wrote {out}: 5 rows\n"
    predictions = load_model(model).predict(TEXTS)
    rows = rows_of(out)
    assert [row["label"] for row in rows] == [prediction.label for prediction in predictions]
    for row, prediction, text in zip(rows, predictions, TEXTS, strict=True):
        written = next(iter(row.values()))
        assert written == (text if kind == "jsonl" else harmless(text))
        for label, share in prediction.probabilities.items():
            found = row["probabilities"][label] if kind == "jsonl" else float(row[f"p_{label}"])
            assert found == pytest.approx(share, abs=1e-6)
        assert len(row) == (3 if kind == "jsonl" else 4)


def test_an_id_is_written_in_the_place_of_the_text_and_may_be_chosen(model: str, tmp_path: Path) -> None:
    path = write(tmp_path / "in.csv", "id,text,page\n7,a film,x1\n8,late,x2\n")
    assert [row["id"] for row in rows_of_output(call("predict", model, path).stdout)] == ["7", "8"]
    chosen = rows_of_output(call("predict", model, path, "--id=page").stdout)
    assert [row["id"] for row in chosen] == ["x1", "x2"]
    numbers = write(tmp_path / "in.jsonl", '{"id": 7, "text": "a film"}\n')
    assert json.loads(call("predict", model, numbers, "--format=jsonl").stdout)["id"] == "7"


def rows_of_output(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_pairs_have_two_texts_two_trees_and_all_labels(pairs: str, tmp_path: Path) -> None:
    path = write(tmp_path / "in.tsv", "premise\thypothesis\na man sleeps\tit is late\n")
    (row,) = rows_of_output(call("predict", pairs, path, "--trees").stdout)
    assert list(row) == ["premise", "hypothesis", "label", "p_no", "p_so", "p_yes", "tree1", "tree2"]
    assert row["tree1"].replace("(", "").replace(")", "").split() == ["a", "man", "sleeps"]
    plain = write(tmp_path / "in.txt", "a man sleeps\tit is late\n")
    assert rows_of_output(call("predict", pairs, plain).stdout)[0]["p_so"] == row["p_so"]
    named = write(tmp_path / "other.csv", "left,right\na man sleeps,it is late\n")
    told = call("predict", pairs, named, rc=2).stderr
    assert "no text column 'premise'; there are left, right; --text NAME,NAME chooses both" in told
    chosen = rows_of_output(call("predict", pairs, named, "--text=left,right").stdout)
    assert chosen[0]["p_so"] == row["p_so"]


def test_a_quoted_text_of_several_lines_is_one_row_in_one_line(model: str, tmp_path: Path) -> None:
    path = write(tmp_path / "in.csv", in_csv([["text"], ["a\nlovely\tfilm"], ["late"]]))
    out = tmp_path / "out.csv"
    call("predict", model, path, "--out", out)
    assert len(out.read_text().splitlines()) == 3
    assert rows_of(out)[0]["text"] == "a lovely film"


@pytest.mark.parametrize("sign", "=+-@")
def test_no_cell_begins_as_a_formula_does_but_numbers_stay(sign: str) -> None:
    for text in (f"{sign}cmd|' /C calc'!A0", f"\t{sign}1+1", f"\r\n {sign}SUM(A1)", f"{sign}", f"{sign}1-2"):
        assert harmless(text).startswith(f"'{sign}")
        assert "\t" not in harmless(text)
        assert "\n" not in harmless(text)
    assert harmless("-1") == "-1"
    assert harmless("+1.5") == "+1.5"
    assert harmless("- 1") == "'- 1"


def test_labels_trees_and_ids_are_defused_too(tmp_path: Path) -> None:
    model = own_model(tmp_path / "model", labels=("-1", "=evil()"))
    path = write(tmp_path / "in.tsv", "id\ttext\n@x\t=\n")
    cells = next(csv.reader(call("predict", model, path, "--trees").stdout.splitlines()[1:]))
    assert cells[0] == "'@x"
    assert cells[1] in ("-1", "'=evil()")
    assert cells[-1] == "'="


def test_a_row_that_cannot_be_read_keeps_its_place(model: str, tmp_path: Path) -> None:
    path = tmp_path / "in.tsv"
    path.write_bytes(b"text\tid\na film\t1\n\xff bad\t2\n \t3\nlate\t4\n")
    for kind in ("csv", "jsonl"):
        out = tmp_path / f"out.{kind}"
        told = call("predict", model, path, "--out", out).stderr
        assert "2 of 4 lines could not be read (line 3: the byte 0xff is not UTF-8 text: save" in told
        rows = rows_of(out)
        assert [row["id"] for row in rows] == list("1234")
        assert [bool(row["label"]) for row in rows] == [True, False, False, True]
    assert rows[1]["error"].startswith("line 3: the byte")
    told = call("predict", model, path, "--out", tmp_path / "strict.csv", "--strict", rc=2).stderr
    assert f"{path}, line 3: the byte 0xff" in told


def test_a_file_of_which_no_row_can_be_read_fails_but_is_written(model: str, tmp_path: Path) -> None:
    path, out = write(tmp_path / "in.csv", 'id,text\n1,"a film\n2,"late" it\n'), tmp_path / "out.csv"
    told = call("predict", model, path, "--out", out, rc=2).stderr
    assert told.splitlines()[-1] == f"beamtree: no row of {path} could be read, so {out} has no label"
    assert "2 of 2 lines could not be read (line 2: a quotation mark is not closed" in told
    assert [row["label"] for row in rows_of(out)] == ["", ""]
    assert "no row of" in call("predict", model, path, rc=2).stderr
    assert "no row of standard input" in call("predict", model, "-", input=" \n", rc=2).stderr
    call("predict", model, write(tmp_path / "empty.csv", "id,text\n"), "--out", tmp_path / "none.csv")
    write(path, 'id,text\n1,"a film\n2,late\n')
    call("predict", model, path, "--out", out, "--overwrite")
    assert [bool(row["label"]) for row in rows_of(out)] == [False, True]


def test_a_run_killed_at_any_byte_goes_on_to_the_same_file(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beamtree.classifier.parsing, "CHUNK_LINES", 2)
    path = write(tmp_path / "in.tsv", SOURCES["table.tsv"])
    whole, out = tmp_path / "whole.csv", tmp_path / "out.csv"
    call("predict", model, path, "--out", whole)
    content = whole.read_bytes()
    sidecar = json.loads((tmp_path / "whole.csv.job.json").read_text())
    for end in (0, 3, content.index(b"\n"), content.index(b"\n") + 1, len(content) // 2, len(content) - 1):
        out.unlink(missing_ok=True)
        (tmp_path / "out.csv.part0of1").write_bytes(content[:end])
        (tmp_path / "out.csv.job.json").write_text(json.dumps(sidecar))
        assert "--resume continues it" in call("predict", model, path, "--out", out, rc=2).stderr
        call("predict", model, path, "--out", out, "--resume")
        assert out.read_bytes() == content
    assert "already complete" in call("predict", model, path, "--out", out, "--resume").stderr
    other = call("predict", model, path, "--out", out, "--resume", "--trees", rc=2).stderr
    assert "made with another trees" in other or "made with another header" in other
    assert "exists: --overwrite replaces it" in call("predict", model, path, "--out", out, rc=2).stderr
    call("predict", model, path, "--out", out, "--overwrite")


def test_standard_input_and_output_and_names_of_no_table(model: str, tmp_path: Path) -> None:
    (row,) = rows_of_output(call("predict", model, "-", input="a film\n").stdout)
    assert row["text"] == "a film"
    assert "standard input is empty" in call("predict", model, "-", input="", rc=2).stderr
    told = call("predict", model, write(tmp_path / "in.txt", "a"), "--out", tmp_path / "x.xlsx", rc=2).stderr
    assert "one of .csv, .tsv, .jsonl" in told
    told = call("predict", model, tmp_path / "in.txt", "--resume", rc=2).stderr
    assert "--resume needs a FILE and --out" in told


@pytest.mark.parametrize(
    ("name", "content", "options", "told"),
    [
        ("in.tsv", "txet\tn\na\t1\n", (), "no text column 'text'; did you mean 'txet'?; --text NAME"),
        ("in.tsv", "text\tn\na\t1\n", ("--text=txt",), "no text column 'txt'; did you mean 'text'?"),
        ("in.tsv", "text\tn\na\t1\n", ("--text=text,n",), "--text must name one column for this model"),
        ("in.tsv", "text\tkey\na\t1\n", ("--id=ky",), "no column 'ky' for --id; did you mean 'key'?"),
        ("in.csv", "a lovely film\n", (), "plain lines belong in a .txt"),
        ("in.tsv", "", (), "in.tsv is empty"),
        ("in.txt", "", (), "in.txt is empty"),
        ("in.txt", "a\n", ("--text=a",), "in.txt is read as plain lines"),
    ],
)
def test_a_file_that_is_not_understood_is_refused_with_what_to_do(
    model: str, name: str, content: str, options: tuple[str, ...], told: str, tmp_path: Path
) -> None:
    path, out = write(tmp_path / name, content), tmp_path / "out.csv"
    assert told in call("predict", model, path, "--out", out, *options, rc=2).stderr
    assert not out.exists()


def test_an_encoder_without_trees_predicts_but_writes_none(tmp_path: Path) -> None:
    task = restore(["a", "b"], {"label": "label", "texts": ["text"], "tokenizer": "words"})
    flat: TreeClassifier = small_model("transformer", task=task, words=VOCABULARY)
    save_model(flat, tmp_path / "model")
    path = write(tmp_path / "in.txt", "a film\n")
    assert "p_a" in call("predict", tmp_path / "model", path).stdout
    assert "--trees does not apply" in call("predict", tmp_path / "model", path, "--trees", rc=2).stderr


def test_parse_reads_tables_and_writes_no_drawing_into_one(model: str, pairs: str, tmp_path: Path) -> None:
    path = write(tmp_path / "in.csv", in_csv([["n", "Review"], ["1", "a\nfilm"], ["2", "late"]]))
    first, second = call("parse", model, "--file", path, "--format=json").stdout.splitlines()
    assert (json.loads(first)["text"], json.loads(second)["text"]) == ("a film", "late")
    assert json.loads(second)["line"] == 4  # of the file
    out = tmp_path / "out.csv"
    assert "use `beamtree predict`" in call("parse", model, "--file", path, "--out", out, rc=2).stderr
    assert not out.exists()
    plain = write(tmp_path / "pairs.tsv", "a man\tit is\n")  # as ever: two sentences with a tab between
    assert json.loads(call("parse", pairs, "--file", plain, "--format=json").stdout)["line"] == 1
    call("parse", model, "--file", path, "--out", tmp_path / "out.jsonl")
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 2
