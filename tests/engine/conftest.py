"""The engine searches in C where it can, and in PyTorch elsewhere: both are tested."""

from collections.abc import Iterator

import pytest

from beamtree.engine.compiled import why_not_compiled
from beamtree.pytorch.c_library import SWITCH


@pytest.fixture(scope="module", params=["in C", "in PyTorch"])
def in_c_and_in_pytorch(request: pytest.FixtureRequest) -> Iterator[None]:
    """Of a module, not of a test: property tests run a test many times with one fixture."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SWITCH, "1" if request.param == "in C" else "0")
        if request.param == "in C" and (reason := why_not_compiled()) is not None:
            pytest.skip(reason)
        yield
