"""A contest is carried out: trials choose rates, runs resume, others' runs are left alone, little is kept."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import beamtree.compare.work as work_module
from beamtree.compare.contest import Contest, find_contest, plan
from beamtree.compare.outcome import read_outcome
from beamtree.compare.work import DIVERGED, Work, draw_some
from beamtree.data.filters_draws import generate_filters
from beamtree.data.task import Example, find_task
from beamtree.errors import BeamtreeError
from beamtree.training.examples import LearningData, find_sources
from beamtree.training.fit import create_accelerator
from beamtree.training.run_folder import RunFolder
from beamtree.training.schedule import Stopping

TASK = find_task("filters")
SMALL = replace(
    find_contest(TASK),
    points={"1": "depth1", "2": "depth2", "9": "depth9"},
    inside=2,
    d_model=32,
    batch_size=8,
    rates=(1e-3, 1e-2),
    steps=10,
    most_test=4,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("filters")
    generate_filters(made, seed=0, train=20, dev=8, test=6)
    return made


def begin(folder: Path, out: Path, contest: Contest = SMALL, models=("bilstm",), seeds: int = 1) -> Work:
    train, dev = (list(TASK.read(folder, split)) for split in ("train", "dev"))
    sources = find_sources(TASK, [folder], list(contest.points.values()))
    return Work(
        contest,
        plan(contest, models, seeds),
        out,
        LearningData(TASK, train, dev),
        sources,
        create_accelerator(),
        lambda _: None,
    )


def test_trials_choose_the_rate_and_ended_runs_are_small(folder: Path, tmp_path: Path) -> None:
    assert begin(folder, tmp_path, seeds=2).run(Stopping())
    trials = [read_outcome(tmp_path / f"bilstm-rate{rate:g}") for rate in SMALL.rates]
    best = max(trial.dev_accuracy for trial in trials)
    for seed in (0, 1):
        kept = read_outcome(tmp_path / f"bilstm-seed{seed}")
        assert kept.learning_rate in [trial.learning_rate for trial in trials if trial.dev_accuracy == best]
        assert {name: split.examples for name, split in kept.splits.items()} == {
            "depth1": 4,
            "depth2": 4,
            "depth9": 4,
            "train": 20,
        }
        assert (kept.seed, kept.epochs) == (seed, 3)
        assert kept.parameters > 1000
        assert kept.peak_bytes > 1_000_000
        assert kept.splits["depth9"].by_depth[0][0] == 9
    assert all(trial.splits == {} for trial in trials)
    left = {path.name for path in (tmp_path / "bilstm-seed0").iterdir()}
    assert left == {"recipe.toml", "metrics.jsonl", "outcome.json", "best"}
    assert "best" not in {path.name for path in (tmp_path / "bilstm-rate0.01").iterdir()}


def test_an_interrupted_run_ends_as_if_it_had_not_been(folder: Path, tmp_path: Path) -> None:
    contest = replace(SMALL, rates=(1e-2,))
    assert begin(folder, tmp_path / "whole", contest).run(Stopping())
    assert not begin(folder, tmp_path / "parts", contest).run(Stopping(steps=4))
    assert read_outcome(tmp_path / "parts" / "bilstm-seed0") is None
    assert begin(folder, tmp_path / "parts", contest).run(Stopping())
    whole, parts = (read_outcome(tmp_path / name / "bilstm-seed0") for name in ("whole", "parts"))
    assert replace(parts, minutes=0, peak_bytes=0) == replace(whole, minutes=0, peak_bytes=0)


def test_ended_runs_are_not_done_again(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contest = replace(SMALL, rates=(1e-2,))
    begin(folder, tmp_path, contest).run(Stopping())
    monkeypatch.setattr(work_module, "fit", None)
    assert begin(folder, tmp_path, contest).run(Stopping())


def test_a_file_that_is_added_or_changed_is_tested_without_learning_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contest = replace(SMALL, rates=(1e-2,))
    begin(folder, tmp_path, replace(contest, points={"1": "depth1", "2": "depth2"})).run(Stopping())
    before = read_outcome(tmp_path / "bilstm-seed0")
    monkeypatch.setattr(work_module, "fit", None)
    assert begin(folder, tmp_path, contest).run(Stopping())
    more = read_outcome(tmp_path / "bilstm-seed0")
    assert more == replace(before, splits=before.splits | {"depth9": more.splits["depth9"]})
    changed = begin(folder, tmp_path, contest)
    wrong = [
        Example(example.sentences, {"true": "false"}.get(example.label, "true"))
        for example in changed.tests[2].read()
    ]
    changed.tests[2] = replace(changed.tests[2], read=lambda: iter(wrong))
    assert changed.run(Stopping())
    turned = read_outcome(tmp_path / "bilstm-seed0")
    assert turned.splits["depth9"].accuracy == pytest.approx(1 - more.splits["depth9"].accuracy)
    shutil.rmtree(tmp_path / "bilstm-seed0" / "best")
    with pytest.raises(BeamtreeError, match=r"was not tested on the present depth9.* delete"):
        begin(folder, tmp_path, contest).run(Stopping())


def test_a_row_that_cannot_be_read_is_said_before_anything_is_learnt(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work_module, "fit", None)
    work = begin(folder, tmp_path)

    def fail() -> Iterator[Example]:
        raise BeamtreeError("line 3: the label is 'Z'")

    work.tests[1] = replace(work.tests[1], read=fail)
    with pytest.raises(BeamtreeError, match="line 3"):
        work.run(Stopping())


def test_a_run_that_another_process_holds_is_left_to_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contest = replace(SMALL, rates=(1e-2,))
    theirs = begin(folder, tmp_path, contest, models=("bilstm", "s4d"))
    held = RunFolder(tmp_path / "bilstm-seed0").held()
    held.__enter__()
    slept: list[float] = []

    def sleep(seconds: float) -> None:  # the other process ends while this one waits
        slept.append(seconds)
        assert read_outcome(tmp_path / "s4d-seed0") is not None
        held.__exit__(None, None, None)

    monkeypatch.setattr(work_module.time, "sleep", sleep)
    assert theirs.run(Stopping())
    assert len(slept) == 1


def test_a_single_run_needs_its_trials(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(
        BeamtreeError, match=r"bilstm-seed0 still needs a learning rate: do the run bilstm-rate0\.001"
    ):
        begin(folder, tmp_path).run(Stopping(), ["bilstm-seed0"])
    assert begin(folder, tmp_path).run(Stopping(), ["bilstm-rate0.001", "bilstm-rate0.01"])
    assert begin(folder, tmp_path).run(Stopping(), ["bilstm-seed0"])
    with pytest.raises(BeamtreeError, match=r"no run 'bilstm-seed7'; did you mean 'bilstm-seed0'\?"):
        begin(folder, tmp_path).run(Stopping(), ["bilstm-seed7"])


def test_a_folder_of_other_rules_is_refused(folder: Path, tmp_path: Path) -> None:
    contest = replace(SMALL, rates=(1e-2,))
    begin(folder, tmp_path, contest).run(Stopping())
    before = (tmp_path / "bilstm-seed0" / "outcome.json").read_bytes()
    for other in (replace(contest, steps=30), replace(contest, rates=(1e-3,)), replace(contest, d_model=40)):
        with pytest.raises(
            BeamtreeError, match="was begun with other settings: name another folder with --out"
        ):
            begin(folder, tmp_path, other).run(Stopping())
    assert (tmp_path / "bilstm-seed0" / "outcome.json").read_bytes() == before


def test_a_run_that_diverges_is_kept_as_such_and_its_rate_not_chosen(folder: Path, tmp_path: Path) -> None:
    contest = replace(SMALL, rates=(1e-2, 1e30))
    assert begin(folder, tmp_path, contest).run(Stopping())
    assert read_outcome(tmp_path / "bilstm-rate1e+30").end == DIVERGED
    assert read_outcome(tmp_path / "bilstm-seed0").learning_rate == 1e-2


def test_a_part_of_the_data_is_drawn_from_all_of_it_and_does_not_depend_on_its_order() -> None:
    examples = [Example((("1",) * length,), "true") for length in range(1, 201)]
    some = draw_some(examples, 50)
    assert len(some) == 50
    assert 70 < sum(len(example.sentences[0]) for example in some) / 50 < 130
    assert draw_some(examples[::-1], 50) == some
    assert draw_some(examples, None) == draw_some(examples, 200) == examples
