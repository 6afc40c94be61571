"""`beamtree bench`: options, files, refusals, and Ctrl-C."""

import json
import re
from pathlib import Path

import pytest
import torch
from on_gpu import needs_gpu
from typer.testing import CliRunner

from beamtree.cli import app
from beamtree.paper.speed import fresh_process, workload
from beamtree.paper.speed import table1 as paper
from beamtree.paper.speed.measure import Measurement
from beamtree.paper.speed.suites import arithmetic
from beamtree.paper.speed.table1 import Range
from beamtree.pytorch import capturing

SMALL = ["--device", "cpu", "--no-memory", "--repeat", "2", "--d-model", "8", "--beam", "2"]


def bench(*options: str):
    return CliRunner().invoke(app, ["bench", *map(str, options)], env={"COLUMNS": "160"})


def refusal(*options: str) -> str:
    result = bench(*options)
    assert result.exit_code == 2
    return result.stderr


def test_a_log_hears_what_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("beamtree.cli.bench.LINE_EVERY", 0.0)
    said = bench(*SMALL, "--lengths", "4", "--batch", "1").stderr.splitlines()
    assert said[0].startswith("0% done, now ")
    assert any("naive: step 2 of 2" in line for line in said)


def test_a_tree_is_measured_beside_what_users_know_and_the_original_algorithm(tmp_path):
    files = {name: tmp_path / "new" / name for name in ("b.json", "b.md", "b.svg")}
    result = bench(
        *SMALL,
        *("--lengths", "6,4", "--batch", "3", "--threads", "1", "--matmul-precision", "high"),
        *("--json", files["b.json"], "--markdown", files["b.md"], "--plot", files["b.svg"]),
    )
    assert result.exit_code == 0, result.output
    assert "faster than naive" in result.stdout
    content = json.loads(files["b.json"].read_text())
    assert [(m["model"], m["B"], m["n"], len(m["all_seconds"])) for m in content["measurements"]] == [
        (model, 3, n, 2)
        for _ in ("inference", "training")
        for n in (4, 6)
        for model in ("ebt-grc", "nn.LSTM", "nn.TransformerEncoder", "naive")
    ]
    assert [m["inference"] for m in content["measurements"]] == [True] * 8 + [False] * 8
    assert content["environment"]["threads"] == 1
    assert content["environment"]["matmul_precision"] == "high"
    assert content["interrupted"] is False
    assert content["settings"]["dropout"] == 0.1
    markdown = files["b.md"].read_text()
    assert "| 3 | 4 | ebt-grc |" in markdown
    assert "AdamW (PyTorch's default)" in markdown
    assert markdown.splitlines()[0] in result.stdout
    assert "search in " in result.stdout
    assert "One forward pass by n" in markdown
    assert "One training step by n" in markdown
    assert "tokens n" in files["b.svg"].read_text()


@pytest.mark.parametrize("width", [40, 80, 200])
def test_figures_are_never_cut_however_narrow_the_terminal(width, tmp_path, monkeypatch):
    monkeypatch.setattr(Measurement, "megabytes", property(lambda _: 12345.6))
    monkeypatch.setattr("beamtree.paper.speed.benchmark._spread", lambda _: "0.123–0.456")
    files = ("--threads", "1", "--markdown", tmp_path / "b.md")
    words = ["bench", *SMALL, "--lengths", "20", "--batch", "1", *map(str, files)]
    shown = CliRunner().invoke(app, words, env={"COLUMNS": str(width)}).stdout
    assert "…" not in shown
    rows = re.findall(r"^\| 1 \| 20 \| (.*) \|$", (tmp_path / "b.md").read_text(), re.MULTILINE)
    assert len(rows) == 8
    lines = [line.split() for line in shown.splitlines()]
    assert [line[2:] for line in lines if line[:2] == ["1", "20"]] == [row.split(" | ") for row in rows]
    if width == 80:
        assert max(map(len, shown.split("One forward", 1)[1].splitlines())) <= 80
    assert ", 1 thread, " in shown


def test_without_cuda_graphs_every_kernel_is_launched_and_graphs_are_put_back(monkeypatch):
    wanted = []
    monkeypatch.setattr(
        "beamtree.paper.speed.suites.measure_groups", lambda *_: wanted.append(capturing.are_wanted())
    )
    for options in ([], ["--no-cuda-graphs"]):
        assert bench(*SMALL, "--lengths", "4", *options).exit_code == 0
    assert wanted == [True, False]
    assert capturing.are_wanted()


def test_threads_and_precision_are_put_back():
    before = torch.get_num_threads(), torch.get_float32_matmul_precision()
    other = before[0] + 1, "high" if before[1] == "highest" else "highest"
    with arithmetic(*other):
        assert (torch.get_num_threads(), torch.get_float32_matmul_precision()) == other
    assert (torch.get_num_threads(), torch.get_float32_matmul_precision()) == before


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--inference", "--lengths", "4", "--models", "om"), "µs per search step"),
        (("--suite", "throughput", "--lengths", "4", "--models", "gt-grc"), "tokens/s"),
        (("--suite", "scaling", "--slice-size", "2,4", "--lengths", "4"), "d_s"),
    ],
)
def test_each_suite_shows_what_it_is_about(options, expected):
    result = bench(*SMALL, *options)
    assert result.exit_code == 0, result.output
    assert expected in result.stdout


def test_the_paper_table_is_measured_on_expressions(monkeypatch, tmp_path):
    monkeypatch.setitem(paper.RANGES, "200-250", Range(8, 12))
    monkeypatch.setattr(fresh_process, "call_alone", lambda function, **arguments: function(**arguments))
    result = bench(
        *("--suite", "paper", "--device", "cpu", "--models", "gt-grc,naive", "--lengths", "200-250"),
        *("--samples", "2", "--json", tmp_path / "b.json"),
    )
    assert result.exit_code == 0, result.output
    assert "GT-GRC" in result.stdout
    assert "(0.35)" in result.stdout
    content = json.loads((tmp_path / "b.json").read_text())
    assert [len(cell["seconds"]) for cell in content["measurements"]] == [2, 2]
    assert content["settings"]["samples"] == 2


def test_interrupting_keeps_what_was_measured(monkeypatch, tmp_path):
    steps = []
    take_step = workload.Workload.step

    def step(self):
        steps.append(self.case.n)
        if steps.count(6) == 2:
            raise KeyboardInterrupt
        take_step(self)

    monkeypatch.setattr(workload.Workload, "step", step)
    result = bench(*SMALL, "--lengths", "4,6", "--json", tmp_path / "b.json", "--plot", tmp_path / "b.png")
    assert result.exit_code == 130
    assert "interrupted" in result.stderr
    content = json.loads((tmp_path / "b.json").read_text())
    assert content["interrupted"] is True
    assert [len(m["all_seconds"]) for m in content["measurements"]] == [2] * 4 + [0] * 4
    assert (tmp_path / "b.png").exists()


def test_interrupting_at_once_leaves_an_empty_report(monkeypatch, tmp_path):
    def step(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(workload.Workload, "step", step)
    result = bench(*SMALL, "--lengths", "4", "--plot", tmp_path / "b.png")
    assert result.exit_code == 130
    assert not (tmp_path / "b.png").exists()


def test_what_a_user_can_mend_is_one_sentence(tmp_path):
    assert "bench runs on cpu and cuda only, got --device meta" in refusal("--device", "meta")
    assert "did you mean 'ebt-grc'" in refusal(*SMALL, "--models", "ebt-grcc")
    assert "takes positive whole numbers, separated by commas, got 'ten'" in refusal("--lengths", "5,ten")
    assert "got '0'" in refusal("--batch", "0")
    assert "--models has an empty entry between commas" in refusal("--models", "om,,gt-grc")
    assert "--samples: leave it out" in refusal("--samples", "3")
    assert "nn.LSTM is not one" in refusal("--suite", "paper", "--models", "nn.LSTM")
    paper_refusal = refusal("--suite", "paper", "--batch", "3", "--inference")
    assert "the suite paper does not use --batch, --inference" in paper_refusal
    assert "--plot writes" in refusal("--plot", "b.txt")
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert "cannot make the folder" in refusal("--json", blocked / "b.json")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_named():
    assert "cannot use the device 'cuda'" in refusal("--device", "cuda")


@needs_gpu
@pytest.mark.gpu
def test_a_gpu_is_measured_with_its_allocated_memory(tmp_path):
    file = tmp_path / "b.json"
    sizes = ("--lengths", "6", "--d-model", "16", "--repeat", "2")
    result = bench("--device", "cuda", *sizes, "--json", file)
    assert result.exit_code == 0, result.output
    content = json.loads(file.read_text())
    assert content["environment"]["device_type"] == "cuda"
    weights = 4 * 4 * 24 * 16**2  # with gradients and AdamW's two moments
    assert all(m["seconds"] > 0 for m in content["measurements"])
    trained = [m for m in content["measurements"] if m["model"] == "ebt-grc" and not m["inference"]]
    assert trained
    assert all(m["peak_bytes"] > weights for m in trained)


@needs_gpu
@pytest.mark.gpu
def test_the_paper_table_is_measured_on_a_gpu_in_this_process(monkeypatch, tmp_path):
    monkeypatch.setitem(paper.RANGES, "200-250", Range(8, 12))
    options = ("--models", "ebt-grc,naive", "--lengths", "200-250", "--samples", "2")
    result = bench("--suite", "paper", "--device", "cuda", *options, "--json", tmp_path / "b.json")
    assert result.exit_code == 0, result.output
    cells = json.loads((tmp_path / "b.json").read_text())["measurements"]
    assert all(cell["peak_bytes"] > 1e6 and len(cell["seconds"]) == 2 for cell in cells)


def test_output_files_are_optional(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert bench(*SMALL, "--lengths", "3", "--models", "recurrent-grc").exit_code == 0
    assert list(Path(tmp_path).iterdir()) == []
