"""What a run shows: a live line in a terminal, plain lines elsewhere, nothing where it is quiet."""

import io
from typing import Any

import pytest
from rich.console import Console

from beamtree.training.display import Display, in_words

RECORD: dict[str, Any] = {
    "epoch": 2,
    "train_loss": 0.5,
    "train_accuracy": 0.81,
    "dev_loss": 0.6,
    "dev_accuracy": 0.7925,
    "tokens_per_second": 12345.6,
    "seconds": 3.2,
    "best": True,
}
LINES = """\
  epoch     loss  accuracy  dev loss  dev accuracy  tokens/s  seconds
   2/10   0.5000     81.0%    0.6000        79.25%    12,346      3.2  best
"""


def shown_by(console: Console, *, again: bool = False, run: str | None = None) -> str:
    with Display(console, run=run) as display:
        for epoch in (1, 2):
            display.begin_epoch(epoch, 10, steps=5, done=1)
            display.show(3, loss=0.25, accuracy=0.875, tokens_per_second=999.6)
        display.end_epoch(RECORD, 10)
        if again:
            display.end_epoch({**RECORD, "epoch": 10, "best": False}, 10)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_a_terminal_shows_epoch_loss_accuracy_speed_and_time_left() -> None:
    shown = shown_by(Console(file=io.StringIO(), force_terminal=True, width=80))
    for part in ("epoch 2/10", "3/5", "loss 0.2500", "accuracy 87.5%", "1,000 tokens/s", "-:--:--"):
        assert part in shown
    for line in LINES.splitlines():
        assert line in shown


def test_elsewhere_there_is_one_plain_line_an_epoch_never_wrapped_under_one_heading() -> None:
    assert shown_by(Console(file=io.StringIO(), width=40)) == LINES
    longer = shown_by(Console(file=io.StringIO(), width=40), again=True)
    last = "  10/10   0.5000     81.0%    0.6000        79.25%    12,346      3.2\n"
    assert longer == LINES + last
    assert max(map(len, longer.splitlines())) <= 80


def test_one_run_among_many_has_its_name_beside_the_bar_and_leaves_no_lines() -> None:
    shown = shown_by(Console(file=io.StringIO(), force_terminal=True, width=80), run="om-seed1")
    assert "om-seed1, epoch 2/10" in shown
    assert "dev loss" not in shown
    assert shown_by(Console(file=io.StringIO()), run="om-seed1") == ""


def test_quiet_is_quiet() -> None:
    assert shown_by(Console(file=io.StringIO(), force_terminal=True, quiet=True)) == ""


class Clock:
    """Stands still until it is told otherwise."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def lines_of(
    seconds_a_step: float, steps: int, *, first_step: float = 0.0, done: int = 0, terminal: bool = False
) -> list[str]:
    """What an epoch of so many steps leaves in a log, or in a terminal; the first step may take longer."""
    file, clock = io.StringIO(), Clock()
    with Display(Console(file=file, force_terminal=terminal, width=200), clock=clock) as display:
        display.begin_epoch(3, 20, steps, done)
        clock.now += first_step
        for step in range(done + 1, steps + 1):
            clock.now += seconds_a_step
            display.show(step, loss=0.25, accuracy=0.875, tokens_per_second=999.6)
    return file.getvalue().splitlines()


def test_an_epoch_is_estimated_once_before_it_ends_without_its_first_step() -> None:
    for terminal in (False, True):
        for first_step in (0.0, 300.0):
            lines = lines_of(0.4, 100, first_step=first_step, terminal=terminal)
            told = [line for line in lines if "an epoch takes" in line]
            assert len(told) == 1
            assert "about 40 s, without its dev examples; at most 18 to go: 12 min" in told[0]


def test_an_epoch_that_ends_at_once_is_not_estimated_and_a_resumed_one_by_its_own_steps() -> None:
    assert lines_of(0.04, 100) == []
    assert lines_of(0.4, 100, done=60)[0].startswith("an epoch takes about 40 s")


def test_every_run_has_an_estimate_of_its_own() -> None:
    file, clock = io.StringIO(), Clock()
    display = Display(Console(file=file, width=200), clock=clock)
    for seconds in (1, 2):
        with display:
            for epoch in (1, 2):
                display.begin_epoch(epoch, 2, steps=20, done=0)
                for step in range(1, 21):
                    clock.now += seconds
                    display.show(step, loss=0.25, accuracy=0.875, tokens_per_second=999.6)
    told = [line for line in file.getvalue().splitlines() if "an epoch takes" in line]
    assert [line.split(",")[0] for line in told] == ["an epoch takes about 20 s", "an epoch takes about 40 s"]


@pytest.mark.parametrize(
    ("seconds_a_step", "steps", "wanted"),
    [
        (1.0, 100, 3),  # every 30 seconds, at 30, 60 and 90 %
        (0.01, 100_000, 9),  # every 10 % of 1000 seconds, however often it looks
        (60.0, 20, 9),  # every 10 % of 20 minutes, not every 30 seconds
        (0.25, 100, 0),  # over before a line is due
    ],
)
def test_a_log_gets_a_line_every_half_minute_or_tenth_of_an_epoch(
    seconds_a_step: float, steps: int, wanted: int
) -> None:
    lines = [line for line in lines_of(seconds_a_step, steps) if "%: loss" in line]
    assert len(lines) == wanted
    assert len(set(lines)) == wanted


def test_a_line_of_a_log_says_how_far_the_epoch_is_and_what_is_left() -> None:
    line = next(line for line in lines_of(1.0, 100) if "%: loss" in line)
    assert line == "   3/20  30%: loss 0.2500 accuracy 87.5% 1,000 tokens/s, about 70 s left"


def test_a_terminal_has_its_bar_and_no_lines_of_a_log() -> None:
    shown = "\n".join(lines_of(1.0, 100, terminal=True))
    assert "100/100" in shown
    assert "%: loss" not in shown


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.4, "0 s"), (89, "89 s"), (90, "2 min"), (5399, "90 min"), (9000, "2.5 h")]
)
def test_time_in_words(seconds: float, words: str) -> None:
    assert in_words(seconds) == words
