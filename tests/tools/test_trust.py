"""The checks of tools/trust in short; docs/reliability.md says what they do in full and what came of it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.trust.__main__ import CHECKS
from tools.trust.crowd import grown

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("check", CHECKS)
def test_a_check_in_short_finds_no_failure(check: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.trust", check, "--short", "--folder", str(tmp_path)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-2000:]
    assert f"== {check}: 0 failures" in ended.stdout


def test_growing_memory_is_noticed() -> None:
    assert grown([100.0] * 30) == 0
    assert grown([100.0 + second for second in range(60)]) == pytest.approx(20)
    assert grown([100.0] * 10 + [200.0] * 20) == 0  # warming up is not growing
