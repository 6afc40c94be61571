"""Run folders: how a run ended, what it learnt from, and what is refused or left out with a note."""

import re
from pathlib import Path
from typing import Any

import pytest
from reported import cell_of, make_run, on_device, table_of

from beamtree.errors import BeamtreeError
from beamtree.paper.report import build_report
from beamtree.paper.runs import DIVERGED, EARLY, LIMIT, UNFINISHED, TrainedRun, data_note, read_run
from beamtree.training.recipe import load_recipe


@pytest.mark.parametrize(
    ("epochs", "best", "changes", "failed", "end"),
    [
        (8, 3, [], False, EARLY),  # patience 4: the fifth epoch without a better one ends it
        (7, 3, [], False, UNFINISHED),
        (7, 3, [], True, DIVERGED),
        (7, 3, ["training.max_epochs=7"], False, LIMIT),
        (0, 0, [], False, UNFINISHED),
    ],
)
def test_how_a_run_ended_is_told_from_its_records(
    tmp_path: Path, epochs: int, best: int, changes: list[str], failed: bool, end: str
) -> None:
    make_run(tmp_path, "listops", changes, epochs=epochs, best=best)
    if failed:
        (tmp_path / "failure.json").write_text("{}")
    run = read_run(tmp_path)
    assert (run.end, run.epochs, run.minutes) == (end, epochs, 1.5 * epochs)
    assert (run.best and run.best["epoch"]) == (best or None)


def damaged(folder: Path, file: str, change: Any) -> Path:
    make_run(folder, accuracy={"near-iid": 0.9})
    path = folder / file
    path.write_text(change(path.read_text()))
    return folder


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("recipe.toml", lambda text: text + "[", "recipe.toml is not valid TOML"),
        ("recipe.toml", lambda text: text.replace("clip", "clop"), "no setting 'training.clop'"),
        ("metrics.jsonl", lambda text: text[:-9], "metrics.jsonl, line 8, is not JSON"),
        ("metrics.jsonl", lambda text: "7\n", "metrics.jsonl, line 1: epoch must be int, got None"),
        (
            "metrics.jsonl",
            lambda text: text.replace("90.0", '"a"', 1),
            "line 1: seconds must be float, got 'a'",
        ),
        (
            "metrics.jsonl",
            lambda text: text.partition("\n")[2],
            "line 1: this is epoch 2, not 1",
        ),
        ("eval.json", lambda text: text[:-1], "eval.json is not JSON"),
        ("eval.json", lambda text: "[]", "eval.json is not what `beamtree eval --json` writes"),
        ("eval.json", lambda text: text.replace("accuracy_95", "interval"), "KeyError.'accuracy_95'"),
        ("eval.json", lambda text: text.replace("0.9,", "1.1,", 1), "near-iid is not between 0 and 1"),
        ("eval.json", lambda text: text.replace("2000", "-1"), "split 'near-iid' of -1 examples"),
        ("eval.json", lambda text: text.replace("2000", "Infinity"), "cannot convert float infinity"),
        ("eval.json", lambda text: text.replace('"near-iid"', "5"), "split 5 of 2000 examples"),
        ("eval.json", lambda text: text.replace('"beam": null', '"beam": [1]'), "writes: .*beam"),
        (
            "eval.json",
            lambda text: text.replace("ebt", "bt"),
            "listops with bt-grc, the run is of listops with ebt",
        ),
    ],
)
def test_a_damaged_run_is_refused_or_left_out_with_a_note(
    tmp_path: Path, file: str, change: Any, message: str
) -> None:
    damaged(tmp_path / "bad", file, change)
    make_run(tmp_path / "good", "listops-om", accuracy={"near-iid": 0.9})
    with pytest.raises(BeamtreeError, match=message):
        build_report([tmp_path])
    report = build_report([tmp_path], skip=True)
    assert len(report.notes) == 1
    assert re.search(message, report.notes[0])
    assert [row[2] for row in report.tables[-1].texts] == [str(tmp_path / "good")]


def test_whole_numbers_are_numbers_and_facts_on_data_must_say_how_much(tmp_path: Path) -> None:
    run = damaged(tmp_path / "run", "metrics.jsonl", lambda text: text.replace("90.0", "90"))
    assert read_run(run).minutes == 12
    (run / "data.json").write_text('{"train": {"examples": "many"}, "words": null}')
    with pytest.raises(BeamtreeError, match=r"data\.json does not say which data the run learnt from"):
        read_run(run)


def test_what_is_not_a_run_folder_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(
        BeamtreeError, match=r"no-such is not a run folder: it does not exist \(--skip leaves"
    ):
        build_report([tmp_path / "no-such"])
    with pytest.raises(BeamtreeError, match=r"there is no recipe\.toml in it or its folders"):
        build_report([tmp_path])
    run = make_run(tmp_path / "run")
    (run / "metrics.jsonl").unlink()
    with pytest.raises(BeamtreeError, match=r"cannot read .*metrics\.jsonl: No such file"):
        build_report([run])


def test_two_runs_of_one_recipe_and_seed_do_not_both_count(tmp_path: Path) -> None:
    make_run(tmp_path / "a", accuracy={"near-iid": 0.9})
    make_run(tmp_path / "b", accuracy={"near-iid": 0.8})
    with pytest.raises(BeamtreeError, match=r"a and .*b are runs of the same recipe and seed"):
        build_report([tmp_path])
    report = build_report([tmp_path], skip=True)
    assert cell_of(report.tables[1], "EBT-GRC", "near-IID").text == "90.00"
    assert len(report.tables[-1].lines) == 2
    assert report.notes[0].startswith(f"Not counted: {tmp_path / 'b'}, of the same recipe and seed as")
    assert len(table_of([tmp_path / "a", tmp_path / "a"], "runs").lines) == 1


def test_two_evaluations_of_one_split_are_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path, accuracy={"near-iid": 0.9})
    (run / "eval-again.json").write_text((run / "eval.json").read_text())
    with pytest.raises(BeamtreeError, match="both measured near-iid: keep one of them"):
        read_run(run)


def test_one_split_may_be_measured_once_on_each_device_and_no_oftener(tmp_path: Path) -> None:
    run = make_run(tmp_path, accuracy={"near-iid": 0.9})
    on_device(run, "cpu", "eval-again.json", 0.8)
    on_device(run, "cuda", "eval.json", 0.9)
    assert [one.device for one in read_run(run).evaluations] == ["cuda", "cpu"]
    on_device(run, "cpu", "eval.json", 0.9)
    with pytest.raises(BeamtreeError, match="both measured near-iid: keep one of them"):
        read_run(run)


def note(words: dict[str, Any] | None, examples: int = 8_544 * 40) -> str:
    facts = {"train": {"split": "train", "examples": examples}, "words": words}
    return data_note([TrainedRun(Path("run"), load_recipe("sst5"), [], [], data=facts)])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (None, "without word vectors (the paper: GloVe 840B, 300 wide)."),
        ({"vectors": None, "width": None}, "without word vectors (the paper: GloVe 840B, 300 wide)."),
        ({"vectors": "glove.6B.300d", "width": 300}, "other vectors: glove.6B.300d, 300 wide (the paper: "),
        ({"vectors": "glove.840B.300d", "width": 300}, "the paper's vectors: glove.840B.300d, 300 wide."),
    ],
)
def test_the_note_tells_which_vectors_were_used(words: dict[str, Any] | None, said: str) -> None:
    assert said in note(words)


def test_vectors_in_two_files_are_told_in_one_sentence() -> None:
    runs = [
        TrainedRun(
            Path("run"), load_recipe("sst5"), [], [], data={"train": {"examples": 400_000}, "words": words}
        )
        for words in [{"vectors": name, "width": 100} for name in ("one", "two", "one")]
    ]
    assert data_note(runs) == (
        "Ours learn from 400,000 training examples, with other vectors: one or two, 100 wide "
        "(the paper: GloVe 840B, 300 wide)."
    )


def test_a_part_of_the_corpus_is_called_a_subset() -> None:
    assert "Ours learn from a subset: 1,000 of 318,582 training examples" in note(None, 1000)
    assert "subset" not in note(None)


@pytest.mark.parametrize(
    ("task", "published"), [("snli", "549,367"), ("mnli", "382,702"), ("qqp", "384,290")]
)
def test_a_subset_is_one_of_the_papers_training_examples(task: str, published: str) -> None:
    facts = {"train": {"split": "train", "examples": 1000}, "words": None}
    told = data_note([TrainedRun(Path("run"), load_recipe(task), [], [], data=facts)])
    assert f"a subset: 1,000 of {published} training examples" in told


def test_formal_tasks_and_runs_without_facts_need_no_note() -> None:
    assert data_note([TrainedRun(Path("run"), load_recipe("sst5"), [], [])]) == ""
    assert data_note([TrainedRun(Path("run"), load_recipe("listops"), [], [])]) == ""


def test_rebuilt_stress_tests_are_told() -> None:
    facts = {"train": {"split": "train", "examples": 18_000}, "words": None}
    runs = [TrainedRun(Path("run"), load_recipe("mnli"), [], [], data=facts)]
    assert "stress tests are not at hand, they are rebuilt from the dev sets" in data_note(runs)
