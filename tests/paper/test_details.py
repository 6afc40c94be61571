"""Tables of a report that stand for themselves: trees, run by run, models in the package."""

import hashlib
from pathlib import Path

import pytest
from reported import cell_of, line_of, make_run, on_device, table_of

from beamtree.paper import details
from beamtree.paper.report import build_report


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
