"""Tables of a report: ours from run folders beside the paper's, each setting in its own row."""

import shlex
from pathlib import Path
from statistics import median, pstdev

import pytest
from reported import cell_of, line_of, make_run, seeds, table_of

from beamtree.errors import BeamtreeError
from beamtree.paper.report.build import build_report
from beamtree.paper.report.published import LABELS, TABLES, group
from beamtree.paper.report.rows import row_of, training_command
from beamtree.paper.report.runs import DIVERGED, EARLY, LIMIT, UNFINISHED, read_run
from beamtree.training.recipe import load_recipe, shipped_recipes
from beamtree.training.run_folder import RunFolder


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


def test_changed_settings_get_a_row_of_their_own_that_names_them(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / "plain", accuracy={"near-iid": 0.9}),
        make_run(tmp_path / "wide", "listops", ["model.options.beam_size=10"], accuracy={"near-iid": 0.8}),
        make_run(tmp_path / "long", "listops", ["training.patience=9"], accuracy={"near-iid": 0.7}),
        make_run(tmp_path / "512", "listops", ["model.d_model=512"], accuracy={"near-iid": 0.6}),
        make_run(tmp_path / "off", "listops", ["model.options.stochastic=false"], accuracy={"near-iid": 0.4}),
        make_run(tmp_path / "quick", "listops-quick", accuracy={"near-iid": 0.5}),
    ]
    make_run(runs[0], beam=20, accuracy={"near-iid": 0.95})
    table = table_of(runs, "listops")
    for label, text in (
        ("EBT-GRC", "90.00"),
        ("EBT-GRC, beam_size 10", "80.00"),
        ("EBT-GRC, patience 9", "70.00"),
        ("EBT-GRC (512)", "60.00"),
        ("listops-quick", "50.00"),
        ("EBT-GRC, stochastic false", "40.00"),
        ("EBT-GRC, tested with 20 beams", "95.00"),
    ):
        assert cell_of(table, label, "near-IID").text == text
    assert sum(line.published for line in table.lines) == len(TABLES["listops"].rows)


def test_what_changes_no_figure_changes_no_row(tmp_path: Path) -> None:
    same = ["training.seed=3", "training.micro_batch_size=8", "training.deterministic=true"]
    make_run(tmp_path, "listops", [*same, "training.max_epochs=50"], epochs=8, best=3)
    assert row_of(read_run(tmp_path)).label == "EBT-GRC"  # it stopped by itself before either limit
    make_run(tmp_path / "short", "listops", ["training.max_epochs=6"], epochs=6, best=6)
    assert row_of(read_run(tmp_path / "short")).label == "EBT-GRC, max_epochs 6"
    limit = load_recipe("listops").training.max_epochs
    for epochs, label in ((limit, "EBT-GRC"), (limit + 1, "EBT-GRC, max_epochs 999")):
        path = make_run(
            tmp_path / label, "listops", ["training.max_epochs=999"], epochs=epochs, best=epochs - 5
        )
        assert row_of(read_run(path)).label == label


def test_products_in_tf32_change_no_row_but_are_told(tmp_path: Path) -> None:
    make_run(tmp_path / "a", accuracy={"near-iid": 0.9})
    make_run(
        tmp_path / "b", "listops", ["training.seed=1", "training.precision=tf32"], accuracy={"near-iid": 1}
    )
    make_run(tmp_path / "c", "listops", ["training.precision=bf16"], accuracy={"near-iid": 0.7})
    table = table_of([tmp_path], "listops")
    assert cell_of(table, "EBT-GRC", "near-IID").text == "95.00 ±5.00"
    assert cell_of(table, "EBT-GRC, precision bf16", "near-IID").text == "70.00"
    assert table.remarks[0] == "Trained with products in tf32 instead of float32: runs 2."


def test_the_recipe_beyond_the_paper_is_an_option_and_no_base_of_others(tmp_path: Path) -> None:
    make_run(tmp_path / "a", accuracy={"near-iid": 0.9})
    make_run(tmp_path / "b", "listops-crvnn", accuracy={"near-iid": 0.8})
    make_run(tmp_path / "c", "listops-beyond", ["training.precision=tf32"], accuracy={"near-iid": 1})
    near = ["model.options.slice_size=64", "training.seed=1"]
    make_run(tmp_path / "d", "listops-beyond", near, accuracy={"near-iid": 0.95})
    table = table_of([tmp_path], "listops")
    sources = {line.cells[0].text: line.cells[1].text for line in table.lines}
    assert sources["EBT-GRC, beyond the paper"].startswith("ours, option")
    assert sources["EBT-GRC, learning_rate 0.002, patience 7, averaging 0.999"].startswith("ours, option")
    assert cell_of(table, "EBT-GRC", "near-IID").best
    assert not cell_of(table, "EBT-GRC, beyond the paper", "near-IID").best


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_shipped_recipe_is_a_row_of_its_own_and_its_command_repeats_it(
    name: str, tmp_path: Path
) -> None:
    recipe = load_recipe(name, ["training.seed=2"])
    assert training_command(recipe) == f"beamtree train {name} --set training.seed=2"
    row = row_of(read_run(make_run(tmp_path, name)))
    assert row.plain
    assert row.label == LABELS.get(row.name, name)


def test_a_command_repeats_the_recipe_whatever_was_changed(tmp_path: Path) -> None:
    changes = ["model.options.slice_size=16", "task.dev=a split's", "training.learning_rate=0.0005"]
    recipe = load_recipe("logic", changes)
    words = shlex.split(training_command(recipe) or "")
    assert words[:3] == ["beamtree", "train", "logic"]
    assert load_recipe(words[2], words[4::2]) == recipe
    # An option that the shipped recipe sets cannot be taken away again by a change.
    odd = load_recipe("listops-om", ["model.encoder=ebt-grc"])
    assert training_command(odd) is None
    path = tmp_path / "dotted.toml"
    path.write_text('extends = "listops"\n[model.options]\n"a.b" = 1\n')
    assert training_command(load_recipe(path)) is None
    path = make_run(tmp_path / "odd", "listops-om", ["model.encoder=ebt-grc"])
    assert table_of([path], "runs").lines[0].cells[3].text == f"beamtree train {path / 'recipe.toml'}"
    assert "beam_size left at its default" in row_of(read_run(path)).label


def test_an_evaluation_without_its_command_leaves_that_of_the_training(tmp_path: Path) -> None:
    file = make_run(tmp_path, accuracy={"near-iid": 0.9}) / "eval.json"
    file.write_text(file.read_text().replace(f'"beamtree eval {tmp_path}"', "null"))
    assert table_of([tmp_path], "runs").lines[0].cells[3].text == "beamtree train listops"


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
    rows = [[cell.text for cell in line.cells] for line in table.lines]
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


def test_trees_are_compared_with_gold_where_there_are_any(tmp_path: Path) -> None:
    make_run(tmp_path / "a", accuracy={"near-iid": 0.9}, f1=0.987654)
    make_run(tmp_path / "b", "listops-transformer", accuracy={"near-iid": 0.5}, f1=None)
    table = table_of([tmp_path], "listops-trees")
    assert [line.cells[0].text for line in table.lines] == ["EBT-GRC"]
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


def test_a_model_without_a_recipe_of_the_task_is_called_by_its_name(tmp_path: Path) -> None:
    changes = ["model.encoder=gt-grc", "training.seed=1", "model.d_model=48"]
    run = make_run(tmp_path / "a", "own", changes, epochs=12)
    assert row_of(read_run(run)).label == "GT-GRC, d_model 48"
    words = shlex.split(training_command(read_run(run).recipe) or "")
    assert load_recipe(words[2], words[4::2]) == load_recipe("own", changes)
    odd = make_run(tmp_path / "b", "listops", ["model.encoder=crvnn-nohalt"])
    assert row_of(read_run(odd)).label == "listops-crvnn-nohalt"


def test_runs_of_ones_own_are_told_apart_by_the_files_they_learnt_from(tmp_path: Path) -> None:
    for name, file, seed in (("a", "spam.tsv", 0), ("b", "films.tsv", 0), ("c", "films.tsv", 1)):
        folder = make_run(
            tmp_path / name, "own", [f"training.seed={seed}"], accuracy={"test": 0.75}, epochs=12
        )
        facts = {"train": {"examples": 9}, "words": None, "path": file}
        RunFolder(folder).write_data_facts(facts)
    splits, runs = build_report([tmp_path]).tables
    assert [line.cells[0].text for line in splits.lines] == [
        "EBT-GRC, data films.tsv",
        "EBT-GRC, data films.tsv",
        "EBT-GRC, data spam.tsv",
    ]
    assert runs.lines[0].cells[3].text.startswith("beamtree train own --data spam.tsv --out")
    RunFolder(folder).write_data_facts({**facts, "path": 3})
    with pytest.raises(BeamtreeError, match="does not say what was learnt from"):
        build_report([tmp_path])


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
