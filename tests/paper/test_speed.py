"""Measuring: the original algorithm is the same model, and steps take turns."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from beamtree import BeamtreeError
from beamtree.nn.encoder import BeamTreeEncoder
from beamtree.paper.speed import measure, workload
from beamtree.paper.speed.measure import Measurement, Plan, measure_groups
from beamtree.paper.speed.models import NaiveEncoder, create_measured, find_variant, measurable_names, takes
from beamtree.paper.speed.suites import Group, Wanted, quick, scaling, throughput
from beamtree.paper.speed.workload import Case, Timing, Workload
from beamtree.processes.fresh import OUT_OF_MEMORY
from beamtree.zoo.by_name import encoder_names

CPU = torch.device("cpu")
TINY = Case(B=2, n=5, d=16, K=2)


def padded_input() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    x = torch.randn(4, 7, 8, dtype=torch.float64)
    return x, torch.arange(7) >= torch.tensor([7, 1, 2, 5])[:, None]


@pytest.mark.parametrize("training", [False, True])
def test_the_original_algorithm_gives_the_same_values_gradients_and_trees(training):
    torch.manual_seed(1)
    fast = BeamTreeEncoder(8, beam_size=3, dropout=0.3, dtype=torch.float64).train(training)
    naive = NaiveEncoder(fast).train(training)
    x, is_padding = padded_input()
    found = []
    for encoder in (fast, naive):
        fast.zero_grad()
        torch.manual_seed(5)  # of noise and dropout
        y, trees = encoder(x, key_padding_mask=is_padding, need_trees=True)
        y.square().sum().backward()
        found.append((y, trees, [p.grad.clone() for p in fast.parameters()]))
    (y, trees, gradients), (y_naive, trees_naive, gradients_naive) = found
    torch.testing.assert_close(y_naive, y, rtol=0, atol=1e-10)
    assert torch.equal(trees_naive.merges, trees.merges)
    torch.testing.assert_close(trees_naive.weights, trees.weights)
    torch.testing.assert_close(gradients_naive, gradients, rtol=0, atol=1e-8)


def test_the_original_algorithm_needs_neither_mask_nor_trees():
    torch.manual_seed(1)
    fast = BeamTreeEncoder(8, dtype=torch.float64).eval()
    x, _ = padded_input()
    torch.testing.assert_close(NaiveEncoder(fast).eval()(x), fast(x))


def test_every_encoder_and_the_original_algorithm_can_be_measured():
    assert set(encoder_names()) < set(measurable_names())
    assert "naive" in measurable_names()
    with pytest.raises(BeamtreeError, match="no model 'ebt-gcr' to measure; did you mean 'ebt-grc'"):
        find_variant("ebt-gcr")


@pytest.mark.parametrize("name", measurable_names())
def test_every_model_takes_a_training_step_and_a_forward_pass(name):
    training = Workload(Case(name, B=2, n=4, d=16, K=2), CPU)
    before = [parameter.clone() for parameter in training.encoder.parameters()]
    timing = training.timed_step()
    assert timing.seconds > 0
    assert timing.processor_seconds >= 0
    after = list(training.encoder.parameters())
    assert not all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert training.x.grad is not None

    forward = Workload(Case(name, B=2, n=4, d=16, K=2, inference=True), CPU)
    before = [parameter.clone() for parameter in forward.encoder.parameters()]
    forward.step()
    assert not forward.encoder.training
    assert all(torch.equal(a, b) for a, b in zip(before, forward.encoder.parameters(), strict=True))


def test_a_training_step_has_noise_dropout_and_a_mask():
    encoder = Workload(TINY, CPU).encoder
    assert encoder.training
    assert encoder.stochastic
    assert encoder.cell.dropout == 0.1
    step = Workload(TINY, CPU)
    seen = {}
    step.encoder.register_forward_pre_hook(lambda _, __, named: seen.update(named), with_kwargs=True)
    step.step()
    assert torch.equal(seen["key_padding_mask"], torch.zeros(2, 5, dtype=torch.bool))


def test_the_two_paths_start_from_equal_weights_and_inputs_and_leave_the_seed_alone():
    fast = Workload(TINY, CPU)
    torch.rand(1)
    state = torch.get_rng_state()
    naive = Workload(Case("naive", B=2, n=5, d=16, K=2), CPU)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(fast.x, naive.x)
    assert torch.equal(fast.encoder.cell.w1.weight, naive.encoder.encoder.cell.w1.weight)


def test_a_timing_is_what_both_clocks_went_on(monkeypatch):
    step = Workload(TINY, CPU)
    clocks = SimpleNamespace(perf_counter=iter([10.0, 12.5]).__next__, process_time=iter([3.0, 4.0]).__next__)
    monkeypatch.setattr(workload, "time", clocks)
    assert step.timed_step() == (2.5, 1.0)


def test_options_reach_the_models_that_have_them():
    measured = Workload(replace(TINY, slice_size=8), CPU).encoder
    assert (measured.d_model, measured.beam_size, measured.scorer.slice_size) == (16, 2, 8)
    assert create_measured("ebt-grc", 32, beam_size=3, slice_size=16).scorer.slice_size == 16
    assert create_measured("ebt-grc-noslice", 32, slice_size=16).scorer.slice_size == 32
    assert create_measured("naive", 32, beam_size=3).encoder.beam_size == 3
    for name in ("gt-grc", "bt-grc", "bt-grc-os"):
        assert create_measured(f"{name}-faithful", 16).mode == "faithful"
    wide = create_measured("ebt-grc-512-noslice", 128, device="meta")
    assert (wide.input_size, wide.d_model, wide.scorer.slice_size) == (128, 512, 512)
    assert takes("bt-grc", "beam_size")
    assert not takes("om", "beam_size")


class FakeWorkload:
    """Steps of a second each; the lengths in `lacking` run out of memory."""

    calls: list[str]
    lacking: tuple[int, ...] = ()

    def __init__(self, case: Case, device: torch.device) -> None:
        self.case = case

    def timed_step(self) -> Timing:
        self.calls.append(self.case.model)
        if self.case.n in self.lacking and self.case.model == "naive":
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 1 bytes")
        return Timing(float(len(self.calls)), 0.5)


@pytest.fixture
def calls(monkeypatch) -> list[str]:
    monkeypatch.setattr(measure, "Workload", FakeWorkload)
    monkeypatch.setattr(measure, "peak_memory", lambda case, device: 1000 * case.n)
    FakeWorkload.calls, FakeWorkload.lacking = [], ()
    return FakeWorkload.calls


def groups_of(*lengths: int) -> list[Group]:
    return [Group("n", (Case("ebt-grc", n=n), Case("naive", n=n))) for n in lengths]


def test_models_take_turns_after_warming_up_and_the_median_counts(calls):
    said: list[tuple[float, str]] = []
    into: list[list[Measurement]] = []
    measure_groups(groups_of(10), Plan(CPU, repeat=3), into, lambda share, doing: said.append((share, doing)))
    assert calls == ["ebt-grc", "naive"] * 4
    fast, naive = into[0]
    assert [timing.seconds for timing in fast.timings] == [3.0, 5.0, 7.0]
    assert (fast.seconds, naive.seconds) == (5.0, 6.0)
    assert fast.processor_seconds == 0.5
    assert fast.tokens_per_second == 2.0
    assert fast.microseconds_a_search_step == pytest.approx(5e6 / 9)
    assert fast.peak_bytes == 10_000
    assert said[0] == (0.0, "B = 1, n = 10, ebt-grc: memory")
    assert said[-1] == (0.0, "B = 1, n = 10, naive: step 3 of 3")


def test_a_slow_model_is_stepped_less_and_not_tried_at_greater_length(calls):
    into: list[list[Measurement]] = []
    measure_groups(groups_of(10, 20), Plan(CPU, repeat=9, max_seconds=4.0, memory=False), into)
    (fast, naive), (fast_later, naive_later) = into
    assert [timing.seconds for timing in fast.timings] == [3.0, 5.0]
    assert [timing.seconds for timing in naive.timings] == [4.0]
    assert fast.seconds == 4.0
    assert fast_later.problem == naive_later.problem == "not tried: 4 s at n = 10"
    assert fast_later.seconds is None
    assert fast_later.peak_bytes is None


def test_warming_up_ends_when_the_time_is_spent(calls, monkeypatch):
    monkeypatch.setitem(measure._WARM_UP_STEPS, "cpu", 3)
    measure_groups([Group("n", (TINY,))], Plan(CPU, repeat=1, max_seconds=1.0, memory=False), [])
    assert len(calls) == 2


def test_running_out_of_memory_is_a_result_and_larger_sizes_are_not_tried(calls):
    FakeWorkload.lacking = (20, 30)
    into: list[list[Measurement]] = []
    measure_groups(groups_of(10, 20, 30), Plan(CPU, repeat=1), into)
    assert [naive.problem for _, naive in into] == [
        None,
        OUT_OF_MEMORY,
        "not tried: out of memory at n = 20",
    ]
    assert [fast.problem for fast, _ in into] == [None] * 3
    assert all(fast.seconds for fast, _ in into)


def sizes(groups: list[Group]) -> list[tuple[int, int]]:
    return [(group.cases[0].B, group.cases[0].n) for group in groups]


def test_the_quick_suite_has_the_sizes_of_the_acceptance_criteria():
    assert sizes(quick(Wanted(), "cpu")) == [(1, 500), (32, 50)]
    assert {(1, 225), (1, 950), (1, 1750), (128, 50), (128, 100), (32, 512)} <= {
        *sizes(quick(Wanted(), "cuda"))
    }
    for case in quick(Wanted(), "cpu")[0].cases:
        assert (case.d, case.K, case.inference) == (128, 5, False)
    assert [case.model for case in quick(Wanted(), "cpu")[0].cases] == ["ebt-grc", "naive"]
    assert sizes(throughput(Wanted(), "cuda")) == [(128, 50), (128, 100), (32, 512)]


def test_named_sizes_replace_the_usual_ones_and_lengths_grow():
    wanted = Wanted(("om", "ebt-grc-512"), (30, 10), (2, 4), (3,), (16,), (8,), inference=True)
    groups = quick(wanted, "cpu")
    assert sizes(groups) == [(2, 10), (2, 30), (4, 10), (4, 30)]
    om, wide = groups[0].cases
    assert om == Case("om", 2, 10, 16, None, None, True)
    assert wide == Case("ebt-grc-512", 2, 10, 512, 3, 8, True)
    assert sizes(quick(Wanted(batches=(3,)), "cpu")) == [(3, 50), (3, 500)]


def test_scaling_varies_one_size_at_a_time_and_only_where_a_model_has_it():
    groups = scaling(Wanted(models=("ebt-grc", "om")), "cpu")
    assert list(dict.fromkeys(group.varied for group in groups)) == ["n", "K", "d", "d_s"]
    for group in groups:
        models = [case.model for case in group.cases]
        assert models == (["ebt-grc", "om"] if group.varied in ("n", "d") else ["ebt-grc"])
    slices = [group.cases[0].slice_size for group in groups if group.varied == "d_s"]
    assert slices == sorted(slices)
    assert len(slices) > 2
    usual = scaling(Wanted(), "cuda")
    assert max(group.cases[0].n for group in usual) == 20_000
    assert all(case.model != "ebt-grc-noslice" for g in usual if g.varied == "d_s" for case in g.cases)


def test_scaling_sweeps_the_sizes_that_are_named():
    groups = scaling(Wanted(slices=(32, 16), lengths=(10,), batches=(2,)), "cpu")
    assert [(g.varied, g.cases[0].slice_size) for g in groups] == [("d_s", 16), ("d_s", 32)]
    assert {(case.B, case.n) for group in groups for case in group.cases} == {(2, 10)}
    wide = scaling(Wanted(models=("ebt-grc-512", "ebt-grc"), widths=(16, 32)), "cpu")
    assert [[case.model for case in group.cases] for group in wide] == [["ebt-grc"], ["ebt-grc"]]
    with pytest.raises(BeamtreeError, match="om cannot vary in K"):
        scaling(Wanted(models=("om",), beams=(2, 3)), "cpu")
    with pytest.raises(BeamtreeError, match="all is given"):
        scaling(Wanted(lengths=(8,), beams=(2,), widths=(16,), slices=(8,)), "cpu")
    with pytest.raises(BeamtreeError, match="one --batch, got 2"):
        scaling(Wanted(batches=(1, 2)), "cpu")
    with pytest.raises(BeamtreeError, match="did you mean 'naive'"):
        quick(Wanted(models=("naiv",)), "cpu")
