"""Clients that hold connections, slowly or silently, keep nobody out; nobody works for clients that left."""

import json
import re
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
from served import POST, connect, post, served, wait_until

import beamtree.explorer.app as explorer
from beamtree.explorer.limits import Limits

ASK = b"GET /api/models HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


def answer(client: socket.socket, request: bytes = ASK) -> int:
    """Its status, read to the end."""
    client.settimeout(20)
    client.sendall(request)
    head, _, body = client.recv(65536).partition(b"\r\n\r\n")
    length = int(re.search(rb"content-length: (\d+)", head)[1])  # type: ignore[index]
    while len(body) < length:
        body += client.recv(65536)
    return int(head.split(b" ", 2)[1])


def is_dropped(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def view(text: str) -> bytes:
    return post(json.dumps({"texts": [text]}).encode())


@pytest.mark.parametrize(
    "said",
    [b"", ASK[:20], POST, POST + b"Content-Length: 5\r\n\r\n1", POST + b"Transfer-Encoding: chunked\r\n\r\n"],
    ids=["nothing", "half a line", "half a head", "half a body", "no chunk"],
)
def test_the_longest_waiting_connection_makes_way_for_a_newcomer(said: bytes) -> None:
    with served(at_most=5) as port, ExitStack() as stack:
        holding = [stack.enter_context(connect(port)) for _ in range(5)]
        for client in holding:
            client.sendall(said)
            time.sleep(0.02)
        newcomer = stack.enter_context(connect(port))
        assert answer(newcomer) == 200
        wait_until(lambda: is_dropped(holding[0]))
        assert not any(map(is_dropped, holding[1:]))


def test_a_connection_that_is_used_is_not_the_longest_waiting() -> None:
    with served(at_most=2) as port, ExitStack() as stack:
        first, second = (stack.enter_context(connect(port)) for _ in range(2))
        assert answer(second) == 200
        assert answer(first) == 200
        assert answer(stack.enter_context(connect(port))) == 200
        wait_until(lambda: is_dropped(second))
        assert answer(first) == 200


def test_a_connection_that_its_client_closed_does_not_make_way_in_place_of_an_open_one() -> None:
    with served(at_most=1) as port, ExitStack() as stack:
        with connect(port) as gone:
            assert answer(gone) == 200
        staying = stack.enter_context(connect(port))
        assert answer(staying) == 200
        staying.sendall(ASK[:20])  # so that it is not closed as one that asks nothing more
        assert answer(stack.enter_context(connect(port))) == 200
        wait_until(lambda: is_dropped(staying), 5)


def test_a_request_that_is_being_answered_does_not_make_way(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def dawdle(*_: Any, **__: Any) -> dict[str, Any]:
        released.wait(60)
        return {}

    monkeypatch.setattr(explorer, "make_view", dawdle)
    with served(Limits(workers=1), at_most=1) as port, ExitStack() as stack:
        working = stack.enter_context(connect(port))
        working.sendall(view("2"))
        time.sleep(0.2)
        turned_away = stack.enter_context(connect(port))
        wait_until(lambda: is_dropped(turned_away))
        released.set()
        assert working.recv(100).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("said", [b"", ASK[:20], POST], ids=["nothing", "half a line", "half a head"])
def test_a_request_that_never_comes_is_given_up(said: bytes) -> None:
    with served(seconds=0.3) as port, connect(port) as client:
        client.sendall(said)
        wait_until(lambda: is_dropped(client), 5)


@pytest.mark.parametrize(
    "said", [ASK[:-2] + b"X-Long: ", ASK + ASK[:-2] + b"X-Long: ", POST + b"Content-Length: 99999999\r\n\r\n"]
)
def test_a_trickle_does_not_hold_a_connection(said: bytes) -> None:
    """Before a request, after an answer, and in a body that was refused."""
    with served(seconds=0.5) as port, connect(port) as client:
        client.sendall(said)
        end = time.monotonic() + 10
        with suppress(OSError):
            while time.monotonic() < end:
                client.sendall(b"a")
                time.sleep(0.05)
        assert time.monotonic() < end


def test_an_answer_that_nobody_reads_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explorer, "make_view", lambda *_, **__: {"much": "a" * 20_000_000})
    with served(seconds=0.5) as port, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", port))
        client.sendall(view("2"))
        time.sleep(3)
        read = 0
        with suppress(ConnectionError):
            while part := client.recv(1_000_000):
                read += len(part)
        assert read < 20_000_000


def test_who_asks_on_and_on_without_waiting_for_answers_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = threading.Event()

    def dawdle(*_: Any, **__: Any) -> None:
        try:
            while True:
                time.sleep(0.01)
        finally:
            stopped.set()

    monkeypatch.setattr(explorer, "make_view", dawdle)
    with served(Limits(seconds=60)) as port, connect(port) as client:
        client.sendall(view("2"))
        end = time.monotonic() + 10
        with suppress(OSError):
            while time.monotonic() < end:
                client.sendall(ASK * 1000)
                time.sleep(0.01)
        assert time.monotonic() < end
        assert stopped.wait(10)


def test_two_requests_at_once_are_answered_one_after_the_other() -> None:
    with served() as port, connect(port) as client:
        client.sendall(ASK + ASK[:-2] + b"Connection: close\r\n\r\n")
        said = b""
        while part := client.recv(65536):
            said += part
        assert said.count(b"HTTP/1.1 200") == 2


@contextmanager
def many_files(count: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        pytest.skip("this machine does not let a process have so many files open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Of `beamtree serve`, in a process that may have 1024 files open, as most."""
    command = [sys.executable, "-m", "beamtree.cli", "serve", "listops-ebt-grc", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            found = re.search(r":(\d+)/", process.stdout.readline() if process.stdout else "")
            assert found
            if sys.platform == "linux":
                resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (1024, 1024))
            yield int(found[1])
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize(
    "said",
    [b"", ASK[:20], POST + b"Content-Length: 5\r\n\r\n1", ASK],
    ids=["nothing", "half a line", "half a body", "a request, the answer unread"],
)
def test_a_thousand_connections_held_open_do_not_keep_a_visitor_waiting(port: int, said: bytes) -> None:
    with many_files(2000), ExitStack() as stack:
        for _ in range(1000):
            stack.enter_context(connect(port)).sendall(said)
        for request in (ASK, view("[MAX 2 9 [MIN 4 7 ] 0 ]")):
            begun = time.monotonic()
            assert answer(stack.enter_context(connect(port)), request) == 200
            assert time.monotonic() - begun < 5
