"""What a report refuses, or leaves out with a note: damaged, doubled and foreign folders."""

import re
from pathlib import Path
from typing import Any

import pytest
from reported import cell_of, make_run, table_of

from beamtree.errors import BeamtreeError
from beamtree.paper.report.build import build_report
from beamtree.paper.report.runs import read_run


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
            "line 1: this is epoch 2; others are missing",
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
            "listops with bt-grc, but the run of listops with ebt",
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
    assert [line.cells[2].text for line in report.tables[-1].lines] == [str(tmp_path / "good")]


def test_whole_numbers_are_numbers_and_facts_on_data_must_say_how_much(tmp_path: Path) -> None:
    run = damaged(tmp_path / "run", "metrics.jsonl", lambda text: text.replace("90.0", "90"))
    assert read_run(run).minutes == 12
    (run / "data.json").write_text('{"train": {"examples": "many"}, "words": null}')
    with pytest.raises(BeamtreeError, match=r"data\.json does not say what was learnt from"):
        read_run(run)


def test_what_is_no_run_folder_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(BeamtreeError, match=r"no-such is no run folder: it is not there \(--skip leaves"):
        build_report([tmp_path / "no-such"])
    with pytest.raises(BeamtreeError, match=r"has no recipe\.toml, nor has a folder in it"):
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
