"""The paper's Table 1 on this machine: expressions and training step."""

from itertools import count
from types import SimpleNamespace

import pytest
import torch

from beamtree import BeamtreeError
from beamtree.data.listops.draws import DRAWS
from beamtree.data.task import Example
from beamtree.paper.speed import table1 as paper
from beamtree.paper.speed.fresh_process import OUT_OF_MEMORY
from beamtree.paper.speed.measure import FIRST_LENGTH
from beamtree.paper.speed.suites import run_paper
from beamtree.paper.speed.table1 import RANGES, Range, RangeResult, Trainer, measure_table, train_on
from beamtree.paper.speed.workload import NaiveEncoder

CPU = torch.device("cpu")


SHORT = [("[MAX 2 9 [MIN 4 7 ] 0 ]", "9"), ("[SM 3 8 ]", "1"), ("[MED 1 2 3 ]", "2")]


def test_expressions_have_the_lengths_of_their_range_and_are_the_same_every_time():
    drawn = Range(20, 25).sample(5)
    assert all(20 <= len(text.split()) <= 25 for text, _ in drawn)
    assert drawn == Range(20, 25).sample(5)
    assert all(label in "0123456789" for _, label in drawn)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("200-250", "test_200_300.tsv"),
        ("500-600", "test_500_600.tsv"),
        ("900-1000", "test_900_1000.tsv"),
        ("1500-2000", "basic_train.tsv"),
    ],
)
def test_a_range_is_drawn_like_the_split_that_the_paper_used(name, file):
    draw, wanted = next(draw for draw in DRAWS if file in draw.files), RANGES[name]
    low, high = map(int, name.split("-"))
    assert (wanted.max_depth, wanted.max_args) == (draw.process.max_depth, draw.process.max_args)
    assert (wanted.min_length, wanted.max_length) == (max(low, draw.lengths[0]), min(high, draw.lengths[1]))


@pytest.mark.parametrize("model", ["om", "ebt-grc-512", "naive"])
def test_a_row_trains_the_classifier_of_the_paper(model):
    trainer = Trainer(model, CPU)
    classifier = trainer.classifier
    assert classifier.embedding.output_size == 128
    assert classifier.head.hidden.out_features == 128
    assert classifier.head.hidden.in_features == (512 if model == "ebt-grc-512" else 128)
    assert isinstance(classifier.encoder, NaiveEncoder) == (model == "naive")
    if model == "om":
        assert (classifier.encoder.memory_slots, classifier.encoder.memory_dropout) == (21, 0.1)
    before = [parameter.clone() for parameter in classifier.parameters()]
    found = train_on(model, SHORT, float("inf"), "cpu")
    assert len(found["seconds"]) == 3
    assert found["peak_bytes"] >= 0
    examples = [Example((tuple(text.split()),), label) for text, label in SHORT]
    assert len(trainer.train(examples)) == 3
    assert any(not torch.equal(a, b) for a, b in zip(before, classifier.parameters(), strict=True))


def test_a_slow_model_stops_after_the_expression_that_exceeded_the_limit(monkeypatch):
    monkeypatch.setattr(paper, "time", SimpleNamespace(perf_counter=count(step=1.0).__next__))
    assert train_on("recurrent-grc", SHORT, 1.5, "cpu")["seconds"] == [1.0, 1.0]


def test_a_gpu_is_warmed_up_by_the_first_expression_and_a_cpu_by_its_beginning(monkeypatch):
    seen = []

    class Watched:
        def __init__(self, model, device):
            pass

        def train(self, examples, max_seconds):
            seen.append(([len(example.sentences[0]) for example in examples], max_seconds))
            return [0.1 for _ in examples]

    peak = SimpleNamespace(warmed_up=lambda: seen.append("warm"), bytes=lambda: 5)
    monkeypatch.setattr(paper, "Trainer", Watched)
    monkeypatch.setattr(paper, "PeakMemory", lambda device: peak)
    train_on("ebt-grc", SHORT, 1.5, "cuda")
    assert seen == [([9, 9], 1.5), "warm", ([9, 4, 5], 1.5)]
    seen.clear()
    train_on("ebt-grc", SHORT, 1.5, "cpu")
    assert seen == [([FIRST_LENGTH], 1.5), "warm", ([9, 4, 5], 1.5)]


@pytest.fixture
def small_ranges(monkeypatch):
    monkeypatch.setitem(RANGES, "200-250", Range(10, 14))
    monkeypatch.setitem(RANGES, "500-600", Range(15, 20))


def test_on_a_cpu_each_cell_is_measured_in_its_own_process(small_ranges):
    cells: list[RangeResult] = []
    measure_table(["recurrent-grc"], ["200-250"], CPU, samples=2, max_seconds=60, into=cells)
    (cell,) = cells
    assert len(cell.seconds) == 2
    assert cell.peak_bytes >= 0
    assert 10 <= cell.mean_length <= 14
    assert cell.problem is None
    assert cell.extrapolated
    assert cell.minutes == pytest.approx(100 / 60 * sum(cell.seconds) / 2)


def test_a_model_that_runs_out_of_memory_is_marked_and_the_others_are_measured(small_ranges, monkeypatch):
    def train(model, expressions, max_seconds, device):
        if model == "bt-grc":
            raise torch.OutOfMemoryError("CUDA out of memory")
        return {"seconds": [0.6] * 100, "peak_bytes": 1000}

    monkeypatch.setattr(paper, "train_on", train)
    cells: list[RangeResult] = []
    said: list[float] = []
    measure_table(
        ["bt-grc", "naive"],
        ["200-250", "500-600"],
        torch.device("cuda"),
        samples=4,
        max_seconds=60,
        into=cells,
        progress=lambda share, doing: said.append(share),
    )
    assert [cell.problem for cell in cells] == [OUT_OF_MEMORY, None] * 2
    assert cells[0].minutes is None
    assert cells[1].minutes == pytest.approx(1.0)
    assert not cells[1].extrapolated
    assert said == [0.0, 0.0, 0.25, 0.5, 0.5, 0.75]
    assert cells[0].to_dict()["published"] == {"minutes": 1.1, "gigabytes": 1.71}
    assert cells[1].to_dict()["published"] is None


def test_unknown_rows_and_ranges_are_named_before_anything_is_measured():
    def measure(models: tuple[str, ...], ranges: tuple[str, ...]) -> None:
        run_paper(models, ranges, CPU, samples=1, max_seconds=1, progress=lambda *_: pytest.fail("measured"))

    with pytest.raises(BeamtreeError, match="did you mean 'bt-grc-os'"):
        measure(("bt-grc-so",), ())
    with pytest.raises(BeamtreeError, match="no range of lengths '200-240'; did you mean '200-250'"):
        measure((), ("200-240",))
