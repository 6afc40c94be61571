"""`remarks.toml`: what a report says that run folders cannot: targets, costs, runs cut off, options."""

from pathlib import Path

import pytest
from command_line import call
from reported import cell_of, line_of, make_run, seeds, table_of

from beamtree.errors import BeamtreeError
from beamtree.paper.remarks import read_remarks
from beamtree.paper.report import build_report

REMARKS = """
targets = [{task = "listops", row = "ebt-grc", accuracy = {near-iid = 95, "200-300" = 95.01, lra-test = 78}}]
costs = [
  {task = "listops", row = "om", milliseconds = 50, steps = 600, epochs = 30, measured = "one GPU"},
  {task = "qqp", row = "gau", milliseconds = 20.5, steps = 1000, epochs = 12, measured = "one GPU"},
]
cut_off = [
  {task = "listops", row = "gold-grc", seeds = "0", epochs = "12", why = "time was up"},
  {task = "logic", row = "om", seeds = "0, 1", epochs = "0–1", why = "time was up"},
]
notes = [{task = "listops", said = "All on one GPU, `a & b`."}, {said = "Much is done."}]
trees = [
  {task = "listops", shape = "left-branching", f1 = {near-iid = 9.3, "200-300" = 0}},
  {task = "logic", shape = "balanced", f1 = {test7 = 18}},
]
options = [
  {name = "training.averaging", found = "by looking at more arguments than training has"},
  {name = "beam", found = "by looking at a test split"},
  {name = "merge_equal_trees", found = "by thought"},
]
"""


def folder_with(text: str, folder: Path) -> Path:
    (folder / "remarks.toml").write_text(text, encoding="utf-8")
    return folder


def test_targets_are_met_only_where_the_figure_that_is_shown_reaches_them(tmp_path: Path) -> None:
    seeds(tmp_path, "listops", [0.90, 0.98, 0.95], "near-iid")
    table = table_of([folder_with(REMARKS, tmp_path)], "targets")
    rows = [[cell.text for cell in line.cells[1:5]] for line in table.lines]
    assert rows[0] == ["near-IID", "met", "95", "95.00 ±3.30"]
    assert rows[1] == ["200–300", "not measured", "95.01", "–"]
    assert table.caption.startswith("1 of 3 met with the paper's settings.")
    seeds(tmp_path, "listops", [0.90, 0.98, 0.95], "200-300")  # evaluated anew on another split
    table = table_of([tmp_path], "targets")
    assert [cell.text for cell in table.lines[1].cells[2:4]] == ["short by 0.01", "95.01"]


def test_an_option_meets_no_target_and_is_never_the_best(tmp_path: Path) -> None:
    make_run(tmp_path / "a", accuracy={"near-iid": 0.90})
    make_run(tmp_path / "b", "listops-om", accuracy={"near-iid": 0.80})
    make_run(tmp_path / "c", "listops", ["training.averaging=0.999"], accuracy={"near-iid": 0.99})
    folder_with(REMARKS, tmp_path)
    assert cell_of(table_of([tmp_path], "targets"), "ListOps: EBT-GRC", "ours").text == "90.00"
    table = table_of([tmp_path], "listops")
    assert cell_of(table, "EBT-GRC", "near-IID").best
    option = line_of(table, "EBT-GRC, averaging 0.999")
    assert (option.cells[1].text, option.cells[2].text, option.cells[2].best) == (
        "ours, option",
        "99.00",
        False,
    )
    assert "Option averaging: by looking at more arguments than training has." in table.remarks
    assert not any("beam" in sentence for sentence in table.remarks)
    assert table.remarks[0] == "All on one GPU, `a & b`."
    assert table_of([tmp_path], "summary").remarks == ["Much is done."]
    assert table.remarks[0] not in table_of([tmp_path], "qqp").remarks


def test_an_option_that_was_tested_elsewhere_stands_in_the_table_of_other_splits(tmp_path: Path) -> None:
    make_run(tmp_path / "a", accuracy={"near-iid": 0.90})
    make_run(tmp_path / "c", "listops", ["training.averaging=0.999"], accuracy={"mine.tsv": 0.99})
    table = table_of([tmp_path], "listops")
    assert table.remarks[-1] == "Not evaluated on these splits: EBT-GRC, averaging 0.999."
    assert "EBT-GRC, averaging 0.999" not in [line.cells[0].text for line in table.lines]
    table = table_of([tmp_path], "listops-others")
    assert [[cell.text for cell in line.cells[:2]] for line in table.lines] == [
        ["EBT-GRC, averaging 0.999", "99.00"]
    ]


def test_options_of_the_test_say_how_they_were_found_too(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", accuracy={"near-iid": 0.90})
    make_run(run, accuracy={"near-iid": 0.91}, beam=10)
    text = (
        (run / "eval-beam10.json")
        .read_text()
        .replace('"beam": 10', '"beam": null, "merge_equal_trees": true')
    )
    (run / "eval-merged.json").write_text(text)
    remarks = table_of([folder_with(REMARKS, tmp_path)], "listops").remarks
    assert [sentence for sentence in remarks if sentence.startswith("Option")] == [
        "Option beam: by looking at a test split.",
        "Option merge_equal_trees: by thought.",
    ]


def test_an_empty_row_says_what_a_run_would_cost_and_the_page_too(tmp_path: Path) -> None:
    make_run(tmp_path / "a", accuracy={"near-iid": 0.90})
    folder_with(REMARKS, tmp_path)
    make_run(tmp_path / "om", "listops-om")  # not evaluated: still empty
    said = "Not run because of the time it would take (see 'Rows without figures'): OM."
    remarks = table_of([tmp_path], "listops").remarks
    assert said in remarks
    assert any(one.startswith("Not evaluated: GoldTreeGRC, Transformer") for one in remarks)
    assert not any("EBT-GRC," in sentence for sentence in remarks)  # it has a run
    om = ["ListOps: OM", "one GPU", "50", "600", "30", "15"]
    gau = ["QQP: GAU", "one GPU", "20.5", "1,000", "12", "4"]
    assert table_of([tmp_path], "costs").texts == [om, gau]
    make_run(tmp_path / "om", "listops-om", accuracy={"near-iid": 0.90})
    assert said not in table_of([tmp_path], "listops").remarks
    assert table_of([tmp_path], "costs").texts == [gau]
    # A task without any run has its table for the sake of what is said of it.
    assert table_of([tmp_path], "qqp").remarks[0].endswith("(see 'Rows without figures'): GAU.")
    assert "sst5" not in [table.name for table in build_report([tmp_path]).tables]
    call("report", tmp_path, "--out", tmp_path / "out")
    for name, note in (("results-in-full.md", "`a & b`"), ("results.html", "<code>a &amp; b</code>")):
        text = (tmp_path / "out" / name).read_text(encoding="utf-8")
        assert "20.5" in text
        assert f"- All on one GPU, {note}." in text or f"<li>All on one GPU, {note}.</li>" in text


def test_trees_of_no_model_stand_below_those_of_models_and_only_there(tmp_path: Path) -> None:
    make_run(tmp_path / "a", accuracy={"near-iid": 0.90})
    table = table_of([folder_with(REMARKS, tmp_path)], "listops-trees")
    assert [line.cells[0].text for line in table.lines] == ["EBT-GRC", "left-branching, no model"]
    assert [cell.text for cell in table.lines[1].cells[1:5]] == ["9.30", "0.00", "–", "–"]
    assert "logic-trees" not in [table.name for table in build_report([tmp_path]).tables]


def test_runs_that_were_cut_off_are_listed_and_count_nowhere(tmp_path: Path) -> None:
    make_run(tmp_path / "a", accuracy={"near-iid": 0.90})
    folder_with(REMARKS, tmp_path)
    lines = table_of([tmp_path], "cut-off").texts
    assert lines == [
        ["listops: GoldTreeGRC", "time was up", "0", "12"],
        ["logic: OM", "time was up", "0, 1", "0–1"],
    ]
    assert cell_of(table_of([tmp_path], "listops"), "GoldTreeGRC", "near-IID").text == "–"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", r"remarks\.toml is not valid TOML"),
        ("cost = []", r"there is no list 'cost'; did you mean 'costs'\?"),
        ("costs = 3", r"costs must be a list of tables, got 3"),
        ("costs = [3]", r"remarks\.toml, entry 1 of costs must be a table, got 3"),
        ('targets = [{task = "listops", row = "ebt-grc"}]', r"entry 1 of targets: accuracy is missing"),
        ('cut_off = [{task = "listops", row = "om", seeds = "0", epochs = "1"}]', r"why is missing"),
        (
            'costs = [{task = "logic", row = "om", milliseconds = 1, steps = 0, epochs = 1, measured = "a"}]',
            r"entry 1 of costs: steps must be at least 1, got 0",
        ),
        ('options = [{name = "a", found = "b", c = 1}]', r"there is no setting 'c'"),
        (
            'targets = [{task = "nli", row = "om", accuracy = {}}]',
            r"there is no table 'nli'; did you mean 'snli'\?",
        ),
        (
            'targets = [{task = "logic", row = "omm", accuracy = {}}]',
            r"there is no row 'omm'; did you mean 'om'\?",
        ),
        ('trees = [{task = "logicc", shape = "flat", f1 = {}}]', r"there is no table 'logicc'"),
        ('trees = [{task = "logic", shape = "flat", f1 = {test7 = -1}}]', r"must be a percentage, got -1"),
        ('targets = [{task = "logic", row = "om", accuracy = {tset7 = 1}}]', r"did you mean 'test7'\?"),
        (
            'targets = [{task = "logic", row = "om", accuracy = {test7 = 101}}]',
            r"must be a percentage, got 101",
        ),
        (
            'targets = [{task = "logic", row = "om", accuracy = {test7 = "a"}}]',
            r"must be a percentage, got 'a'",
        ),
    ],
)
def test_remarks_that_cannot_be_read_are_refused_by_file_and_entry(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(BeamtreeError, match=message):
        read_remarks([folder_with(text, tmp_path)])


def test_without_remarks_there_are_none() -> None:
    assert not any(vars(read_remarks([Path("nowhere")])).values())
