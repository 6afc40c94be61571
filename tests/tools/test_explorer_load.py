"""A short crowd of clients; tools/explorer_load.py is the same for a minute."""

import pytest

from tools.explorer_load import grown, main


@pytest.mark.slow
def test_a_crowd_meets_no_error_that_is_not_documented_and_memory_stays(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = "--clients 10 --seconds 4 --requests 2 --lengths 100 --growth 100"
    assert main(options.split()) == 0, capsys.readouterr().out


def test_growing_memory_is_noticed() -> None:
    assert grown([100.0] * 30) == 0
    assert grown([100.0 + second for second in range(60)]) == pytest.approx(20)
    assert grown([100.0] * 10 + [200.0] * 20) == 0  # warming up is not growing
