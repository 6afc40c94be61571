"""Stopping: by a signal after the step at hand, or after the minutes that were asked for."""

import os
import signal
import threading

import pytest

from beamtree.training.schedule import Stopping


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
