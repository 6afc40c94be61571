"""A benchmark's results as tables, Markdown and JSON."""

import json

import pytest
import torch
from benchmarked import CELLS, GROUPS, benchmark, measured

from beamtree.paper.speed import benchmark as module
from beamtree.paper.speed.benchmark import describe_environment, paper_tables, size_tables

CPU = torch.device("cpu")


def test_a_table_shows_medians_ratios_and_problems():
    (table,) = size_tables(GROUPS)
    assert table.title == "One training step by n (K = 5, d = 128)"
    assert list(table.headers) == [
        *("B", "n", "model", "ms", "from–to ms"),
        *("faster than naive", "peak MB", "less memory than naive"),
    ]
    assert table.texts == [
        ["1", "10", "ebt-grc", "20", "10–30", "10×", "2", "25×"],
        ["1", "10", "naive", "200", "200–200", "1×", "50", "1×"],
        ["1", "1,000", "ebt-grc", "500", "500–500", "–", "4", "–"],
        ["1", "1,000", "naive", "out of memory", "–", "–", "–", "–"],
    ]


def test_inference_tells_the_time_of_a_search_step_and_throughput_the_tokens():
    (table,) = size_tables([[measured("om", [0.009], inference=True, K=None)]])
    assert "forward pass" in table.title
    assert dict(zip(table.headers, table.texts[0], strict=True))["µs per search step"] == "1,000"
    assert "faster than naive" not in table.headers
    (table,) = size_tables([[measured("om", [0.01], B=32)]], with_tokens=True)
    assert dict(zip(table.headers, table.texts[0], strict=True))["tokens/s"] == "32,000"


def test_each_varied_size_has_its_table_and_its_column():
    groups = [
        [measured("ebt-grc", [0.1], varied="d_s", slice_size=16)],
        [measured("ebt-grc", [0.1], varied="d_s", slice_size=32)],
        [measured("ebt-grc", [0.1], varied="K", K=2), measured("ebt-grc-512", [0.1], varied="K", K=2, d=512)],
    ]
    beams, slices = size_tables(groups)
    assert list(beams.headers[:5]) == ["B", "n", "K", "d", "model"]
    assert list(slices.headers[:4]) == ["B", "n", "d_s", "model"]
    assert [row[2] for row in slices.texts] == ["16", "32"]
    (alone,) = size_tables([[measured("om", [0.1], varied="d", d=d, K=None)] for d in (64, 128)])
    assert alone.title == "One training step by d"


def test_the_paper_table_puts_published_figures_in_brackets_and_marks_extrapolation():
    minutes, memory, milliseconds = paper_tables(CELLS)
    assert list(minutes.headers) == ["model", "200-250", "1500-2000"]
    assert minutes.texts == [
        ["EBT-GRC", "0.01 (1.2)", "–"],
        ["naive", "~1", "–"],
        ["BT-GRC OS", "–", "OOM (OOM)"],
    ]
    assert [row[1] for row in memory.texts] == ["0.05 (0.19)", "0.4", "–"]
    assert [row[1:] for row in milliseconds.texts] == [["6", "–"], ["600", "–"], ["–", "out of memory"]]
    assert "bt-grc-os-faithful" in minutes.remarks[0]  # whose cost is the published one
    assert "faithful" not in paper_tables(CELLS[:2])[0].remarks[0]


def test_markdown_holds_the_machine_and_every_row():
    text = benchmark(groups=GROUPS, interrupted=True).to_markdown()
    first = text.splitlines()[0]
    assert f"torch {torch.__version__}" in first
    assert "interrupted" in first
    assert "| ---: | ---: | --- | ---: |" in text
    assert "| 1 | 10 | ebt-grc | 20 | 10–30 | 10× | 2 | 25× |" in text
    assert "In brackets" in benchmark("paper", cells=CELLS).to_markdown()


def test_json_holds_every_timing_and_what_it_was_measured_on():
    content = json.loads(benchmark(groups=[*GROUPS, [measured("om", [0.1])]]).to_json())
    assert content["environment"]["torch"] == torch.__version__
    assert content["environment"]["threads"] == torch.get_num_threads()
    assert content["environment"]["matmul_precision"] == torch.get_float32_matmul_precision()
    assert content["environment"]["device"]
    first, second = content["measurements"][:2]
    assert first["all_seconds"] == [0.010, 0.030, 0.020]
    assert first["all_processor_seconds"] == [0.005, 0.015, 0.010]
    assert (first["B"], first["n"], first["d"], first["K"]) == (1, 10, 128, 5)
    assert first["times_faster_than_naive"] == pytest.approx(10)
    assert second["peak_bytes"] == 50_000_000
    assert content["measurements"][-1]["times_faster_than_naive"] is None
    cells = json.loads(benchmark("paper", cells=CELLS).to_json())["measurements"]
    assert cells[0]["published"] == {"minutes": 1.2, "gigabytes": 0.19}
    assert cells[1]["extrapolated"]


def test_the_device_has_a_name_with_and_without_proc(monkeypatch, tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    monkeypatch.setattr(module, "_PROCESSOR", cpuinfo)
    assert describe_environment(CPU)["device"]
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Abacus 9\n")
    assert describe_environment(CPU)["device"] == "Abacus 9"
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Big One")
    assert describe_environment(torch.device("cuda"))["device"] == "Big One"
    assert module._version("no-such-package-at-all") is None
