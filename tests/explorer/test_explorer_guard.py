"""What guards the explorer: headers of every answer, the names it is served by, limits on what is asked."""

import pytest
from fastapi.testclient import TestClient
from served import refusal

from beamtree.explorer.server import SECURITY_HEADERS


def test_every_answer_carries_the_security_headers_and_allows_no_other_origin(client: TestClient) -> None:
    from_elsewhere = {"Origin": "https://elsewhere.example"}
    preflight = {**from_elsewhere, "Access-Control-Request-Method": "POST"}
    for response in [
        client.get("/", headers=from_elsewhere),
        client.get("/api/models", headers=from_elsewhere),
        client.post("/api/view", json={"texts": ["2"]}, headers=from_elsewhere),
        client.options("/api/view", headers=preflight),
        client.get("/nothing"),
        client.get("/", headers={"Host": "elsewhere.example"}),
    ]:
        assert {name: response.headers[name] for name in SECURITY_HEADERS} == SECURITY_HEADERS
        assert not [name for name in response.headers if name.startswith("access-control")]
        assert "server" not in response.headers


def test_scripts_and_styles_of_the_page_itself_are_all_that_a_browser_may_run(client: TestClient) -> None:
    policy = client.get("/").headers["content-security-policy"]
    allowed = {name: sources for name, *sources in (part.split() for part in policy.split(";"))}
    assert allowed.pop("img-src") == ["'self'", "data:", "blob:"]
    for name in ("default-src", "base-uri", "form-action", "frame-ancestors"):
        assert allowed.pop(name) == ["'none'"]
    assert set(map(tuple, allowed.values())) == {("'self'",)}
    headers = client.get("/").headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["cross-origin-opener-policy"] == headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize(
    "host",
    [
        "elsewhere.example",
        "localhost",  # not among the names that these tests serve
        "localhost.elsewhere.example",
        "127.0.0.1.nip.io",
        "",
        "evilexplorer.test",
        "evil.explorer.test",
        "explorer.test.evil.example",
        "explorer.tes",
        "test",
        ".explorer.test",
        "explorer.test.",
        "[explorer.test]",
        "explorer.test@elsewhere.example",
        "elsewhere.example@explorer.test",
        "explorer.test,elsewhere.example",
        "127.0.0.1:elsewhere.example",
        "127.0.0.1:80/elsewhere.example",
        "127.0.0.1elsewhere.example",
        "[fe80::1%elsewhere.example]",
        "[::1",
        "::1",
        "2130706433",
        "0x7f.0.0.1",
    ],
)
def test_a_foreign_host_name_is_refused_so_that_rebinding_gains_nothing(
    client: TestClient, host: str
) -> None:
    refusal(client.get("/api/models", headers={"Host": host}), 400, "bad_request")


@pytest.mark.parametrize("host", ["127.0.0.1:8765", "127.0.0.1", "[::1]:8765", "[::1]", "Explorer.test:80"])
def test_addresses_and_known_names_are_served(client: TestClient, host: str) -> None:
    assert client.get("/api/models", headers={"Host": host}).status_code == 200


def test_an_address_and_headers_that_are_too_long_are_refused(client: TestClient) -> None:
    refusal(client.get("/api/models", headers={"X-Long": "a" * 20_000}), 431, "too_large")
    refusal(client.get("/api/models", headers={f"X-{i}": "a" * 100 for i in range(200)}), 431, "too_large")
    refusal(client.get("/api/examples?model=" + "a" * 20_000), 431, "too_large")
    refusal(client.get("/" + "a" * 20_000), 431, "too_large")
    assert client.get("/api/models", headers={"X-Long": "a" * 10_000}).status_code == 200


def test_no_answer_sends_a_browser_elsewhere(client: TestClient) -> None:
    for path in ("/api/models/", "/api/", "/static/app.js/"):
        response = client.get(path, follow_redirects=False)
        refusal(response, 404, "not_found")
        assert "location" not in response.headers
