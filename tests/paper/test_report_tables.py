"""Tables of a report: ours from run folders beside the paper's."""

from pathlib import Path
from statistics import median, pstdev

from reported import cell_of, line_of, make_run, seeds, table_of

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
    names = [line.cells[0].text for line in table.lines if not line.published]
    assert names == [LABELS[name] for name in LABELS if name in TABLES["listops"].rows]
    assert {cell.text for cell in line_of(table, "OM").cells[2:]} == {"–"}
    assert cell_of(table, "EBT-GRC", "near-IID").text == "99.90"  # one seed has no spread
    assert cell_of(table, "EBT-GRC", "LRA").text == "–"
    place = table.lines.index(line_of(table, "OM"))
    assert table.lines[place + 1].cells[2].text == "99.9 ±.03"


def test_the_best_of_ours_is_marked_ties_too_but_never_the_gold_trees(tmp_path: Path) -> None:
    shares = {"listops": 0.97, "listops-om": 0.97, "listops-crvnn": 0.96, "listops-gold-grc": 0.99}
    runs = [make_run(tmp_path / name, name, accuracy={"near-iid": share}) for name, share in shares.items()]
    table = table_of(runs, "listops")
    marked = {line.cells[0].text for line in table.lines if not line.published and line.cells[2].best}
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
    assert [line.cells[6].text for line in runs.lines] == [EARLY, UNFINISHED]
    assert line_of(table, "EBT-GRC").cells[1].text == "ours"
    alone = table_of([tmp_path / "b"], "listops")
    assert line_of(alone, "EBT-GRC").cells[1].text == "ours, unfinished"


def test_a_sweep_of_the_slice_is_a_table_by_width(tmp_path: Path) -> None:
    for width, share in ((16, 0.7), (32, 0.8), (200, 0.85)):
        make_run(
            tmp_path / f"{width}",
            "listops",
            [f"model.options.slice_size={width}"],
            accuracy={"200-300": share},
        )
    make_run(tmp_path / "plain", accuracy={"200-300": 0.9})
    for name in ("listops-ebt-grc-noslice", "listops-ebt-grc-noslice-64", "listops-om"):
        make_run(tmp_path / name, name, accuracy={"200-300": 0.95})
    table = table_of([tmp_path], "listops-slices")
    rows = table.texts
    assert [(row[0], row[1], row[3]) for row in rows] == [
        ("16", "64", "70.00"),
        ("32", "64", "80.00"),
        ("64", "64", "90.00"),
        ("128", "64", "85.00"),  # a slice is no wider than its node
        ("128", "64", "95.00"),
        ("128", "128", "95.00"),
    ]
    names = [table.name for table in build_report([tmp_path / "plain", tmp_path / "listops-om"]).tables]
    assert names == ["summary", "listops", "listops-trees", "listops-splits", "runs"]


def test_a_recipe_that_names_no_slice_stands_in_the_sweep_by_its_default(tmp_path: Path) -> None:
    for name, options in (("default", ""), ("narrow", "[model.options]\nslice_size = 32\n")):
        recipe = tmp_path / f"{name}.toml"
        recipe.write_text('[task]\nname = "listops"\n[model]\nencoder = "ebt-grc"\n' + options)
        make_run(tmp_path / name, str(recipe), accuracy={"200-300": 0.9})
    slices = table_of([tmp_path], "listops-slices")
    assert [line.cells[0].text for line in slices.lines] == ["32", "64"]


def test_a_width_that_is_no_number_is_left_out_of_the_sweep(tmp_path: Path) -> None:
    for seed, change in enumerate(
        ("slice_size=wide", "scorer_hidden=deep", "slice_size=32", "slice_size=16")
    ):
        changes = [f"model.options.{change}", f"training.seed={seed}"]
        make_run(tmp_path / f"{seed}", "listops", changes, accuracy={"200-300": 0.9})
    assert [row[0] for row in table_of([tmp_path], "listops-slices").texts] == ["16", "32"]


def test_trees_are_compared_with_gold_where_there_are_any(tmp_path: Path) -> None:
    make_run(tmp_path / "a", accuracy={"near-iid": 0.9}, f1=0.987654)
    make_run(tmp_path / "b", "listops-transformer", accuracy={"near-iid": 0.5}, f1=None)
    table = table_of([tmp_path], "listops-trees")
    assert [line.cells[0].text for line in table.lines] == ["EBT-GRC"]
    assert cell_of(table, "EBT-GRC", "near-IID").text == "98.77 (50.0)"
    make_run(tmp_path / "c", "listops-crvnn", accuracy={"near-iid": 0.5}, epochs=4)
    for name in ("listops-trees", "listops-splits"):
        assert line_of(table_of([tmp_path], name), "CRvNN (unfinished)")


def test_a_model_that_the_paper_does_not_have_is_a_row_that_says_so(tmp_path: Path) -> None:
    name = "BiLSTM, not in the paper"
    assert name not in [line[0] for line in table_of([], "listops", wanted=["listops"]).texts]
    make_run(tmp_path / "a", "listops-bilstm", accuracy={"near-iid": 0.5})
    lines = table_of([tmp_path], "listops").texts
    place = next(i for i, line in enumerate(lines) if line[0] == name)
    assert lines[place][1:3] == ["ours", "50.00"]
    assert lines[place + 1][0] == "Transformer"


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


def test_in_short_a_row_shows_its_worst_seed_and_the_papers_figure(tmp_path: Path) -> None:
    for seed, accuracy in enumerate((0.9, 0.7, 0.8)):
        make_run(tmp_path / str(seed), "listops", [f"training.seed={seed}"], accuracy={"near-iid": accuracy})
    make_run(tmp_path / "beyond", "listops-beyond", accuracy={"near-iid": 0.99})
    make_run(tmp_path / "om", "listops-om", accuracy={"near-iid": 0.6})
    report = build_report([tmp_path])
    (table,) = [table for table in report.short if table.name == "listops-short"]
    rows = {line.cells[0].text: [cell.text for cell in line.cells[1:]] for line in table.lines}
    assert rows["EBT-GRC"] == ["80.00 / 70.00 (99.9)", *["–"] * 6, "3"]
    assert rows["OM"][0] == "60.00 (99.9)"
    assert len(rows) == 2, "neither rows without figures nor other settings"
