"""`remarks.toml`: notes below tables, and trees that no model made."""

from pathlib import Path

import pytest
from command_line import call
from reported import make_run, table_of

from beamtree.errors import BeamtreeError
from beamtree.paper.remarks import Remarks, read_remarks
from beamtree.paper.report import build_report

REMARKS = """
notes = [{task = "listops", said = "All on one GPU, `a & b`."}, {said = "Much is done."}]
trees = [
  {task = "listops", shape = "left-branching", f1 = {near-iid = 9.3, "200-300" = 0}},
  {task = "logic", shape = "balanced", f1 = {test7 = 18}},
]
"""


def folder_with(text: str, folder: Path) -> Path:
    (folder / "remarks.toml").write_text(text, encoding="utf-8")
    return folder


def test_notes_stand_below_the_table_they_speak_of_on_every_page(tmp_path: Path) -> None:
    make_run(tmp_path / "a", accuracy={"near-iid": 0.90})
    make_run(tmp_path / "b", "logic", accuracy={"test10": 0.90})
    folder_with(REMARKS, tmp_path)
    assert table_of([tmp_path], "listops").remarks[0] == "All on one GPU, `a & b`."
    assert not any("GPU" in sentence for sentence in table_of([tmp_path], "logic").remarks)
    assert table_of([tmp_path], "summary").remarks[0] == "Much is done."
    call("report", tmp_path, "--out", tmp_path / "out")
    for name, note in (
        ("results.md", "- Much is done."),
        ("results-in-full.md", "- All on one GPU, `a & b`."),
        ("results.html", "<li>All on one GPU, <code>a &amp; b</code>.</li>"),
    ):
        assert note in (tmp_path / "out" / name).read_text(encoding="utf-8")


def test_trees_of_no_model_stand_below_those_of_models_and_only_there(tmp_path: Path) -> None:
    make_run(tmp_path / "a", accuracy={"near-iid": 0.90})
    table = table_of([folder_with(REMARKS, tmp_path)], "listops-trees")
    assert [row[0] for row in table.texts] == ["EBT-GRC", "left-branching, no model"]
    assert table.texts[1][1:5] == ["9.30", "0.00", "–", "–"]
    assert "logic-trees" not in [table.name for table in build_report([tmp_path]).tables]


def test_lists_of_earlier_versions_are_left_out_with_a_note(tmp_path: Path) -> None:
    make_run(tmp_path / "a", accuracy={"near-iid": 0.90})
    report = build_report([folder_with("targets = []\n" + REMARKS, tmp_path)])
    assert report.notes == [f"{tmp_path / 'remarks.toml'}: targets are no longer read; use notes instead."]
    assert report.tables[0].remarks[0] == "Much is done."


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", r"remarks\.toml is not valid TOML"),
        ("note = []", r"there is no list 'note'; did you mean 'notes'\?"),
        ("notes = 3", r"notes must be a list of tables, got 3"),
        ("notes = [3]", r"remarks\.toml, entry 1 of notes must be a table, got 3"),
        ('trees = [{task = "listops", shape = "flat"}]', r"entry 1 of trees: f1 is missing"),
        ('notes = [{said = "b", c = 1}]', r"there is no setting 'c'"),
        ('notes = [{said = "b", task = "nli"}]', r"there is no table 'nli'; did you mean 'snli'\?"),
        ('trees = [{task = "logicc", shape = "flat", f1 = {}}]', r"there is no table 'logicc'"),
        ('trees = [{task = "logic", shape = "flat", f1 = {test7 = -1}}]', r"must be a percentage, got -1"),
        ('trees = [{task = "logic", shape = "flat", f1 = {test7 = 101}}]', r"a percentage, got 101"),
        ('trees = [{task = "logic", shape = "flat", f1 = {test7 = "a"}}]', r"a percentage, got 'a'"),
        ('trees = [{task = "logic", shape = "flat", f1 = {tset7 = 1}}]', r"did you mean 'test7'\?"),
    ],
)
def test_remarks_that_cannot_be_read_are_refused_by_file_and_entry(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(BeamtreeError, match=message):
        read_remarks([folder_with(text, tmp_path)])


def test_without_remarks_there_are_none() -> None:
    assert read_remarks([Path("nowhere")]) == Remarks()
