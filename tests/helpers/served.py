"""An explorer in this process, on a port of this machine or without one, and what a refusal looks like."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from explored import small_model

from beamtree.classifier.classifier import Classifier
from beamtree.explorer.api import DOCUMENTED
from beamtree.explorer.app import create_app
from beamtree.explorer.limits import Limits
from beamtree.explorer.server import make_server

HERE = "http://127.0.0.1:8765"  # of one that listens nowhere
POST = b"POST /api/view HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


@contextmanager
def served(
    limits: Limits | None = None, models: dict[str, Classifier] | None = None, **bounds: Any
) -> Iterator[int]:
    """The port of an explorer in this process, with these bounds on connections; of a small model if none
    are given."""
    server = make_server(create_app(models or {"m": small_model()}, limits), **bounds)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        wait_until(lambda: server.started)
        try:
            yield port
        finally:
            server.should_exit = True
            thread.join(30)


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=60)


def post(body: bytes) -> bytes:
    """A whole request."""
    return POST + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


def wait_until(happened: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


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
