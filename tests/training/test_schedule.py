"""The dev score steers a run; a signal or a limit on time or steps stops it after the current step."""

import json
import os
import signal
import threading
from typing import Any

import pytest
import torch
from small_runs import small_recipe

from beamtree.training.ranger import Ranger
from beamtree.training.schedule import Schedule, Stopping


def schedule(**training: Any) -> tuple[Schedule, Ranger]:
    settings = small_recipe(training={"learning_rate": 0.8, **training}).training
    optimizer = Ranger([torch.nn.Parameter(torch.zeros(1))], lr=settings.learning_rate)
    return Schedule(settings, optimizer), optimizer


def test_the_rate_is_halved_at_the_third_epoch_in_a_row_without_improvement() -> None:
    plan, _ = schedule()
    rates = []
    for score in (-1.0, -1.1, -1.1, -1.1, -1.1, -0.5, -0.6, -0.6, -0.6):
        plan.judge(score)
        rates.append(plan.learning_rate)
    assert rates == [0.8, 0.8, 0.8, 0.4, 0.4, 0.4, 0.4, 0.4, 0.2]


@pytest.mark.parametrize(("grown", "rate"), [(50.004, 0.4), (50.006, 0.8)])
def test_for_the_rate_an_improvement_is_more_than_a_ten_thousandth_of_the_best(
    grown: float, rate: float
) -> None:
    plan, _ = schedule()
    for score in (50.0, grown, 50.0, 50.0):
        plan.judge(score)
    assert plan.learning_rate == rate


def test_an_epoch_is_better_only_by_more_than_a_ten_thousandth() -> None:
    plan, _ = schedule()
    assert plan.judge(1.0)
    assert not plan.judge(1.0001)
    assert plan.judge(1.00011)
    assert plan.best_score == 1.00011


def test_patience_4_ends_a_run_after_the_5th_epoch_without_improvement() -> None:
    plan, _ = schedule()
    plan.judge(1.0)
    exhausted = []
    for _ in range(5):
        plan.judge(0.5)
        exhausted.append(plan.exhausted)
    assert exhausted == [False, False, False, False, True]
    plan.judge(2.0)
    assert not plan.exhausted


def test_the_score_is_accuracy_in_percent_or_minus_the_loss() -> None:
    assert schedule(selection="accuracy")[0].score(0.3, 0.9) == 90.0
    assert schedule(selection="loss")[0].score(0.3, 0.9) == -0.3


def test_a_restored_schedule_continues_as_the_first_would_have() -> None:
    scores = [-1.0, -0.9, -0.95, -0.95, -0.95, -0.8, *[-0.9] * 6]  # patience ends with the last but one
    for cut in range(len(scores)):
        whole, _ = schedule()
        outcomes = [(whole.judge(score), whole.learning_rate, whole.exhausted) for score in scores]
        assert [exhausted for *_, exhausted in outcomes[-3:]] == [False, True, True]
        first, optimizer = schedule()
        for score in scores[:cut]:
            first.judge(score)
        second, other = schedule()
        second.restore(json.loads(json.dumps(first.state(), allow_nan=False)))
        other.load_state_dict(optimizer.state_dict())
        rest = [(second.judge(score), second.learning_rate, second.exhausted) for score in scores[cut:]]
        assert rest == outcomes[cut:]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_after_the_step_and_a_second_one_at_once(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with Stopping() as stopping:
        assert stopping.reason is None
        os.kill(os.getpid(), number)
        assert stopping.reason == f"stopped by {number.name}"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_after_the_block_a_signal_reaches_the_handler_that_was_there_before(number: signal.Signals) -> None:
    reached: list[int] = []
    before = signal.signal(number, lambda number, frame: reached.append(number))
    try:
        with Stopping():
            os.kill(os.getpid(), number)
        assert reached == []
        assert callable(signal.getsignal(number)), "the signal would end the tests"
        os.kill(os.getpid(), number)
    finally:
        signal.signal(number, before)
    assert reached == [number]


def test_minutes_are_counted_from_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("beamtree.training.schedule.time.monotonic", lambda: now)
    stopping = Stopping(minutes=2)
    now += 119
    assert stopping.reason is None
    now += 1
    assert stopping.reason == "stopped after 2 minutes, as asked"


def test_signals_keep_their_meaning_outside_the_main_thread() -> None:
    def enter() -> None:
        with Stopping() as stopping:
            found.append(stopping.reason)

    found: list[str | None] = []
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert found == [None]
