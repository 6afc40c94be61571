"""`beamtree serve` as people start it: quick, one line, and no trace whatever happens."""

import json
import logging
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from explored import small_model
from fastapi.testclient import TestClient
from served import connect, post
from typer.testing import CliRunner

from beamtree.classifier.model_folder import save_model
from beamtree.cli import app
from beamtree.errors import BeamtreeError
from beamtree.explorer.models import add_untrained, describe_model, load_models

LIMITS = shlex.split("--max-tokens 40000 --max-request-bytes 100000 --seconds 300 --workers 1 --waiting 0")
ENDLESS = post(json.dumps({"model": "slow", "texts": ["[MAX " + "7 " * 30_000 + "]"]}).encode())


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of an explorer with one worker; in the end Ctrl-C comes in the middle of a computation."""
    slow = tmp_path_factory.mktemp("models") / "slow"
    save_model(small_model("om").float(), slow)
    command = [sys.executable, "-m", "beamtree.cli", "serve", "listops-ebt-grc", slow, "--port", "0", *LIMITS]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            line = process.stdout.readline() if process.stdout is not None else ""
            found = re.fullmatch(
                r"beamtree explorer: (http://127\.0\.0\.1:\d+/)  \(Ctrl-C stops it\)\n", line
            )
            assert found, line
            yield found.group(1)
            with connection(found.group(1)) as client:
                client.sendall(ENDLESS)
                wait_until(found.group(1), busy=True)
                process.send_signal(signal.SIGINT)
                assert process.communicate(timeout=60) == ("", "loading PyTorch …\nstopped\n")
            assert process.returncode == 0
        finally:
            process.kill()


def connection(address: str) -> socket.socket:
    return connect(int(address.rsplit(":", 1)[1].strip("/")))


def view(address: str, text: str) -> dict[str, object]:
    body = json.dumps({"texts": [text]}).encode()
    request = urllib.request.Request(f"{address}api/view", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)  # type: ignore[no-any-return]


def wait_until(address: str, *, busy: bool) -> None:
    """Whether the only worker is busy shows in what others are told."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            found = view(address, "5")["answer"] != "5"
        except urllib.error.HTTPError as error:
            found = error.code == 429
        if found == busy:
            return
        time.sleep(0.1)
    pytest.fail(f"the worker did not become {'busy' if busy else 'free'}")


@pytest.mark.slow
def test_the_address_it_prints_shows_a_tree(address: str) -> None:
    assert view(address, "[MAX 2 9 [MIN 4 7 ] 0 ]")["answer"] == "9"


@pytest.mark.slow
def test_a_client_that_leaves_frees_its_worker(address: str) -> None:
    with connection(address) as client:
        client.sendall(ENDLESS)
        wait_until(address, busy=True)
    wait_until(address, busy=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00\x01",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET /" + b"a" * 1_000_000,
        b"POST /api/view HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"POST /api/view HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_no_http_is_refused_and_the_next_client_served(address: str, request_bytes: bytes) -> None:
    answer = b""
    with connection(address) as client, suppress(OSError):  # it may hang up at once
        client.sendall(request_bytes)
        client.shutdown(socket.SHUT_WR)
        answer = client.recv(100_000)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400")
    assert view(address, "5")["answer"] == "5"


@pytest.mark.slow
def test_a_wish_for_a_web_socket_is_answered_as_plain_http(address: str) -> None:
    wish = (
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AA\r\n"
    )
    with connection(address) as client:
        client.sendall(f"GET /api/models HTTP/1.1\r\nHost: 127.0.0.1\r\n{wish}\r\n".encode())
        assert client.recv(100).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(("debug", "host"), [(False, "127.0.0.1"), (True, "0.0.0.0")])
def test_options_reach_the_server_and_its_end_is_told(
    monkeypatch: pytest.MonkeyPatch, debug: bool, host: str
) -> None:
    import uvicorn

    def serve_once(server: uvicorn.Server, sockets: list[socket.socket]) -> None:
        assert sockets[0].getsockname()[0] == host
        with TestClient(server.config.app, base_url="http://explorer.test") as client:  # type: ignore[arg-type]
            assert client.get("/api/models").json()["limits"]["max_tokens"] == 7
        raise KeyboardInterrupt

    monkeypatch.setattr(uvicorn.Server, "run", serve_once)
    words = f"serve --host {host} --port 0 --allow-host explorer.test --max-tokens 7 --workers 3"
    result = CliRunner().invoke(app, [*(["--debug"] if debug else []), *shlex.split(words)])
    assert result.exit_code == 0, result.output
    warned = "anyone who can reach this machine can use the explorer\n" if host == "0.0.0.0" else ""
    assert result.stderr == f"{warned}stopped\n"
    log = logging.getLogger("beamtree.explorer")
    assert log.isEnabledFor(logging.DEBUG) == debug


def test_a_port_in_use_is_told_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(app, ["serve", "--port", str(port)])
    assert result.exit_code == 2
    assert f"cannot listen on 127.0.0.1, port {port}: address already in use" in result.stderr
    assert "--port 0" in result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--host", "no-such-host.invalid"], "cannot listen on no-such-host.invalid"),
        (["--host", ""], "--host is empty"),
        (["no-such-model"], "there is no model 'no-such-model'"),
        (["--seconds", "0"], "0.001"),
        (["--device", "abacus"], "cannot use the device 'abacus'"),
    ],
)
def test_what_cannot_be_served_is_told_in_a_sentence(options: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["serve", "--port", "0", *options])
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("package", ["fastapi", "uvicorn"])
def test_a_missing_package_is_named_by_its_extra(package: str) -> None:
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from beamtree.cli import app; app(['serve', '--port', '0'], prog_name='beamtree')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    expected = "beamtree: the tree explorer needs an optional dependency: pip install 'beamtree[web]'\n"
    assert done.stderr.splitlines(keepends=True)[1:] == [expected]  # the first says that it is loading


def test_models_are_named_by_their_folders_and_nothing_above(tmp_path: Path) -> None:
    for folder in ("a/model", "b/model", "run/best"):
        save_model(small_model().float(), tmp_path / folder)
    found = load_models([str(tmp_path / folder) for folder in ("a/model", "b/model", "run")])
    assert list(found) == ["model", "model-2", "run"]
    assert "listops-ebt-grc" in load_models([])


def test_an_untrained_twin_of_what_searches_in_a_formal_language_is_served_for_comparison() -> None:
    models = {"it": small_model(seed=7), "flat": small_model("transformer"), "text": small_model(task="sst5")}
    served = add_untrained(models)
    assert list(served) == ["it", "flat", "text", "it-untrained"]
    twin = served["it-untrained"]
    assert describe_model("it-untrained", twin)["untrained_twin_of"] == "it"
    assert describe_model("it", models["it"])["untrained_twin_of"] is None
    assert twin.settings == models["it"].settings
    again = add_untrained(models)["it-untrained"].state_dict()
    for name, weight in twin.state_dict().items():
        assert torch.equal(weight, again[name]), "the same at every start"
    trained = models["it"].float().state_dict()
    assert any(not torch.equal(weight, again[name]) for name, weight in trained.items())


def test_a_package_without_models_says_what_to_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("beamtree.classifier.model_folder.PRETRAINED", tmp_path)
    with pytest.raises(BeamtreeError, match="name a model folder or a run folder"):
        load_models([])
