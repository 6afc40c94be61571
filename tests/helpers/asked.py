"""The explorer asked over HTTP without a server: where it is, and what every refusal looks like."""

from typing import Any

from beamtree.explorer.api import DOCUMENTED

HERE = "http://127.0.0.1:8765"


def refusal(response: Any, status: int, code: str) -> dict[str, Any]:
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    (error,) = response.json().values()
    assert error.keys() == {"status", "code", "message", "where"}
    assert (error["status"], error["code"]) == (status, code)
    assert (status, code) in {(known.status, known.code) for known in DOCUMENTED}
    assert error["message"].strip()
    assert "Traceback" not in response.text
    return error
