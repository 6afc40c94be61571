"""What a run shows: a live line in a terminal, plain lines elsewhere, nothing where it is quiet."""

import io
from typing import Any

from rich.console import Console

from beamtree.training.display import Display

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


def shown_by(console: Console, *, again: bool = False) -> str:
    with Display(console) as display:
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


def test_quiet_is_quiet() -> None:
    assert shown_by(Console(file=io.StringIO(), force_terminal=True, quiet=True)) == ""
