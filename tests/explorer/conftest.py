"""A client of an explorer with three small models and tight limits."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def client() -> Iterator[object]:
    from explored import small_model
    from fastapi.testclient import TestClient
    from served import HERE

    from beamtree.explorer.app import create_app
    from beamtree.explorer.limits import Limits

    limits = Limits(max_tokens=50, max_beam_size=6, max_request_bytes=2000, seconds=10, workers=2, waiting=4)
    models = {"first": small_model(), "pairs": small_model(task="logic"), "plain": small_model("transformer")}
    with TestClient(create_app(models, limits, ["explorer.test"]), base_url=HERE) as client:
        yield client
