"""What docs/explorer.md says of the explorer is so."""

import re
from pathlib import Path
from typing import Any

import pytest

from beamtree.explorer.api import DOCUMENTED

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "explorer.md").read_text(encoding="utf-8")


def test_the_errors_listed_are_those_that_come() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| (.+) \|$", PAGE, re.MULTILINE)
    assert rows == [(str(error.status), error.code, error.when) for error in DOCUMENTED]


def test_its_program_rebuilds_the_search() -> None:
    known: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(block, known)
    assert known["view"]["prediction"]["label"] == "9"
    ends = [known["beams"][slot] for slot in known["search"]["final"]]
    assert [len(nodes) for nodes, _, _ in ends] == [1] * len(known["sentence"]["beams"])
    for (_, _, score), beam in zip(ends, known["sentence"]["beams"], strict=True):
        assert score == pytest.approx(beam["log_score"], abs=1e-4)
