"""What stands between the network and the app: hosts, sizes, time for the body, headers, no naked exception.

A page from elsewhere must not reach an explorer on this machine: a host name that is not known is refused (a
foreign name can be made to point here, an address cannot), and no answer allows another origin.
"""

import asyncio
import ipaddress
import logging
import re
from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from beamtree.explorer.api import Problem, internal
from beamtree.explorer.work import Limits

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
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]]+)(:[0-9]*)?")  # an address of IPv6 stands in brackets
_MAX_HEAD = 16384  # bytes of address and headers
log = logging.getLogger("beamtree.explorer")


class Guard:
    """ASGI middleware around the whole app."""

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
            log.debug("the trace of it", exc_info=True)
            if not begun:
                await internal().answer()(scope, receive, send_guarded)

    def _check_host(self, host: str) -> None:
        found = _HOST.fullmatch(host)
        name = found[1].strip("[]").lower() if found is not None else ""
        if name not in self.hosts and not _is_address(name):
            raise Problem(400, "bad_request", "This host name is not served here: see --allow-host.")

    async def _read_body(self, headers: Headers, receive: Receive) -> bytes | None:
        """None if the client left before its end."""
        limit = self.limits.max_request_bytes
        too_large = Problem(413, "too_large", f"The request has more than {limit:,} bytes, the limit.")
        declared = headers.get("content-length", "0")
        if not declared.isdecimal():
            raise Problem(400, "bad_request", "Content-Length must be a number.")
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
            raise Problem(408, "too_late", "The body of the request did not arrive in time.") from None


def _check_head(scope: Scope) -> None:
    """uvicorn has a limit for heads that come in pieces only."""
    size = len(scope.get("raw_path") or b"") + len(scope["query_string"])
    if size + sum(len(name) + len(value) for name, value in scope["headers"]) > _MAX_HEAD:
        raise Problem(431, "too_large", f"Address and headers have more than {_MAX_HEAD:,} bytes, the limit.")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body that was read, then whatever else comes: a client that leaves."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return messages.pop() if messages else await receive()

    return receive_again
