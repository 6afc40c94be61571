"""The API under random requests, drawn from its description and from near the tasks' languages and HTTP."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import schemathesis
from explored import small_model
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)
from served import POST, connect, post, served

from beamtree.data.listops.language import TOKENS
from beamtree.data.logic import TOKENS as LOGIC_TOKENS
from beamtree.explorer.app import create_app
from beamtree.explorer.limits import Limits

EXAMPLES = int(os.environ.get("EXPLORER_FUZZ_EXAMPLES", "100"))  # of each operation
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    unsupported_method,
]
BOUNDED = settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
app = create_app(
    {"listops": small_model(), "logic": small_model(task="logic"), "om": small_model("om")},
    Limits(max_tokens=30, max_beam_size=8),
    ["testserver"],
)
schema = schemathesis.openapi.from_asgi("/openapi.json", app)


@schema.parametrize()
@BOUNDED
def test_no_request_of_the_described_kind_or_against_it_breaks_the_api(case: Any) -> None:
    case.call_and_validate(checks=CHECKS)


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(app, base_url="http://127.0.0.1") as client:
        yield client


words = st.sampled_from([*TOKENS, *LOGIC_TOKENS, "10", "[AVG", "\u2028", "\x00", "ü", "((", ""])
texts = st.lists(st.lists(words, max_size=12).map(" ".join), max_size=3)


@BOUNDED
@given(
    texts=texts,
    model=st.sampled_from(["listops", "logic", "om", None]),
    beam_size=st.none() | st.integers(-1, 10),
)
def test_texts_near_the_language_are_read_or_refused_at_a_place(
    client: TestClient, texts: list[str], model: str | None, beam_size: int | None
) -> None:
    body = {"texts": texts, "model": model, "beam_size": beam_size}
    response = client.post("/api/view", json=body)
    assert response.status_code in (200, 413, 422)
    where = response.json().get("error", {}).get("where")
    if where is not None:
        assert 0 <= where["start"] <= where["end"] <= len(texts[where["text"]])


BODY = b'{"texts": ["[MAX 2 9 ]"], "beam_size": 2}'
WHOLE = [
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: */*\r\n\r\n",
    b"GET /api/examples?model=m HTTP/1.1\r\nHost: [::1]:80\r\nX-Forwarded-For: 10.0.0.1, b\r\n\r\n",
    b"HEAD /static/app.js HTTP/1.0\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\n",
    post(BODY),
    POST
    + b"Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY),
]
pieces = st.sampled_from(
    [
        b"",
        b"\r\n",
        b"\r\n\r\n",
        b"\0",
        b"\xff",
        b" ",
        b":",
        b"%",
        b"%00",
        b"..",
        b"-1",
        b"9" * 5000,
        b"[" * 3000,
    ]
) | st.binary(max_size=6)
edits = st.lists(st.tuples(st.integers(0, 250), st.integers(0, 8), pieces), max_size=4)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with served(Limits(max_tokens=30, max_beam_size=8, seconds=5), seconds=5) as port:
        yield port


@BOUNDED
@given(request=st.lists(st.sampled_from(WHOLE), min_size=1, max_size=2).map(b"".join), edits=edits)
def test_bytes_near_http_are_answered_or_refused_and_never_an_error_of_the_server(
    port: int, request: bytes, edits: list[tuple[int, int, bytes]]
) -> None:
    for place, dropped, put in edits:
        request = request[:place] + put + request[place + dropped :]
    said = b""
    with connect(port) as client, suppress(ConnectionError, TimeoutError):  # it may wait for more, or hang up
        client.settimeout(0.1)
        client.sendall(request)
        while part := client.recv(65536):
            said += part
    for status in re.findall(rb"^HTTP/1\.1 (\d+)", said, re.MULTILINE):
        assert int(status) < 500
