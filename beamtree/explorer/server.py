"""The server: uvicorn with limits on its connections, and a guard that checks host, size and time of each
request and adds security headers to every answer.

A client may send nothing, half a request, or a byte now and then; it may keep its connection after an answer,
or never read the answer. None of this keeps others out: no connection waits for its client for ever, and if
there are too many, those that have waited longest are dropped.

A page from elsewhere must not reach an explorer on this machine. So unknown host names are refused (a foreign
name can be made to point here, an address cannot), and no answer allows another origin.
"""

import asyncio
import ipaddress
import logging
import re
import socket
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import uvicorn
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from beamtree.explorer.api import Problem
from beamtree.explorer.limits import Limits
from beamtree.printable import printable_lines

_SECONDS_TO_FINISH = 3
_ACCEPTED_AT_ONCE = 32  # asyncio accepts this many connections in one go; old ones can be dropped in between
_UNACCEPTED = 2048  # connections that the system holds until they are accepted; more have to try again
_READ_AHEAD = 65536  # bytes that may arrive while the previous request is being answered

SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
        "font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-cache",
}
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]]+)(:[0-9]*)?")  # IPv6 addresses are in brackets
_MAX_HEAD = 16384  # bytes of address and headers
_OWN_FAULT = "The explorer failed on this request. This is a bug in the explorer, not your mistake."
log = logging.getLogger("beamtree.explorer")


def run(app: Any, listener: socket.socket, *, debug: bool = False) -> None:
    """Serve until interrupted. `debug` logs the traceback of a failed request."""
    server = make_server(app)
    torch.set_num_threads(1)  # each request has a thread already, and its steps are small
    console = logging.StreamHandler()
    console.setFormatter(_Printable("%(name)s: %(message)s"))
    logging.basicConfig(handlers=[console])
    log.setLevel(logging.DEBUG if debug else logging.ERROR)
    for library in ("uvicorn.error", "asyncio"):
        logging.getLogger(library).setLevel(logging.CRITICAL)
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        return


def make_server(app: Any, **waiting: Any) -> uvicorn.Server:
    """Create the server. `waiting` are arguments of `Waiting`: limits on connections."""
    return Server(
        uvicorn.Config(
            app,
            http=partial(Connection, waiting=Waiting(**waiting)),  # type: ignore[arg-type]
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            backlog=_ACCEPTED_AT_ONCE,
            timeout_graceful_shutdown=_SECONDS_TO_FINISH,
        )
    )


class _Printable(logging.Formatter):
    """Escapes what is logged, because messages and tracebacks quote requests."""

    def format(self, record: logging.LogRecord) -> str:
        return printable_lines(super().format(record))


@dataclass
class Waiting:
    """The connections of a server that wait for their clients, the longest waiting first."""

    at_most: int = 800  # connections in all, unless more are being answered; a process may open 1024 files
    seconds: float = 30.0  # to send the whole head of a request; to read an answer
    connections: "dict[Connection, None]" = field(default_factory=dict)

    def drop_the_first(self) -> None:
        next(iter(self.connections)).drop()


class Connection(H11Protocol):
    """uvicorn's connection, with a time limit while it waits for its client (not while it answers)."""

    def __init__(self, *arguments: Any, waiting: Waiting, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._waiting = waiting
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_waiting()
        if len(self.connections) > self._waiting.at_most:
            self._waiting.drop_the_first()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look_for_a_request()

    def on_response_complete(self) -> None:
        self._start_waiting()
        super().on_response_complete()  # continues with a request that arrived early
        self._look_for_a_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def drop(self) -> None:
        """Close at once, whatever has not been sent or read."""
        self._stop_waiting()
        self.transport.abort()

    def _start_waiting(self) -> None:
        self._stop_waiting()
        self._waiting.connections[self] = None
        self._timer = self.loop.call_later(self._waiting.seconds, self.drop)

    def _look_for_a_request(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            return
        self._stop_timer()  # the body has a time limit of its own
        if not self.cycle.more_body:
            self._stop_waiting()
            if len(self.conn.trailing_data[0]) > _READ_AHEAD:
                self.drop()

    def _stop_waiting(self) -> None:
        self._stop_timer()
        self._waiting.connections.pop(self, None)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Server(uvicorn.Server):
    """Accepts a few connections at a time, so that old ones can be dropped for them, while many may queue."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(_UNACCEPTED)


class Guard:
    """ASGI middleware around the whole app: checks requests, adds headers, answers errors."""

    def __init__(self, app: ASGIApp, limits: Limits, hosts: Collection[str]) -> None:
        self.app, self.limits = app, limits
        self.hosts = {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        begun = False

        async def send_guarded(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            headers = Headers(scope=scope)
            _check_head(scope)
            self._check_host(headers.get("host", ""))
            body = await self._read_body(headers, receive)
            if body is not None:
                await self.app(scope, _replay(body, receive), send_guarded)
        except Problem as problem:
            await problem.answer()(scope, receive, send_guarded)
        except Exception as error:
            log.error("%s %r failed: %s", scope["method"], scope["path"], type(error).__name__)
            log.debug("the traceback", exc_info=True)
            if not begun:
                await Problem("internal", _OWN_FAULT).answer()(scope, receive, send_guarded)

    def _check_host(self, host: str) -> None:
        found = _HOST.fullmatch(host)
        name = found[1].strip("[]").lower() if found is not None else ""
        if name not in self.hosts and not _is_address(name):
            raise Problem("bad_request", "This host name is not served here; see --allow-host.")

    async def _read_body(self, headers: Headers, receive: Receive) -> bytes | None:
        """Read the body of a request; None if the client leaves before its end."""
        limit = self.limits.max_request_bytes
        too_large = Problem("too_large", f"The request is larger than the limit of {limit:,} bytes.")
        declared = headers.get("content-length", "0")
        if not declared.isdecimal():
            raise Problem("bad_request", "Content-Length must be a number.")
        if len(declared) > 15 or int(declared) > limit:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    body += message.get("body", b"")
                    if len(body) > limit:
                        raise too_large
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            raise Problem("too_late", "The body of the request did not arrive in time.") from None


def _check_head(scope: Scope) -> None:
    """Limit the size of the head. uvicorn does so only if the head arrives in pieces."""
    size = len(scope.get("raw_path") or b"") + len(scope["query_string"])
    if size + sum(len(name) + len(value) for name, value in scope["headers"]) > _MAX_HEAD:
        message = f"Address and headers are larger than the limit of {_MAX_HEAD:,} bytes."
        raise Problem("too_large", message, status=431)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _replay(body: bytes, receive: Receive) -> Receive:
    """Give the app the body that was read, and then further messages, such as that the client has left."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return messages.pop() if messages else await receive()

    return receive_again
