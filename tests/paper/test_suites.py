"""Which models at which sizes a suite measures."""

import pytest

from beamtree import BeamtreeError
from beamtree.paper.speed.suites import Group, Wanted, quick, scaling, throughput
from beamtree.paper.speed.workload import Case


def sizes(groups: list[Group]) -> list[tuple[int, int]]:
    return [(group[0].case.B, group[0].case.n) for group in groups]


def test_the_quick_suite_has_one_sentence_and_a_batch_in_inference_and_in_training():
    on_cpu = quick(Wanted(), "cpu")
    assert sizes(on_cpu) == [(1, 20), (1, 100), (32, 50), (1, 100), (32, 50)]
    assert [group[0].case.inference for group in on_cpu] == [True] * 3 + [False] * 2
    assert {(1, 225), (1, 950), (1, 1750), (128, 50), (128, 100), (32, 512)} <= {
        *sizes(quick(Wanted(), "cuda"))
    }
    for group in on_cpu:
        assert [one.case.model for one in group] == [
            *("ebt-grc", "nn.LSTM", "nn.TransformerEncoder", "naive")
        ]
        assert [(one.case.d, one.case.K) for one in group] == [(128, 5), (128, None), (128, None), (128, 5)]
    assert sizes(quick(Wanted(inference=True), "cpu")) == [(1, 20), (1, 100), (32, 50)]
    assert sizes(throughput(Wanted(), "cuda")) == [(128, 50), (128, 100), (32, 512)]


def test_named_sizes_replace_the_usual_ones_and_lengths_grow():
    wanted = Wanted(("om", "ebt-grc-512"), (30, 10), (2, 4), (3,), (16,), (8,), inference=True)
    groups = quick(wanted, "cpu")
    assert sizes(groups) == [(2, 10), (2, 30), (4, 10), (4, 30)]
    om, wide = (one.case for one in groups[0])
    assert om == Case("om", 2, 10, 16, None, None, True)
    assert wide == Case("ebt-grc-512", 2, 10, 512, 3, 8, True)
    assert sizes(quick(Wanted(batches=(3,)), "cpu")) == [(3, 20), (3, 50), (3, 100), (3, 50), (3, 100)]


def test_scaling_varies_one_size_at_a_time_and_only_where_a_model_has_it():
    groups = scaling(Wanted(models=("ebt-grc", "om")), "cpu")
    assert list(dict.fromkeys(group[0].varied for group in groups)) == ["n", "K", "d", "d_s"]
    for group in groups:
        models = [one.case.model for one in group]
        assert models == (["ebt-grc", "om"] if group[0].varied in ("n", "d") else ["ebt-grc"])
    slices = [group[0].case.slice_size for group in groups if group[0].varied == "d_s"]
    assert slices == sorted(slices)
    assert len(slices) > 2
    usual = scaling(Wanted(), "cuda")
    assert max(group[0].case.n for group in usual) == 20_000
    assert all(one.case.model != "ebt-grc-noslice" for g in usual for one in g if one.varied == "d_s")


def test_scaling_sweeps_the_sizes_that_are_named():
    groups = scaling(Wanted(slices=(32, 16), lengths=(10,), batches=(2,)), "cpu")
    assert [(g[0].varied, g[0].case.slice_size) for g in groups] == [("d_s", 16), ("d_s", 32)]
    assert {(one.case.B, one.case.n) for group in groups for one in group} == {(2, 10)}
    wide = scaling(Wanted(models=("ebt-grc-512", "ebt-grc"), widths=(16, 32)), "cpu")
    assert [[one.case.model for one in group] for group in wide] == [["ebt-grc"], ["ebt-grc"]]
    with pytest.raises(BeamtreeError, match="om cannot vary in K"):
        scaling(Wanted(models=("om",), beams=(2, 3)), "cpu")
    with pytest.raises(BeamtreeError, match="all are given"):
        scaling(Wanted(lengths=(8,), beams=(2,), widths=(16,), slices=(8,)), "cpu")
    with pytest.raises(BeamtreeError, match="a single --batch, got 2"):
        scaling(Wanted(batches=(1, 2)), "cpu")
    with pytest.raises(BeamtreeError, match="did you mean 'naive'"):
        quick(Wanted(models=("naiv",)), "cpu")
