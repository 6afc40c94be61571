"""The explorer over HTTP: what it answers, what it refuses and in which words."""

import asyncio
import json
import logging
import re
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from explored import small_model
from fastapi.testclient import TestClient
from served import HERE, refusal

import beamtree.explorer.app as explorer
from beamtree.data.own import OwnFormat
from beamtree.errors import BeamtreeError
from beamtree.explorer.api import DOCUMENTED, Examples, Models, View
from beamtree.explorer.app import create_app
from beamtree.explorer.limits import Limits
from beamtree.explorer.models import examples_for
from beamtree.explorer.pages import read_assets


def test_models_and_limits_are_listed_the_default_first(client: TestClient) -> None:
    answer = client.get("/api/models").json()
    Models.model_validate(answer)
    assert [card["name"] for card in answer["models"]] == ["first", "pairs", "plain"]
    assert answer["limits"] == {
        "max_tokens": 50,
        "max_beam_size": 6,
        "max_request_bytes": 2000,
        "seconds": 10,
    }


def test_every_example_that_is_short_enough_can_be_viewed(client: TestClient) -> None:
    for name in ("first", "pairs", "plain"):
        answer = client.get("/api/examples", params={"model": name}).json()
        Examples.model_validate(answer)
        assert answer["model"] == name
        for example in answer["examples"]:
            response = client.post("/api/view", json={"model": name, "texts": example["texts"]})
            assert response.status_code == (200 if len(example["texts"][0].split()) <= 50 else 413)
    assert client.get("/api/examples").json()["model"] == "first"


def test_examples_speak_of_what_the_model_knows() -> None:
    knowing = small_model(task="snli")
    assert [ready.title for ready in examples_for(knowing)] == ["follows"]
    assert len(examples_for(small_model(task="filters"))) == 4
    assert examples_for(small_model(task=OwnFormat(labels=("no", "yes")).task())) == []


def test_a_view_is_answered_as_described(client: TestClient) -> None:
    response = client.post("/api/view", json={"texts": ["[MAX 2 9 [MIN 4 7 ] 0 ]"], "beam_size": 3})
    assert response.status_code == 200
    view = response.json()
    View.model_validate(view)
    assert view["model"]["name"] == "first"
    assert view["model"]["beam_size"] == view["sentences"][0]["search"]["beam_size"] == 3


@pytest.mark.parametrize(
    ("request_body", "status", "code", "message"),
    [
        ({"texts": ["[MAX 2 x ]"]}, 422, "unreadable", "unknown token 'x' at position 3"),
        ({"texts": ["[MAX " + "1 " * 60 + "]"]}, 413, "too_long", "62 tokens exceed the limit of 50"),
        ({"texts": ["2"], "model": "second"}, 404, "no_such_model", "no model 'second' here"),
        ({"texts": ["2"], "beam_size": 7}, 422, "invalid", "at most 6"),
        ({"texts": ["2"], "beam_size": 0}, 422, "invalid", "beam_size: "),
        ({"texts": ["2"], "beam_size": True}, 422, "invalid", "beam_size: "),
        ({"texts": ["2"], "model": "plain", "beam_size": 2}, 422, "invalid", "does not apply to the encoder"),
        ({"texts": ["2", "3"]}, 422, "invalid", "takes one text"),
        ({"texts": []}, 422, "invalid", "texts: "),
        ({"texts": [5]}, 422, "invalid", "texts.0: "),
        ({"texts": ["2"], "extra": 1}, 422, "invalid", "extra: "),
        ({"texts": ["2"], "\ud800": 1}, 422, "invalid", "unicode"),
        ({"texts": ["\ud800"]}, 422, "unreadable", "unknown token"),
        ({}, 422, "invalid", "texts: "),
        ([], 422, "invalid", ""),
        ({"texts": ["1 " * 2000]}, 413, "too_large", "2,000 bytes"),
    ],
)
def test_a_wrong_request_is_refused_in_words(
    client: TestClient, request_body: Any, status: int, code: str, message: str
) -> None:
    body = json.dumps(request_body)
    response = client.post("/api/view", content=body, headers={"Content-Type": "application/json"})
    assert message in refusal(response, status, code)["message"]


def test_the_offending_token_is_named_by_its_place(client: TestClient) -> None:
    response = client.post("/api/view", json={"texts": ["[MAX 2 x ]"]})
    assert refusal(response, 422, "unreadable")["where"] == {"text": 0, "token": 2, "start": 7, "end": 8}


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[" * 1900, b"1" * 1900, b'{"texts": NaN}'])
def test_a_body_that_is_no_json_is_refused(client: TestClient, body: bytes) -> None:
    response = client.post("/api/view", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code in (400, 422)
    refusal(response, response.status_code, "invalid" if response.status_code == 422 else "bad_request")


def test_a_body_that_is_not_declared_as_json_is_refused(client: TestClient) -> None:
    for kind in ({"Content-Type": "text/plain"}, {"Content-Type": "application/x-www-form-urlencoded"}, {}):
        response = client.post("/api/view", content=b'{"texts": ["2"]}', headers=kind)
        refusal(response, 415, "not_json")


@pytest.mark.parametrize(
    "kind", ["application/json; charset=utf-8", "application/json;charset=UTF-8", "Application/JSON ; a=b"]
)
def test_a_body_declared_as_json_with_parameters_is_read(client: TestClient, kind: str) -> None:
    response = client.post("/api/view", content=b'{"texts": ["2"]}', headers={"Content-Type": kind})
    assert response.status_code == 200
    assert response.json()["sentences"][0]["tokens"] == ["2"]


def test_a_body_in_pieces_is_limited_too(client: TestClient) -> None:
    pieces = (b" " * 500 for _ in range(10))
    response = client.post("/api/view", content=pieces, headers={"Content-Type": "application/json"})
    refusal(response, 413, "too_large")
    for length in ("9" * 30, "2001"):
        refusal(client.get("/api/models", headers={"Content-Length": length}), 413, "too_large")
    refusal(client.get("/api/models", headers={"Content-Length": "-1"}), 400, "bad_request")


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "/static/../app.py",
        "/static/..%2f..%2fapp.py",
        "/static/%2e%2e/%2e%2e/pyproject.toml",
        "/static//etc/passwd",
        "/static/index.html%00.js",
        "/static/",
        "/static",
        "/docs",
        "/redoc",
        "/app.py",
        "/api/nothing",
    ],
)
def test_no_other_path_can_be_read(client: TestClient, path: str) -> None:
    refusal(client.get(path), 404, "not_found")


def test_other_methods_are_refused(client: TestClient) -> None:
    for method, path in [("DELETE", "/api/view"), ("GET", "/api/view"), ("PUT", "/api/models")]:
        response = client.request(method, path, headers={"Content-Type": "application/json"})
        refusal(response, 405, "method_not_allowed")
        assert response.headers["allow"]


def test_the_page_and_its_files_are_served_with_their_types(client: TestClient) -> None:
    assets = read_assets()
    assert client.get("/").content == assets["index.html"].content
    assert client.head("/").status_code == 200
    for name, asset in assets.items():
        if name != "index.html":
            response = client.get(f"/static/{name}")
            assert response.content == asset.content
            assert response.headers["content-type"] == asset.kind


def test_only_files_of_known_kinds_are_read(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("index.html", "deep/a.js", "b.py", "notes"):
        (tmp_path / name).write_text(name)
    assert set(read_assets(tmp_path)) == {"index.html", "deep/a.js"}


def test_the_description_needs_nothing_from_elsewhere_and_names_every_error(client: TestClient) -> None:
    page = client.get("/api").text
    assert "http" not in page.replace("https://", "http")
    for error in DOCUMENTED:
        assert f"<td><code>{error.code}</code></td>" in page
    for address in ("GET /api/models", "GET /api/examples", "POST /api/view"):
        assert address in page
    assert 'href="static/api.css"' in page  # one of the page's files


def test_the_errors_listed_in_the_docs_are_those_that_come() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "explorer.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| (.+) \|$", page, re.MULTILINE)
    assert rows == [(str(error.status), error.code, error.when) for error in DOCUMENTED]


def test_a_mistake_of_the_server_is_told_without_its_trace(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("secret detail")

    caplog.set_level(logging.ERROR, "beamtree.explorer")  # as without --debug
    monkeypatch.setattr(explorer, "make_view", fail)
    with TestClient(create_app({"m": small_model()}), base_url=HERE) as client:
        response = client.post("/api/view", json={"texts": ["2"]})
        refusal(response, 500, "internal")
        assert "secret" not in response.text
    assert [record.getMessage() for record in caplog.records] == ["POST '/api/view' failed: RuntimeError"]
    assert "Traceback" not in caplog.text


def test_a_computation_over_the_time_limit_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    def dawdle(*_: Any, **__: Any) -> None:
        while True:
            time.sleep(0.01)

    monkeypatch.setattr(explorer, "make_view", dawdle)
    limits = Limits(seconds=0.2, workers=1, waiting=0)
    with TestClient(create_app({"m": small_model()}, limits), base_url=HERE) as client:
        response = client.post("/api/view", json={"texts": ["2"]})
        assert "0.2 s" in refusal(response, 503, "too_slow")["message"]
        assert int(response.headers["retry-after"]) > 0


def test_a_crowd_is_told_when_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    import httpx

    released = threading.Event()

    def dawdle(*_: Any, **__: Any) -> dict[str, Any]:
        released.wait(60)
        return {}

    async def crowd() -> list[httpx.Response]:
        app = create_app({"m": small_model()}, Limits(workers=2, waiting=1, seconds=60))
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url=HERE) as client:
            posts = [client.post("/api/view", json={"texts": ["2"]}) for _ in range(6)]
            calls = [asyncio.create_task(post) for post in posts]
            while sum(call.done() for call in calls) < 3:
                await asyncio.sleep(0.01)
            released.set()
            return await asyncio.gather(*calls)

    monkeypatch.setattr(explorer, "make_view", dawdle)
    responses = asyncio.run(crowd())
    assert sorted(response.status_code for response in responses) == [200, 200, 200, 429, 429, 429]
    for response in responses:
        if response.status_code == 429:
            refusal(response, 429, "busy")
            assert int(response.headers["retry-after"]) > 0


def sent_for(receive: Callable[[], Awaitable[dict[str, Any]]]) -> list[dict[str, Any]]:
    """What the app sends to a client whose body comes this way."""
    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/api/view", "headers": headers, "query_string": b""}
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(create_app({"m": small_model()}, Limits(seconds=0.1))(scope, receive, send))
    return sent


def test_a_body_that_never_ends_is_given_up() -> None:
    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0.03)
        return {"type": "http.request", "body": b" ", "more_body": True}

    sent = sent_for(receive)
    assert sent[0]["status"] == 408
    assert json.loads(sent[1]["body"])["error"]["code"] == "too_late"


def test_a_client_that_leaves_in_the_middle_of_its_body_asked_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    computed: list[Any] = []
    monkeypatch.setattr(explorer, "make_view", lambda *arguments, **_: computed.append(arguments))
    messages = [
        {"type": "http.disconnect"},
        {"type": "http.request", "body": b'{"texts": ["2"]}', "more_body": True},
    ]

    async def receive() -> dict[str, Any]:
        return messages.pop() if len(messages) > 1 else messages[0]

    assert sent_for(receive) == []
    assert not computed


def test_a_number_that_json_does_not_have_is_told_as_none_and_is_no_figure() -> None:
    model = small_model()
    model.notes = {"epoch": 3, "dev_accuracy": float("nan"), "train_accuracy": float("inf")}
    model.settings.options["own"] = {"rate": [float("-inf"), 0.5]}
    with TestClient(create_app({"m": model}), base_url=HERE) as client:
        for response in (client.get("/api/models"), client.post("/api/view", json={"texts": ["2"]})):
            json.loads(response.text, parse_constant=pytest.fail)
    card = client.get("/api/models").json()["models"][0]
    assert card["figures"] == {"epoch": 3}
    assert card["settings"]["options"]["own"] == {"rate": [None, 0.5]}


def test_a_heap_of_accents_costs_no_time_and_is_refused_at_its_place() -> None:
    heap = "\u0301" * 15_000 + "\u0316" * 15_000  # to be put in order, which takes seconds
    with TestClient(create_app({"m": small_model(task="sst5")}), base_url=HERE) as client:
        begun = time.perf_counter()
        body = json.dumps({"texts": ["a man" + heap]}, ensure_ascii=False).encode()
        response = client.post("/api/view", content=body, headers={"Content-Type": "application/json"})
        assert time.perf_counter() - begun < 1
        where = refusal(response, 422, "unreadable")["where"]
        assert where == {"text": 0, "token": None, "start": 4, "end": 36}
        response = client.post("/api/view", json={"texts": [heap[:31]]})
        assert refusal(response, 422, "unreadable")["where"]["start"] == 0
        assert client.post("/api/view", json={"texts": ["a man" + heap[:30]]}).status_code == 200


def test_an_explorer_without_a_model_is_refused() -> None:
    with pytest.raises(BeamtreeError, match="no model to explore"):
        create_app({})
