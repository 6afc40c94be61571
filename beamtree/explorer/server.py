"""uvicorn around the app: quiet, and gone soon after Ctrl-C."""

import logging
import socket
from typing import Any

import torch

from beamtree.errors import MissingExtraError
from beamtree.printable import printable_lines

_SECONDS_TO_FINISH = 3
_CONNECTIONS = 800  # a process may have 1024 files open


class _Printable(logging.Formatter):
    """Requests are quoted, and in a trace whatever failed at them."""

    def format(self, record: logging.LogRecord) -> str:
        return printable_lines(super().format(record))


def run(app: Any, listener: socket.socket, *, debug: bool = False) -> None:
    """Serve until it is interrupted; `debug` tells the trace of a failed request."""
    try:
        import uvicorn
    except ImportError as error:
        raise MissingExtraError("the tree explorer", "web") from error
    torch.set_num_threads(1)  # a request is a thread already, and its steps are small
    console = logging.StreamHandler()
    console.setFormatter(_Printable("%(name)s: %(message)s"))
    logging.basicConfig(handlers=[console])
    logging.getLogger("beamtree.explorer").setLevel(logging.DEBUG if debug else logging.ERROR)
    for library in ("uvicorn.error", "asyncio"):
        logging.getLogger(library).setLevel(logging.CRITICAL)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        limit_concurrency=_CONNECTIONS,
        timeout_graceful_shutdown=_SECONDS_TO_FINISH,
    )
    try:
        uvicorn.Server(config).run(sockets=[listener])
    except KeyboardInterrupt:
        return
