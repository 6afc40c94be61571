"""uvicorn around the app: quiet, open whoever else holds connections, and gone soon after Ctrl-C.

A client may send nothing, half a request, or a byte now and then; it may keep its connection after an answer,
or never read the answer. None of that keeps others out: no connection waits for its client for ever, and when
there are many, the longest waiting go.
"""

import asyncio
import logging
import socket
from functools import partial
from typing import Any

import torch

from beamtree.errors import MissingExtraError
from beamtree.printable import printable_lines

try:
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError as error:
    raise MissingExtraError("the tree explorer", "web") from error

_SECONDS_TO_FINISH = 3
_CONNECTIONS = 800  # a process may have 1024 files open
_ACCEPTED_AT_ONCE = 32  # beyond those, until as many have made way
_UNACCEPTED = 2048  # connections that the system holds until they are accepted; more must come again
_SECONDS = 30.0  # to send the head of a request, from the first moment; to take an answer
_READ_AHEAD = 65536  # bytes that may come while the request before them is being answered


def run(app: Any, listener: socket.socket, *, debug: bool = False) -> None:
    """Serve until it is interrupted; `debug` tells the trace of a failed request."""
    server = make_server(app)
    torch.set_num_threads(1)  # a request is a thread already, and its steps are small
    console = logging.StreamHandler()
    console.setFormatter(_Printable("%(name)s: %(message)s"))
    logging.basicConfig(handlers=[console])
    logging.getLogger("beamtree.explorer").setLevel(logging.DEBUG if debug else logging.ERROR)
    for library in ("uvicorn.error", "asyncio"):
        logging.getLogger(library).setLevel(logging.CRITICAL)
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        return


def make_server(app: Any, **waiting: Any) -> uvicorn.Server:
    """With other bounds on connections where `waiting` says so, as `Waiting` takes them."""
    return Server(
        uvicorn.Config(
            app,
            http=partial(Connection, waiting=Waiting(**{"at_most": _CONNECTIONS, **waiting})),  # type: ignore[arg-type]
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
    """Requests are quoted, and in a trace whatever failed at them."""

    def format(self, record: logging.LogRecord) -> str:
        return printable_lines(super().format(record))


class Waiting:
    """The connections of one server whose clients owe it something, the longest waiting first.

    All of a server are `at_most` so many, unless more are being answered at this moment.
    """

    def __init__(self, at_most: int, seconds: float = _SECONDS) -> None:
        self.at_most, self.seconds = at_most, seconds
        self.connections: dict[Connection, None] = {}

    def drop_the_first(self) -> None:
        next(iter(self.connections)).drop()


class Connection(H11Protocol):
    """uvicorn's, watched: it waits for its client unless a request has come and is being answered."""

    def __init__(self, *arguments: Any, waiting: Waiting, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._waiting = waiting
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin_to_wait()
        if len(self.connections) > self._waiting.at_most:
            self._waiting.drop_the_first()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look_for_a_request()

    def on_response_complete(self) -> None:
        self._begin_to_wait()
        super().on_response_complete()  # goes on with a request that came early
        self._look_for_a_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_to_wait()
        super().connection_lost(exc)

    def drop(self) -> None:
        """At once, whatever has not been sent or read."""
        self._end_to_wait()
        self.transport.abort()

    def _begin_to_wait(self) -> None:
        self._end_to_wait()
        self._waiting.connections[self] = None
        self._timer = self.loop.call_later(self._waiting.seconds, self.drop)

    def _look_for_a_request(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            return
        self._stop_timer()  # the app gives the body its own time
        if not self.cycle.more_body:
            self._end_to_wait()
            if len(self.conn.trailing_data[0]) > _READ_AHEAD:
                self.drop()

    def _end_to_wait(self) -> None:
        self._stop_timer()
        self._waiting.connections.pop(self, None)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Server(uvicorn.Server):
    """Accepts few connections at a time, so that others can make way for them, and lets many come at once."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(_UNACCEPTED)
