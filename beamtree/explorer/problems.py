"""Everything that can go wrong between a browser and the explorer, each with its status and its sentence."""

import json
from typing import Any, NamedTuple

from beamtree.errors import BeamtreeError
from beamtree.explorer.sentences import TooLongError, UnreadableInputError, Where

RETRY_AFTER = 2  # seconds


class Problem(Exception):  # noqa: N818 (it is what the answer says, not always a mistake)
    """An answer other than the one asked for: `{"error": {status, code, message, where}}`."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        where: Where | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.where = status, code, message, where
        self.headers = headers or {}

    def body(self) -> bytes:
        error: dict[str, Any] = {
            "status": self.status,
            "code": self.code,
            "message": self.message,
            "where": None if self.where is None else self.where._asdict(),
        }
        return json.dumps({"error": error}).encode()


class Documented(NamedTuple):
    status: int
    code: str
    when: str


DOCUMENTED = (
    Documented(
        400, "bad_request", "The request is not HTTP as it should be, or names a host that is not served."
    ),
    Documented(404, "not_found", "There is nothing at this address."),
    Documented(404, "no_such_model", "The model is not one of those served."),
    Documented(405, "method_not_allowed", "The address knows other methods."),
    Documented(408, "too_late", "The body of the request did not come in time."),
    Documented(413, "too_large", "The request has more bytes than allowed."),
    Documented(413, "too_long", "A text has more tokens than allowed; `where` is the first too many."),
    Documented(415, "not_json", "The body is not declared as application/json."),
    Documented(422, "invalid", "A field of the request is missing, unknown or out of range."),
    Documented(422, "unreadable", "A text is not in the task's language; `where` says which token."),
    Documented(429, "busy", "Too many requests at once; the header Retry-After says when to come back."),
    Documented(431, "too_large", "The address and the headers have more bytes than allowed."),
    Documented(500, "internal", "A mistake of the server's own."),
    Documented(
        503, "too_slow", "The computation took longer than allowed and was stopped; Retry-After as for 429."
    ),
)


def problem_of(error: BeamtreeError) -> Problem:
    """What to answer to a request that asked for this."""
    if isinstance(error, TooLongError):
        return Problem(413, "too_long", str(error), error.where)
    if isinstance(error, UnreadableInputError):
        return Problem(422, "unreadable", str(error), error.where)
    return Problem(422, "invalid", str(error))


def busy() -> Problem:
    return Problem(
        429,
        "busy",
        "The explorer is busy with other requests: try again in a moment.",
        headers={"Retry-After": str(RETRY_AFTER)},
    )


def too_slow(seconds: float) -> Problem:
    return Problem(
        503,
        "too_slow",
        f"Stopped after {seconds:g} s, the time limit: try a shorter text or fewer beams.",
        headers={"Retry-After": str(RETRY_AFTER)},
    )


def internal() -> Problem:
    return Problem(
        500, "internal", "The explorer failed at this request. It is a mistake of its own, not yours."
    )
