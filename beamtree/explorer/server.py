"""uvicorn around the app: quiet, open whoever else holds connections, and gone soon after Ctrl-C."""

import logging
import socket
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from beamtree.errors import MissingExtraError
from beamtree.printable import printable_lines

if TYPE_CHECKING:
    import uvicorn

_SECONDS_TO_FINISH = 3
_CONNECTIONS = 800  # a process may have 1024 files open
_ACCEPTED_AT_ONCE = 32  # beyond those, until as many have made way


class _Printable(logging.Formatter):
    """Requests are quoted, and in a trace whatever failed at them."""

    def format(self, record: logging.LogRecord) -> str:
        return printable_lines(super().format(record))


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


def make_server(app: Any, **waiting: Any) -> "uvicorn.Server":
    """With other bounds on connections where `waiting` says so, as `Waiting` takes them."""
    try:
        import uvicorn

        from beamtree.explorer.connections import Connection, Server, Waiting
    except ImportError as error:
        raise MissingExtraError("the tree explorer", "web") from error
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
