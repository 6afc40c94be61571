"""`beamtree serve` as people start it: quick, one line, and no trace whatever happens."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from explored import small_model
from typer.testing import CliRunner

from beamtree.cli import app
from beamtree.errors import BeamtreeError
from beamtree.explorer.catalog import load_models
from beamtree.model import save_model

COMMAND = [sys.executable, "-m", "beamtree.cli", "serve", "--port", "0"]


@contextmanager
def explorer(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running explorer and its address."""
    with subprocess.Popen(
        [*COMMAND, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"http://\S+/", line)
            assert found, line
            yield process, found.group()
        finally:
            process.kill()


def view(address: str, text: str) -> dict[str, object]:
    body = json.dumps({"texts": [text]}).encode()
    request = urllib.request.Request(f"{address}api/view", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)  # type: ignore[no-any-return]


@pytest.mark.slow
def test_it_prints_its_address_shows_a_tree_and_stops_at_ctrl_c() -> None:
    with explorer() as (process, address):
        assert address.startswith("http://127.0.0.1:")
        assert view(address, "[MAX 2 9 [MIN 4 7 ] 0 ]")["answer"] == "9"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=10)
    assert process.returncode == 0
    assert out == ""
    assert err == "stopped\n"


@pytest.mark.slow
def test_ctrl_c_during_a_computation_stops_it_too(tmp_path: Path) -> None:
    save_model(small_model("om").float(), tmp_path / "slow")
    with explorer(str(tmp_path / "slow"), "--max-tokens", "9000", "--seconds", "300") as (process, address):
        port = int(address.rsplit(":", 1)[1].strip("/"))
        body = json.dumps({"texts": ["[MAX " + "7 " * 8000 + "]"]})
        with socket.create_connection(("127.0.0.1", port)) as client:
            head = f"POST /api/view HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
            client.sendall(f"{head}Content-Type: application/json\r\n\r\n{body}".encode())
            time.sleep(1)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=15)
    assert process.returncode == 0
    assert "Traceback" not in err


def test_a_port_in_use_is_told_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(app, ["serve", "--port", str(port)])
    assert result.exit_code == 2
    assert f"cannot listen at 127.0.0.1, port {port}: address already in use" in result.stderr
    assert "--port 0" in result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--host", "no-such-host.invalid"], "cannot listen at no-such-host.invalid"),
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


def test_a_missing_package_is_named_by_its_extra() -> None:
    code = (
        "import sys; sys.modules['fastapi'] = None\n"
        "from beamtree.cli import app; app(['serve', '--port', '0'], prog_name='beamtree')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    expected = "beamtree: the tree explorer needs an optional dependency: pip install 'beamtree[web]'\n"
    assert done.stderr == expected


def test_models_are_named_by_their_folders_and_nothing_above(tmp_path: Path) -> None:
    for folder in ("a/model", "b/model", "run/best"):
        save_model(small_model().float(), tmp_path / folder)
    found = load_models([str(tmp_path / folder) for folder in ("a/model", "b/model", "run")])
    assert list(found) == ["model", "model-2", "run"]
    assert "listops-ebt-grc" in load_models([])


def test_a_package_without_models_says_what_to_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("beamtree.model.PRETRAINED", tmp_path)
    with pytest.raises(BeamtreeError, match="name a model folder or a run folder"):
        load_models([])
