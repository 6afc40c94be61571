"""Tables of a report: ours from run folders beside the paper's, trees, run by run, models in the package."""

import hashlib
import json
from pathlib import Path
from statistics import median, pstdev

import pytest
from reported import cell_of, line_of, make_run, on_device, seeds, table_of

from beamtree.paper import details
from beamtree.paper.published import LABELS, TABLES, group
from beamtree.paper.report import build_report
from beamtree.paper.runs import EARLY, UNFINISHED


def test_listops_is_the_median_and_logic_the_mean_with_population_deviation(tmp_path: Path) -> None:
    shares = [0.90, 0.98, 0.95]
    runs = seeds(tmp_path, "listops", shares, "200-300") + seeds(tmp_path, "logic", shares, "test10")
    spread = pstdev(100 * share for share in shares)
    found = cell_of(table_of(runs, "listops"), "EBT-GRC", "200–300")
    assert found.text == f"{100 * median(shares):.2f} ±{spread:.2f}"
    assert (
        cell_of(table_of(runs, "logic"), "EBT-GRC", "10 ops").text
        == f"{100 * sum(shares) / 3:.2f} ±{spread:.2f}"
    )
    assert cell_of(table_of(runs, "listops"), "EBT-GRC", "seeds").text == "3"
    assert "run 2, seed 1: 98.00 of 2,000" in found.hint


def test_cells_without_a_run_show_a_dash_beside_the_published_figure(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", accuracy={"near-iid": 0.999})
    table = table_of([run], "listops")
    names = [row[0] for row in table.texts if row[0]]
    assert names == [LABELS[name] for name in LABELS if name in TABLES["listops"].rows]
    assert {cell.text for cell in line_of(table, "OM")[2:]} == {"–"}
    assert cell_of(table, "EBT-GRC", "near-IID").text == "99.90"  # one seed has no spread
    assert cell_of(table, "EBT-GRC", "LRA").text == "–"
    place = table.rows.index(line_of(table, "OM"))
    assert table.texts[place + 1][:3] == ["", "paper", "99.9 ±.03"]


def test_the_best_of_ours_is_marked_ties_too_but_never_the_gold_trees(tmp_path: Path) -> None:
    shares = {"listops": 0.97, "listops-om": 0.97, "listops-crvnn": 0.96, "listops-gold-grc": 0.99}
    runs = [make_run(tmp_path / name, name, accuracy={"near-iid": share}) for name, share in shares.items()]
    table = table_of(runs, "listops")
    marked = {row[0].text for row in table.rows if row[0].text and row[2].best}
    assert marked == {"EBT-GRC", "OM"}
    assert group("gold-grc") is None
    alone = table_of(runs[:1], "listops")
    assert not cell_of(alone, "EBT-GRC", "near-IID").best  # nothing to be better than


def test_runs_and_their_ends_are_counted_beside_the_figures(tmp_path: Path) -> None:
    make_run(tmp_path / "a", epochs=8, accuracy={"near-iid": 0.9})
    make_run(tmp_path / "b", "listops", ["training.seed=1"], epochs=5)
    table = table_of([tmp_path], "listops")
    texts = {header: cell_of(table, "EBT-GRC", header).text for header in table.headers[2:]}
    assert (texts["seeds"], texts["epochs"], texts["early stop"], texts["runs"]) == (
        "2",
        "5–8",
        "1 of 2",
        "1, 2",
    )
    assert texts["near-IID"] == "90.00 (1 of 2 runs)"
    runs = table_of([tmp_path], "runs")
    assert [row[6] for row in runs.texts] == [EARLY, UNFINISHED]
    assert line_of(table, "EBT-GRC")[1].text == "ours"
    alone = table_of([tmp_path / "b"], "listops")
    assert line_of(alone, "EBT-GRC")[1].text == "ours, unfinished"


def test_a_model_that_the_paper_does_not_have_is_a_row_that_says_so(tmp_path: Path) -> None:
    name = "BiLSTM, not in the paper"
    assert name not in [line[0] for line in table_of([], "listops", wanted=["listops"]).texts]
    make_run(tmp_path / "a", "listops-bilstm", accuracy={"near-iid": 0.5})
    lines = table_of([tmp_path], "listops").texts
    place = next(i for i, line in enumerate(lines) if line[0] == name)
    assert lines[place][1:3] == ["ours", "50.00"]
    assert lines[place + 1][0] == "Transformer"


def test_in_short_a_row_shows_its_worst_seed_and_the_papers_figure(tmp_path: Path) -> None:
    for seed, accuracy in enumerate((0.9, 0.7, 0.8)):
        make_run(tmp_path / str(seed), "listops", [f"training.seed={seed}"], accuracy={"near-iid": accuracy})
    make_run(tmp_path / "beyond", "listops-beyond", accuracy={"near-iid": 0.99})
    make_run(tmp_path / "om", "listops-om", accuracy={"near-iid": 0.6})
    report = build_report([tmp_path])
    (table,) = [table for table in report.short if table.name == "listops-short"]
    rows = {name: rest for name, *rest in table.texts}
    assert rows["EBT-GRC"] == ["80.00 / 70.00 (99.9)", *["–"] * 6, "3"]
    assert rows["OM"][0] == "60.00 (99.9)"
    assert len(rows) == 2, "neither rows without figures nor other settings"


def test_at_a_glance_a_row_is_its_mean_over_the_splits_beside_the_papers_with_its_worst_seed(
    tmp_path: Path,
) -> None:
    # The paper: 94.95 ± .15, 93.87 ± .74 and 93.04 ± .67, which is 93.95 together.
    for seed, shares in enumerate([(0.96, 0.94, 0.92), (0.95, 0.93, 0.91), (0.955, 0.935, 0.915)]):
        splits = dict(zip(("test10", "test11", "test12"), shares, strict=True)) | {"test7": 0.1}
        make_run(tmp_path / f"{seed}", "logic", [f"training.seed={seed}"], accuracy=splits)
    make_run(tmp_path / "bt", "logic-bt-grc", accuracy={"test10": 0.9}, epochs=4)
    make_run(tmp_path / "om", "logic-om")  # never evaluated
    make_run(tmp_path / "option", "logic", ["training.averaging=0.999"], accuracy={"test10": 0.99})
    make_run(tmp_path / "gold", "logic-gold-grc", accuracy={"test10": 0.99})  # no row of the paper
    make_run(tmp_path / "sst5", "sst5")
    glance = build_report([tmp_path]).short[0]
    assert glance.texts == [
        ["Logical inference", "BT-GRC (unfinished)", "95.0", "90.0", "–", "1", "0 of 1"],
        ["", "EBT-GRC", "94.0", "93.5", "93.0", "3", "2 of 3"],
        ["SST5", "no figures yet", "–", "–", "–", "–", "–"],
    ]
    assert glance.remarks == ["No run yet: ListOps, IMDB, SNLI, QQP, MNLI."]


@pytest.mark.parametrize(("share", "reached"), [(0.9988, "1 of 1"), (0.9987, "0 of 1")])
def test_a_figure_exactly_one_deviation_below_the_papers_is_at_its_level(
    tmp_path: Path, share: float, reached: str
) -> None:
    make_run(tmp_path / "gold", "listops-gold-grc", accuracy={"near-iid": share})  # the paper: 99.9 ± .02
    assert build_report([tmp_path]).short[0].texts[0][-1] == reached


def test_a_seed_that_lacks_a_split_is_not_taken_for_the_worst(tmp_path: Path) -> None:
    for seed, splits in enumerate(
        [
            {"near-iid": 0.99, "lra-test": 0.7},
            {"near-iid": 0.99, "lra-test": 0.8},
            {"lra-test": 0.6},
        ]
    ):
        make_run(tmp_path / f"{seed}", "listops", [f"training.seed={seed}"], accuracy=splits)
    assert build_report([tmp_path]).short[0].texts[0][4] == "84.5"


def test_titles_say_in_what_the_data_differ_from_the_papers(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", "sst5", accuracy={"test": 0.43})
    words = {"vectors": "glove.6B.100d", "width": 100}
    for facts, title in (
        ({"train": {"examples": 1000}, "words": words}, "SST5 (subset, other vectors)"),
        ({"train": {"examples": 1000}, "words": None}, "SST5 (subset, no vectors)"),
        ({"train": {"examples": 318_582}, "words": {"vectors": "glove.840B.300d", "width": 300}}, "SST5"),
    ):
        (run / "data.json").write_text(json.dumps(facts))
        assert table_of([run], "sst5").title == title
        assert table_of([run], "summary").texts[0][0] == title


def test_runs_on_a_part_of_the_papers_examples_are_neither_counted_nor_shown_in_short(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", "sst5", accuracy={"test": 0.99})
    for examples, reached, shown in ((318_582, "1 of 1", True), (1000, "–", False)):
        facts = {"train": {"examples": examples}, "words": {"vectors": "glove.840B.300d", "width": 300}}
        (run / "data.json").write_text(json.dumps(facts))
        report = build_report([run])
        assert report.short[0].texts[0][-1] == reached
        assert ("sst5-short" in [table.name for table in report.short]) == shown
        assert "sst5" in [table.name for table in report.tables]
        assert "sst5-short" in [table.name for table in build_report([run], ["sst5"]).short], "if asked for"


def test_an_option_is_never_the_best(tmp_path: Path) -> None:
    make_run(tmp_path / "a", accuracy={"near-iid": 0.90})
    make_run(tmp_path / "b", "listops-om", accuracy={"near-iid": 0.80})
    make_run(tmp_path / "c", "listops", ["training.averaging=0.999"], accuracy={"near-iid": 0.99})
    table = table_of([tmp_path], "listops")
    assert cell_of(table, "EBT-GRC", "near-IID").best
    option = line_of(table, "EBT-GRC, averaging 0.999")
    assert [cell.text for cell in option[1:3]] == ["ours, option", "99.00"]
    assert not option[2].best


def test_an_option_that_was_tested_elsewhere_stands_in_the_table_of_other_splits(tmp_path: Path) -> None:
    make_run(tmp_path / "a", accuracy={"near-iid": 0.90})
    make_run(tmp_path / "c", "listops", ["training.averaging=0.999"], accuracy={"mine.tsv": 0.99})
    table = table_of([tmp_path], "listops")
    assert table.remarks[0].startswith("Not evaluated: GoldTreeGRC, Transformer")
    assert table.remarks[1:] == ["Not evaluated on these splits: EBT-GRC, averaging 0.999."]
    assert "EBT-GRC, averaging 0.999" not in [row[0] for row in table.texts]
    table = table_of([tmp_path], "listops-others")
    assert [row[:2] for row in table.texts] == [["EBT-GRC, averaging 0.999", "99.00"]]


def test_trees_are_compared_with_gold_where_there_are_any(tmp_path: Path) -> None:
    make_run(tmp_path / "a", accuracy={"near-iid": 0.9}, f1=0.987654)
    make_run(tmp_path / "b", "listops-transformer", accuracy={"near-iid": 0.5}, f1=None)
    table = table_of([tmp_path], "listops-trees")
    assert [row[0] for row in table.texts] == ["EBT-GRC"]
    assert cell_of(table, "EBT-GRC", "near-IID").text == "98.77 (50.0)"
    make_run(tmp_path / "c", "listops-crvnn", accuracy={"near-iid": 0.5}, epochs=4)
    for name in ("listops-trees", "listops-splits"):
        assert line_of(table_of([tmp_path], name), "CRvNN (unfinished)")


def test_run_by_run_shows_every_measured_split_with_its_interval(tmp_path: Path) -> None:
    make_run(tmp_path / "a", accuracy={"mine.tsv": 0.5, "5-args": 0.25, "dev": 0.75})
    table = table_of([tmp_path], "listops-splits")
    assert list(table.headers) == ["model", "seed", "dev", "5-args", "mine.tsv", "run"]
    assert cell_of(table, "EBT-GRC", "dev").text == "75.00 [74.0–76.0]"


def test_a_task_that_is_not_the_papers_is_shown_run_by_run(tmp_path: Path) -> None:
    make_run(tmp_path / "a", "own", accuracy={"test": 0.75}, epochs=12)
    report = build_report([tmp_path])
    assert [table.name for table in report.tables] == ["own-splits", "runs"]
    assert cell_of(report.tables[0], "EBT-GRC", "test").text == "75.00 [74.0–76.0]"


def test_a_model_in_the_package_is_found_by_its_weights_with_both_devices_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shipped" / "small").mkdir(parents=True)
    (tmp_path / "shipped" / "small" / "model.safetensors").write_bytes(b"weights")
    monkeypatch.setattr(details, "PRETRAINED", tmp_path / "shipped")
    digest = hashlib.sha256(b"weights").hexdigest()
    other = make_run(tmp_path / "a", accuracy={"near-iid": 0.5})
    run = make_run(
        tmp_path / "b", "listops", ["training.seed=1"], accuracy={"near-iid": 0.9, "lra-test": 0.7}
    )
    on_device(run, "cpu", "eval-cpu.json", 0.8999, digest)
    on_device(run, "cuda", "eval.json", 0.9, digest)
    table = table_of([other, run], "shipped")
    assert table.texts == [
        ["small", "near-iid", "90.00", "89.99", "90.00", "90.00", "50.00", "2"],
        ["small", "lra-test", "70.00", "70.00", "90.00", "90.00", "50.00", "2"],
    ]
    assert cell_of(table_of([run], "listops"), "EBT-GRC", "near-IID").text == "90.00"  # not the CPU's
    assert "shipped" not in [table.name for table in build_report([other]).tables]
