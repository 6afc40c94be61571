"""`beamtree report`: published figures as printed, ours from run folders, each traceable to its run."""

import json
import re
import shlex
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from statistics import median, pstdev
from typing import Any

import pytest
from small_runs import run_in, small_recipe
from typer.testing import CliRunner

from beamtree.cli import app
from beamtree.data.listops import sample_expressions
from beamtree.data.listops_language import brackets
from beamtree.errors import BeamtreeError
from beamtree.report.build import build_report
from beamtree.report.paper import LABELS, TABLES, group
from beamtree.report.rows import row_of, training_command
from beamtree.report.runs import DIVERGED, EARLY, LIMIT, UNFINISHED, read_run
from beamtree.report.tables import Line, Table
from beamtree.training.recipe import load_recipe, shipped_recipes
from beamtree.training.run_folder import RunFolder

RESULTS = Path(__file__).resolve().parents[2] / "shared" / "spec" / "results.md"


def make_run(
    folder: Path,
    recipe: str = "listops",
    changes: Sequence[str] = (),
    *,
    accuracy: dict[str, float] | None = None,
    epochs: int = 8,
    best: int = 3,
    beam: int | None = None,
    f1: float | None = 0.9,
) -> Path:
    """A run folder as `train` and `eval --save` leave it, but for the weights."""
    settings = load_recipe(recipe, changes)
    run = RunFolder(folder)
    if not run.begun:
        run.begin(settings)
        record = {"dev_loss": 0.25, "dev_accuracy": 0.875, "seconds": 90.0}
        run.write_metrics([{"epoch": i, "best": i <= best, **record} for i in range(1, epochs + 1)])
    if accuracy is not None:
        splits = [
            {
                "split": split,
                "examples": 2000,
                "accuracy": share,
                "accuracy_95": [max(0.0, share - 0.01), min(1.0, share + 0.01)],
                "bracketing_f1": f1,
                "exact_match": None if f1 is None else 0.5,
            }
            for split, share in accuracy.items()
        ]
        content = {
            "task": settings.task.name,
            "encoder": settings.model.encoder,
            "beam": beam,
            "command": f"beamtree eval {folder}",
            "splits": splits,
        }
        name = "eval.json" if beam is None else f"eval-beam{beam}.json"
        (folder / name).write_text(json.dumps(content))
    return folder


def seeds(root: Path, recipe: str, shares: Sequence[float], split: str, **options: Any) -> list[Path]:
    return [
        make_run(
            root / f"{recipe}-seed{seed}",
            recipe,
            [f"training.seed={seed}"],
            accuracy={split: share},
            **options,
        )
        for seed, share in enumerate(shares)
    ]


def call(*arguments: object, rc: int = 0) -> Any:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == rc, result.output + repr(result.exception)
    return result


def table_of(paths: Sequence[Path], name: str, **options: Any) -> Table:
    return next(table for table in build_report(paths, **options).tables if table.name == name)


def line_of(table: Table, label: str) -> Line:
    return next(line for line in table.lines if line.cells[0].text == label)


def cell_of(table: Table, label: str, header: str) -> Any:
    return line_of(table, label).cells[list(table.headers).index(header)]


def test_the_published_figures_are_those_of_the_paper() -> None:
    ebt = TABLES["listops"].rows["ebt-grc"]
    assert [str(figure) for figure in ebt.values()] == [
        "99.9 ±.03",
        "99.7 ±.24",
        "99.5 ±.1",
        "99.3 ±.5",
        "82.5 ±1.3",
        "79.6 ±.87",
        "79.3 ±.65",
    ]
    logic = TABLES["logic"].rows["ebt-grc"]
    assert [logic[f"test{count}"].value for count in (10, 11, 12)] == [94.95, 93.87, 93.04]
    assert set(TABLES["listops"].rows["transformer"]) == {"near-iid"}
    lines = [[cell.text for cell in line.cells] for line in table_of([], "listops", wanted=["listops"]).lines]
    assert ["", "paper, copied", "57.4 ±.4", *["–"] * 10] in lines
    assert {name for table in TABLES.values() for name in table.rows} <= set(LABELS)


@pytest.mark.skipif(not RESULTS.is_file(), reason="the transcript of the paper's tables is not here")
def test_every_figure_and_every_best_one_is_as_transcribed_from_the_paper() -> None:
    names = {label: name for name, label in LABELS.items()}
    names |= {"Transformer (copied)": "transformer", "UT (copied)": "universal-transformer"}
    sections = dict(re.findall(r"## Table (\w+).*?\n(.*?)(?=\n## |\Z)", RESULTS.read_text(), re.S))
    places = {"2": ["listops"], "3a": ["snli", "qqp"], "3b": ["mnli"], "4": ["logic", "sst5", "imdb"]}
    compared = 0
    for number, tasks in places.items():
        rows = [
            [cell.strip() for cell in line.strip("|").split("|")] for line in sections[number].splitlines()
        ]
        for label, *printed in (row for row in rows if row[0] in names):
            ours = []
            for table in (TABLES[task] for task in tasks):
                built = table_of([], table.task, wanted=[table.task])
                place = next(
                    i for i, line in enumerate(built.lines) if line.cells[0].text == LABELS[names[label]]
                )
                cells = built.lines[place + 1].cells[2:-4]
                published = dict(zip(table.columns, cells, strict=True))
                if table.task == "logic":  # we measure shorter formulas too
                    published = {split: published[split] for split in ("test10", "test11", "test12")}
                ours += [
                    f"**{cell.text.replace(' ', '** ')}" if cell.best else cell.text
                    for cell in published.values()
                ]
            assert ours == printed, label
            compared += len(ours)
    assert compared == 7 * (11 + 8 + 8 + 7)


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


def test_changed_settings_get_a_row_of_their_own_that_names_them(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / "plain", accuracy={"near-iid": 0.9}),
        make_run(tmp_path / "wide", "listops", ["model.options.beam_size=10"], accuracy={"near-iid": 0.8}),
        make_run(tmp_path / "long", "listops", ["training.patience=9"], accuracy={"near-iid": 0.7}),
        make_run(tmp_path / "512", "listops", ["model.d_model=512"], accuracy={"near-iid": 0.6}),
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


def test_a_sweep_of_the_slice_is_a_table_by_width(tmp_path: Path) -> None:
    for width, share in ((16, 0.7), (32, 0.8)):
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
        ("128", "64", "95.00"),
        ("128", "128", "95.00"),
    ]
    names = [table.name for table in build_report([tmp_path / "plain", tmp_path / "listops-om"]).tables]
    assert names == ["listops", "listops-trees", "listops-splits", "runs"]


def test_trees_are_compared_with_gold_where_there_are_any(tmp_path: Path) -> None:
    make_run(tmp_path / "a", accuracy={"near-iid": 0.9}, f1=0.987654)
    make_run(tmp_path / "b", "listops-transformer", accuracy={"near-iid": 0.5}, f1=None)
    table = table_of([tmp_path], "listops-trees")
    assert [line.cells[0].text for line in table.lines] == ["EBT-GRC"]
    assert cell_of(table, "EBT-GRC", "near-IID").text == "98.77 (50.0)"


def test_run_by_run_shows_every_measured_split_with_its_interval(tmp_path: Path) -> None:
    make_run(tmp_path / "a", accuracy={"mine.tsv": 0.5, "5-args": 0.25, "dev": 0.75})
    table = table_of([tmp_path], "listops-splits")
    assert list(table.headers) == ["model", "seed", "dev", "5-args", "mine.tsv", "run"]
    assert cell_of(table, "EBT-GRC", "dev").text == "75.00 [74.0–76.0]"


class Page(HTMLParser):
    """All the text of a page, its links and its ids; nothing may come from elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.links: set[str] = set()
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        assert tag not in ("script", "link", "img", "iframe")
        self.links |= {found["href"] or ""} if "href" in found else set()
        self.ids |= {found["id"] or ""} if "id" in found else set()

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_page_needs_nothing_else_and_links_every_figure_to_its_run(tmp_path: Path) -> None:
    folder = tmp_path / "<b>|odd & long"
    make_run(folder, accuracy={"near-iid": 0.9})
    make_run(tmp_path / "om", "listops-om", accuracy={"near-iid": 0.8})
    result = call("report", folder, tmp_path / "om", "--out", tmp_path / "out" / "docs")
    assert f"wrote {tmp_path / 'out' / 'docs' / 'results.html'}" in result.stderr
    page = Page((tmp_path / "out/docs/results.html").read_text())
    assert page.links == {"#run-1", "#run-2"}
    assert {"run-1", "run-2", "listops", "runs"} <= page.ids
    assert str(folder) in page.texts
    style = (tmp_path / "out/docs/results.html").read_text()
    assert "prefers-color-scheme: dark" in style
    assert "http" not in style
    markdown = (tmp_path / "out/docs/results.md").read_text()
    assert "<b>\\|odd" in markdown
    assert "| EBT-GRC | ours | **90.00** |" in markdown
    for block in re.findall(r"(?:^\|.*\n)+", markdown, re.M):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1


def test_without_a_folder_the_markdown_goes_to_stdout(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", accuracy={"near-iid": 0.9})
    output = call("report", run, "--table", "listops").stdout
    assert output.startswith("# Results\n")
    assert f"Written by `beamtree report {run} --table listops`" in output
    assert re.findall(r"^## (.*)", output, re.M) == [TABLES["listops"].title, "Runs"]
    assert f"`beamtree train listops; beamtree eval {run}`" in output


def test_a_table_that_no_run_fills_is_said_to_be_empty(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    result = call("report", run, "--table", "slices")
    assert "beamtree: No run has anything for the table 'slices'." in result.stderr
    assert (
        "no table 'listop'; did you mean 'listops'?" in call("report", run, "--table", "listop", rc=2).stderr
    )


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
        ("metrics.jsonl", lambda text: text[:-9], "metrics.jsonl is not one JSON record a line"),
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
        ("eval.json", lambda text: text.replace("0.9,", "9.0,", 1), "near-iid is not between 0 and 1"),
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
    assert cell_of(report.tables[0], "EBT-GRC", "near-IID").text == "90.00"
    assert len(report.tables[-1].lines) == 2
    assert "b are runs of the same recipe and seed; the first one counts" in report.notes[0]
    assert len(table_of([tmp_path / "a", tmp_path / "a"], "runs").lines) == 1


def test_two_evaluations_of_one_split_are_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path, accuracy={"near-iid": 0.9})
    (run / "eval-again.json").write_text((run / "eval.json").read_text())
    with pytest.raises(BeamtreeError, match="both measured near-iid: keep one of them"):
        read_run(run)


def test_a_real_run_goes_from_training_by_eval_to_the_report(tmp_path: Path) -> None:
    run = tmp_path / "run"
    recipe = small_recipe(
        training={"max_epochs": 1}, model={"encoder": "ebt-grc", "options": {"beam_size": 2}}
    )
    run_in(run, recipe)
    data = tmp_path / "test_200_300.tsv"
    drawn = sample_expressions(9, seed=4, min_length=4, max_length=9)
    data.write_text("".join(f"{one.label}\t{brackets(one.sentences[0])}\n" for one in drawn))
    assert f"wrote {run / 'eval.json'}" in call("eval", run, "--data", tmp_path, "--save").stderr
    call("eval", run, "--data", tmp_path, "--split", "200-300", "--beam", 3, "--save")
    saved = json.loads((run / "eval-beam3.json").read_text())
    assert saved["command"] == f"beamtree eval {run} --data {tmp_path} --split 200-300 --beam 3"
    call("eval", run, "--data", tmp_path, "--merge-equal-trees", "--save")
    saved = json.loads((run / "eval-merged.json").read_text())
    assert saved["command"] == f"beamtree eval {run} --data {tmp_path} --merge-equal-trees"
    measured = read_run(run)
    assert [e.search for e in measured.evaluations] == [(3, False), (None, True), (None, False)]
    assert all(list(e.splits) == ["200-300"] for e in measured.evaluations)
    output = call("report", run).stdout
    accuracy = json.loads((run / "eval.json").read_text())["splits"][0]["accuracy"]
    assert f"| {100 * accuracy:.2f} [" in output
    assert "tested with 3 beams" in output
    assert "equal trees merged in the test" in output

    (run / "best" / "model.safetensors").write_bytes(b"others")
    with pytest.raises(BeamtreeError, match="measured other weights than the run's best/ has now"):
        read_run(run)


def test_eval_saves_into_run_folders_only(tmp_path: Path) -> None:
    result = call("eval", tmp_path, "--save", rc=2)
    assert f"--save keeps figures in a run folder, but {tmp_path} has no recipe.toml" in result.stderr
