"""A user's own data: with any table of labels and texts a model trains, is evaluated, parses and loads."""

import csv
import json
import shlex
from pathlib import Path

import pytest
from command_line import attempt, call, refusal

from beamtree.classifier.model_folder import load_model
from beamtree.data.own import MOST_LABELS, own_task, restore
from beamtree.data.task import BadRows, Example, find_task
from beamtree.errors import BeamtreeError
from beamtree.training.examples import load_learning_data
from beamtree.training.recipe import load_recipe

ROWS = [("pos", "a lovely film"), ("neg", "a dull film"), ("pos", "lovely"), ("neg", "dull , dull !")] * 5
PLAIN = [("pos", f"a film {i}") for i in range(10)] + [("neg", f"dull {i}") for i in range(10)]
PAIRS = [("same", "a man sleeps", "he sleeps"), ("other", "a man runs", "it is late")] * 10
SMALL = [
    "--set=model.d_model=8",
    "--set=model.embedding_size=8",
    "--set=model.classifier_hidden=8",
    "--set=training.batch_size=4",
]


def write_table(path: Path, header: str, rows: list) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([header, *map("\t".join, rows)]) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_table(tmp_path / "reviews.tsv", "label\ttext", ROWS)


@pytest.mark.parametrize("kind", ["texts", "pairs"])
def test_a_file_trains_stops_resumes_is_evaluated_parsed_and_loaded(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    if kind == "texts":
        path, text = write_table(tmp_path / "mine.tsv", "label\ttext", ROWS), ["a lovely film"]
    else:
        path = write_table(tmp_path / "mine.tsv", "label\ttext1\ttext2", PAIRS)
        text = ["a man sleeps", "it is late"]
    begun = attempt("train", "own", "--data", path, "--out", folder, *SMALL, "--max-steps", 2)
    assert begun.exit_code == 0, begun.output
    told = " ".join(begun.output.split())
    assert ("with 2 labels: neg, pos" if kind == "texts" else "pairs of texts with 2 labels: other") in told
    assert "17 training and 3 dev examples" in told
    assert f"no dev file: 3 of the 20 rows of {path} are held out as dev" in told
    assert json.loads((folder / "data.json").read_text())["path"] == str(path)
    _, _, command = begun.output.strip().partition("continue with: beamtree ")  # can be typed as it stands
    done = attempt(*shlex.split(command), "--set", "training.max_epochs=2")
    assert done.exit_code == 0, done.output
    assert f"data: {path}, as before" in done.output
    shown = attempt("eval", folder, path, "--json")
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout)["splits"][0]["examples"] == 20
    assert "of the 20 rows of mine.tsv the model has seen 20 in training: results on them" in shown.stderr
    assert (
        "bracketing F1" not in attempt("eval", folder, path).output
    )  # there are no gold trees to compare with
    assert "unknown to the model" not in attempt("parse", folder, *text).output
    strange = attempt("parse", folder, " ".join(f"zq{i}z zq0z" for i in range(11)), *text[1:]).output
    assert f"unknown to the model: {' '.join(f'zq{i}z' for i in range(10))} …\n" in strange
    assert f"name a table to test on: beamtree eval {folder} FILE\n" in attempt("eval", folder).output

    model = load_model(folder)
    (prediction,) = model.predict(text if kind == "texts" else [(text[0], text[1])])
    assert prediction.label in model.task.labels
    model.save_pretrained(tmp_path / "copy")
    again = load_model(tmp_path / "copy")
    assert (again.task.labels, again.task.sentences) == (model.task.labels, model.task.sentences)


def test_results_of_several_files_are_kept_and_training_files_are_pointed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mine/train.tsv", "mine/dev.tsv"):
        write_table(Path(name), "label\ttext", ROWS)
    for name in ("test.tsv", "hard.tsv"):
        write_table(Path(name), "label\ttext", [(label, f"{text} {name}") for label, text in ROWS])
    call("train", "own", "--data=mine", "--out=run", *SMALL, "--set=training.max_epochs=1")

    def told(*words: str) -> str:
        return call("eval", "run", *words).stderr

    assert told("test.tsv", "--save") == "wrote run/eval.json: test.tsv\n"
    for _ in range(2):
        assert told("hard.tsv", "--save") == "wrote run/eval.json: test.tsv, hard.tsv\n"
    assert told("test.tsv", "--beam=2", "--save") == "wrote run/eval-beam2.json: test.tsv\n"
    shown = call("report", "run").output
    assert "| model | seed | hard.tsv | test.tsv | run |" in shown
    assert "--data mine --out run; " in shown
    assert "; beamtree eval run --data test.tsv --save; beamtree eval run --data hard.tsv --save" in shown
    call("report", "run", "--out=pages")
    page = Path("pages/results.md").read_text(encoding="utf-8")
    assert "| model | seed | hard.tsv | test.tsv | run |" in page
    assert "paper" not in page
    Path("run/learnt-rows.bin").unlink()  # older versions did not write it
    for name in ("mine/train.tsv", "mine/dev.tsv"):
        assert f"the model was trained on {name}, so these results do not test it" in told("test.tsv", name)
    saved = Path("run/eval.json")
    for spoilt in ("{", saved.read_text().replace('"weights": "', '"weights": "of others ')):
        saved.write_text(spoilt)
        assert told("hard.tsv", "--save") == "wrote run/eval.json: hard.tsv\n"
    Path("mine").rename("gone")
    assert "the model was trained" not in told("gone/train.tsv")


def test_rows_seen_in_training_are_counted_wherever_they_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [(label, f"{text} w{i}") for i, (label, text) in enumerate(ROWS)]
    write_table(Path("rows.tsv"), "label\ttext", rows)
    said = call("train", "own", "--data=rows.tsv", "--out=run", *SMALL, "--set=training.max_epochs=1").output
    assert "dev rows have the text" not in said
    Path("rows.tsv").unlink()
    new = [(label, f"new {text}") for label, text in rows]
    others = [("neg" if label == "pos" else "pos", text.upper()) for label, text in rows]
    for name, given, told in (
        ("copy.tsv", rows, "of the 20 rows of copy.tsv the model has seen 17 in training and 3 in dev"),
        ("other.tsv", [*new, *others], "of the 40 rows of other.tsv the model has seen 17 in training"),
        ("new.tsv", new, ""),
    ):
        stderr = call("eval", "run", write_table(Path(name), "label\ttext", given)).stderr
        assert (told in stderr) if told else ("has seen" not in stderr)
    write_table(Path("folder/train.tsv"), "label\ttext", rows)
    write_table(Path("folder/dev.tsv"), "label\ttext", [*new, *rows[:3]])
    more = ("--no-baselines", *SMALL, "--set=training.max_epochs=1")
    said = call("train", "own", "--data=folder", "--out=leaky", *more).output
    assert "3 of 23 dev rows have the text of a training row: results on dev will" in " ".join(said.split())
    assert (
        "of the 23 rows of dev the model has seen 3 in training: results"
        in call("eval", "leaky", "folder").stderr
    )


def test_csv_json_lines_and_tables_give_the_same_examples(table: Path, tmp_path: Path) -> None:
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("Text", "Label"), *((text, label) for label, text in ROWS)])
    with (tmp_path / "semicolons.csv").open("w", newline="") as file:
        csv.writer(file, delimiter=";").writerows(
            [("text", "label"), *((text, label) for label, text in ROWS)]
        )
    lines = [json.dumps({"label": label, "text": text}) for label, text in ROWS]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines) + "\n")
    found = []
    for path in (table, *(tmp_path / name for name in ("rows.csv", "semicolons.csv", "rows.jsonl"))):
        task = own_task(path)
        found.append([*task.read_file(path)])
        assert task.labels == ("neg", "pos")
    assert all(examples == found[0] for examples in found)
    assert found[0][3] == Example((("dull", ",", "dull", "!"),), "neg")


def test_a_file_without_dev_rows_holds_out_one_of_ten_and_dev_files_hold_out_none(tmp_path: Path) -> None:
    rows = [(str(i % 3), f"w{i}") for i in range(25)]
    path = write_table(tmp_path / "data" / "train.tsv", "label\ttext", rows)
    for place in (path, path.parent):
        task = own_task(place)
        train, dev = (list(task.read(place, split)) for split in ("train", "dev"))
        assert {int(example.sentences[0][0][1:]) // 10 for example in dev} >= {0, 1}
        assert len(train) + len(dev) == 25
        assert {example.sentences for example in train}.isdisjoint(example.sentences for example in dev)
    write_table(tmp_path / "data" / "validation.tsv", "label\ttext", rows[:4])
    assert [len(list(task.read(path.parent, split))) for split in ("train", "dev")] == [25, 4]
    other = write_table(tmp_path / "other.tsv", "label\tremark", rows)
    with pytest.raises(BeamtreeError, match="no column 'text' or 'sentence' or 'review'; the header is"):
        list(task.read_file(other))
    with pytest.raises(BeamtreeError, match="there is no split 'test'"):
        list(task.read(path, "test"))


@pytest.mark.parametrize("turns", [2, 5, 10])
def test_held_out_rows_have_all_labels_where_labels_take_turns(turns: int, tmp_path: Path) -> None:
    path = write_table(tmp_path / "t.tsv", "label\ttext", [(str(i % turns), f"w{i}") for i in range(1000)])
    dev = [example.label for example in own_task(path).read(path, "dev")]
    assert len(dev) == 100
    assert min(map(dev.count, map(str, range(turns)))) >= 100 // turns // 2


def test_a_label_of_two_rows_or_more_is_in_training_and_in_dev_and_other_splits_stay_as_they_were(
    tmp_path: Path,
) -> None:
    def splits(labels: list[str]) -> tuple[list[str], list[str]]:
        path = write_table(
            tmp_path / "t.tsv", "label\ttext", [(one, f"w{i}") for i, one in enumerate(labels)]
        )
        task = own_task(path)
        train, dev = (
            [" ".join(row.sentences[0]) for row in task.read(path, split)] for split in ("train", "dev")
        )
        assert sorted(train + dev) == sorted(f"w{i}" for i in range(len(labels)))
        return train, dev

    common = ["pos"] * 148
    _, held_out = splits([*common, "lone"])
    places = [int(word[1:]) for word in held_out]
    assert len(places) == 15
    _, dev = splits([*common, *["neg"] * 3])  # none of these rows is in a tenth place
    assert set(dev) == {*held_out, "w148"}
    both = ["neg" if i in places[:2] else "pos" for i in range(148)]  # these two are all that there are
    assert splits(both)[1] == held_out[1:]
    assert splits(["neg" if i in (0, places[0]) else "pos" for i in range(148)])[1] == held_out


def test_a_dev_file_without_some_label_is_pointed_out(tmp_path: Path) -> None:
    write_table(tmp_path / "train.tsv", "label\ttext", [*ROWS, ("mixed", "so so")])
    write_table(tmp_path / "dev.tsv", "label\ttext", [("pos", "a good film")])
    said: list[str] = []
    load_learning_data(load_recipe("own"), tmp_path, said.append)
    assert "no dev row is labelled mixed, neg: results on dev ignore them" in said


def test_training_names_its_own_option_for_rows_that_cannot_be_read(tmp_path: Path) -> None:
    path = write_table(tmp_path / "rows.tsv", "label\ttext", [*ROWS, ("", "x")])
    said = refusal("train", "own", "--data", path, "--out", tmp_path / "run").splitlines()[-1]
    assert said.endswith("not one of neg, pos (to leave such rows out: --set task.bad_rows=skip)")


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        (["a", "b", *map(str, range(10))], "most labels occur once"),
        (["0.5", "0.75", "1"], "most labels are decimal numbers"),
        (["this is the text of a row", "and this is one as well"], "most labels are sentences"),
        (["1", "2", "not applicable"], None),
    ],
)
def test_labels_that_do_not_look_like_labels_are_pointed_out(
    labels: list[str], told: str | None, tmp_path: Path
) -> None:
    count = 1 if told == "most labels occur once" else 10
    rows = [(label, f"text {i}") for i, label in enumerate(labels * count)]
    path = write_table(tmp_path / "rows.tsv", "class\ttext", rows)
    said: list[str] = []
    load_learning_data(load_recipe("own"), path, said.append)
    doubts = [one for one in said if "the right column" in one]
    remedy = "is 'class' the right column? --set task.own.label=NAME chooses another"
    assert doubts == ([] if told is None else [f"{told}: {remedy}"])


def test_labels_are_sorted_numbers_by_their_size(tmp_path: Path) -> None:
    lines = [json.dumps({"label": label, "text": "a"}) for label in (10, 9, 1, 9, 10, 1)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines) + "\n")
    assert own_task(tmp_path / "rows.jsonl").labels == ("1", "9", "10")
    (tmp_path / "rows.jsonl").write_text(
        "\n".join([*lines, "no JSON", json.dumps({"label": " 9 ", "text": "a"})])
    )
    assert own_task(tmp_path / "rows.jsonl").labels == ("1", "9", "10")
    path = write_table(tmp_path / "rows.tsv", "label\ttext", [("b", "x"), ("2", "x"), ("a", "x"), ("b", "x")])
    assert own_task(path).labels == ("2", "a", "b")


@pytest.mark.parametrize("rows", ["b nan a 1.0 inf 1", "1 nan 1.0 b inf a", "a b inf nan 1 1.0"])
def test_labels_are_sorted_whatever_the_order_of_the_rows(tmp_path: Path, rows: str) -> None:
    path = write_table(tmp_path / "rows.tsv", "label\ttext", [(label, "x") for label in rows.split() * 2])
    assert own_task(path).labels == ("1", "1.0", "a", "b", "inf", "nan")


def test_columns_and_tokens_may_be_named(tmp_path: Path) -> None:
    path = write_table(tmp_path / "rows.tsv", "Stars\tleft\tright", [("1", "A.b C", "D"), ("2", "E", "F")])
    task = own_task(path, label="Stars", text="left, right", tokenizer="blanks")
    assert next(task.read_file(path)) == Example((("A.b", "C"), ("D",)), "1")
    assert restore(list(task.labels), task.own).tokenize("A.b C") == ("A.b", "C")
    task = own_task(path, label="stars", text="left", tokenizer="characters")
    assert next(task.read_file(path)) == Example((("A", ".", "b", "C"),), "1")
    assert next(own_task(path, label="STARS", text="LEFT").read_file(path)).sentences == (("a.b", "c"),)


@pytest.mark.parametrize("label", ["label", "Sentiment", "class", "TARGET"])
@pytest.mark.parametrize("text", ["text", "Sentence", "review"])
@pytest.mark.parametrize("kind", ["tsv", "jsonl"])
def test_columns_of_usual_names_are_found_and_stand_for_one_another(
    label: str, text: str, kind: str, tmp_path: Path
) -> None:
    rows = [{"id": "7", text: "a film", label: name} for name in ("pos", "neg")]
    path = tmp_path / f"rows.{kind}"
    if kind == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    else:
        write_table(path, "\t".join(rows[0]), [tuple(row.values()) for row in rows])
    task = own_task(path)
    assert list(task.read_file(path)) == [Example((("a", "film"),), name) for name in ("pos", "neg")]
    other = write_table(tmp_path / "other.tsv", "sentence\tlabel", [("a film", "neg")])
    assert next(task.read_file(other)).label == "neg"


def test_a_label_with_control_characters_is_a_bad_row_and_never_shown(tmp_path: Path) -> None:
    path = write_table(tmp_path / "rows.tsv", "label\ttext", [("a", "x"), ("\x9b31mb", "x"), ("c", "x")])
    task = own_task(path)
    assert task.labels == ("a", "c")
    with pytest.raises(BeamtreeError, match=r"line 3: the label is '\\x9b31mb', not one of a, c"):
        list(task.read_file(path))


def test_longer_rows_are_left_out_of_training_and_not_of_a_test(tmp_path: Path) -> None:
    path = write_table(tmp_path / "rows.tsv", "label\ttext", [("a", "x y z"), ("b", "x"), ("a", "x y")])
    task = own_task(path, longest=2)
    assert len(list(task.read(path, "train"))) == 2
    assert len(list(task.read_file(path))) == 3


@pytest.mark.parametrize(
    ("header", "options", "told"),
    [
        (
            "pos\ta lovely film",
            {},
            r"line 1: there is no column 'label' \(or sentiment, class, target\); the columns are pos, a",
        ),
        ("lable\ttext", {}, r"are lable, text; did you mean 'lable'\?; --set task.own.label=NAME"),
        ("label\tremark", {}, "no column 'text' .*nor 'text1' and 'text2' for.*--set task.own.text=NAME"),
        ("label\ttext", {"text": "review"}, "no column 'review'; the columns are label, text;"),
        ("label\ttext", {"text": "label"}, "one or two columns other than the label, got 'label'"),
        ("label\ttext", {"label": "text", "text": "label"}, "1,001 different values in 1,001 rows"),
        ("text\tlabel", {}, "1,001 different values"),
        (
            "label,text",
            {},
            r"the columns are label,text; columns are separated by tabs, in a .csv by commas or",
        ),
        ("l\0a\0b\0e\0l\0\t\0", {}, "save it as UTF-8 text"),  # UTF-16, as spreadsheets write it
    ],
)
def test_a_table_that_is_not_understood_is_refused_with_what_to_do(
    header: str, options: dict[str, str], told: str, tmp_path: Path
) -> None:
    rows = [("pos", f"text{i}") for i in range(MOST_LABELS + 1)]
    path = write_table(tmp_path / "rows.tsv", header, rows)
    with pytest.raises(BeamtreeError, match=told):
        own_task(path, **options)


@pytest.mark.parametrize(
    ("wrong", "row"),
    [
        ('pos,"a film', None),
        ('pos,"a "fine" film"', None),
        ('pos,"a film" or two', None),
        ('pos,a 12" film', 'a 12 " film'),
        ('pos,"a ""fine"" film"', 'a " fine " film'),
        ('pos,"a\nfilm"', "a film"),
    ],
)
@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_a_quotation_mark_in_the_wrong_place_is_a_bad_row_and_swallows_no_other(
    wrong: str, row: str | None, place: str, tmp_path: Path
) -> None:
    lines = [f"{label},{text}" if i % 3 else f'{label},"{text}"' for i, (label, text) in enumerate(PLAIN)]
    index = {"first": 0, "middle": 10, "last": len(lines)}[place]
    lines.insert(index, wrong)
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(["label,text", *lines]) + "\n")
    skipped = BadRows(skip=True)
    found = [" ".join(example.sentences[0]) for example in own_task(path).read_file(path, skipped)]
    wanted = [text for _, text in PLAIN]
    if row is None:
        assert found == wanted
        assert list(skipped.found[path]) == [index + 2]
        with pytest.raises(BeamtreeError, match=rf"line {index + 2}: a quotation mark is not closed"):
            list(own_task(path).read_file(path))
    else:
        assert found == [*wanted[:index], row, *wanted[index:]]
        assert not skipped.found


def test_quotation_marks_of_a_tsv_are_plain_text(tmp_path: Path) -> None:
    path = write_table(tmp_path / "rows.tsv", "label\ttext", [("a", '"x'), ("b", "y"), ("b", 'z"')])
    assert [row.sentences[0] for row in own_task(path).read_file(path)] == [('"', "x"), ("y",), ("z", '"')]


def test_a_table_full_of_misplaced_quotation_marks_is_refused_in_good_time(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("label,text\na,b\nb,b\n" + 'x","\n' * 100_000)
    with pytest.raises(
        BeamtreeError, match="too many rows have quotation marks in wrong places: check the file"
    ):
        list(own_task(path).read_file(path, BadRows(skip=True)))


def test_missing_files_and_too_few_labels_are_errors(tmp_path: Path) -> None:
    with pytest.raises(BeamtreeError, match=r"there is no file or folder .*its first line is `label⇥text`"):
        own_task(tmp_path / "nothing")
    with pytest.raises(BeamtreeError, match=r"has no train.tsv or train.csv or train.jsonl"):
        own_task(tmp_path)
    path = write_table(tmp_path / "rows.tsv", "label\ttext", [("a", "x"), ("a", "y")])
    with pytest.raises(BeamtreeError, match="at least two labels are needed, found a"):
        own_task(path)
    path = write_table(tmp_path / "rows.tsv", "label\ttext", [("a", "x"), ("b", "y\tz")])
    with pytest.raises(BeamtreeError, match="found a; line 3 cannot be read: there are 3 columns"):
        own_task(path)
    for line, told in (("[1]", "every line must be a JSON object"), ("{", "is not JSON")):
        for name in ("rows.jsonl", "rows.json"):
            (tmp_path / name).write_text(line + "\n")
            with pytest.raises(BeamtreeError, match=f"line 1:? {told}"):
                own_task(tmp_path / name)


def test_names_of_columns_that_no_csv_has_are_refused_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_bytes(b"label,text\rpos,a film\rneg,dull\r")
    with pytest.raises(
        BeamtreeError, match=r"line 1: the column names .* a line feed at the end of every line"
    ):
        own_task(tmp_path / "rows.csv")


def test_too_few_rows_to_hold_any_out_are_an_error_that_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    path = write_table(folder / "train.tsv", "label\ttext", [("a", "x"), ("b", "y")])
    for given in (path, folder):
        told = attempt("train", "own", "--data", given, "--out", tmp_path / "run").output
        assert (
            "one row in ten is held out for dev, so at least ten rows of at most 10,000 tokens are needed"
            in told
        )
    write_table(folder / "dev.tsv", "label\ttext", [])
    assert "has no examples\n" in attempt("train", "own", "--data", folder, "--out", tmp_path / "run").output


def test_a_label_that_training_does_not_have_and_an_empty_one_are_bad_rows(table: Path) -> None:
    task = own_task(table)
    write_table(table.parent / "test.tsv", "label\ttext", [("pos", "x"), ("maybe", "x"), ("", "x")])
    skipped = BadRows(skip=True)
    assert len(list(task.read_file(table.parent / "test.tsv", skipped))) == 1
    assert skipped.found[table.parent / "test.tsv"][3].startswith("the label is 'maybe', not one of neg, pos")
    with pytest.raises(BeamtreeError, match="line 4: the label is empty"):
        list(find_task("own").read_file(write_table(table, "label\ttext", [*ROWS[:2], ("", "x")])))


@pytest.mark.parametrize(("tokenizer", "told"), [("words", True), ("characters", False)])
def test_characters_are_suggested_for_texts_without_blanks(
    tokenizer: str, told: bool, tmp_path: Path
) -> None:
    texts = {"pos": "这部电影真好看", "neg": "剧情太无聊了"}
    rows = [(label, f"{text}{i}") for i in range(20) for label, text in texts.items()]
    sentences: list[str] = []
    recipe = load_recipe("own", [f"task.own.tokenizer={tokenizer}"])
    load_learning_data(recipe, write_table(tmp_path / "films.tsv", "label\ttext", rows), sentences.append)
    assert any("--set task.own.tokenizer=characters" in sentence for sentence in sentences) is told


@pytest.mark.parametrize(("count", "end"), [(2, "10, 11"), (20, "28, 29"), (21, "28, 29, …")])
def test_of_many_labels_the_first_twenty_are_named(count: int, end: str, tmp_path: Path) -> None:
    rows = [(str(10 + i), "x") for i in range(count)]
    task = own_task(write_table(tmp_path / "train.tsv", "label\ttext", rows))
    path = write_table(tmp_path / "test.tsv", "label\ttext", [("9", "x")])
    skipped = BadRows(skip=True)
    assert not list(task.read_file(path, skipped))
    assert skipped.found[path][2].endswith(f" {end}")


@pytest.mark.parametrize(
    ("labels", "saved"),
    [
        (["a", "b"], None),
        (["a", "a"], {"label": "label", "texts": ["text"], "tokenizer": "words"}),
        (["a", "\x1b[31mb"], {"label": "label", "texts": ["text"], "tokenizer": "words"}),
        (["a", "\x9b31mb"], {"label": "label", "texts": ["text"], "tokenizer": "words"}),
        (["a", 1], {"label": "label", "texts": ["text"], "tokenizer": "words"}),
        (["a", "b"], {"label": "label", "texts": ["text"], "tokenizer": "magic"}),
        (["a", "b"], {"label": "label", "texts": [], "tokenizer": "words"}),
    ],
)
def test_a_config_without_a_valid_format_is_refused(labels: list, saved: object) -> None:
    with pytest.raises(BeamtreeError, match="own must have label, texts"):
        restore(labels, saved)


def test_a_label_too_long_to_show_is_a_bad_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text(f"label\ttext\na\tx\nb\tx\n{'c' * 1001}\tx\n{'d' * 1000}\tx\n")
    task = own_task(path)
    assert task.labels == ("a", "b", "d" * 1000)
    with pytest.raises(BeamtreeError, match="line 4: the label is 'ccc"):
        list(task.read_file(path))
