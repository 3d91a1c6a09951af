"""What an HTTP server refuses, as our errors."""

import json
from typing import TYPE_CHECKING

from runtime.errors import (
    Aborted,
    BadRequest,
    NotFound,
    QueueFull,
    RequestError,
    RequestFailed,
    TimedOut,
    Unauthorized,
    Unavailable,
)
from runtime.lang.address import shown_url

if TYPE_CHECKING:
    import httpx

_KINDS: dict[int, type[RequestError]] = {
    401: Unauthorized,
    403: Unauthorized,
    404: NotFound,
    429: QueueFull,
    499: Aborted,
    503: Unavailable,
    504: TimedOut,
}
# By the type that an error has: inside a stream it comes without a status.
_STATUSES = {kind.kind: kind.status for kind in (BadRequest, *_KINDS.values())}


def refusal(response: "httpx.Response", text: str) -> RequestError:
    """Return the error of a reply whose status is not 200; `text` is its body."""
    location = response.headers.get("location")
    if 300 <= response.status_code < 400 and location:
        # Whoever redirects could have the prompt and the key sent anywhere.
        return RequestFailed(
            f"the server redirects to {shown_url(location)}, which is not followed: "
            "give the address that you mean as base_url"
        )
    error = error_of(response.status_code, text)
    if isinstance(error, Unauthorized) and "authorization" not in response.request.headers:
        error.message += " (no API key was sent)"
        error.args = (error.message,)
    if isinstance(error, QueueFull):
        error.retry_after_s = _seconds(response.headers.get("retry-after"))
    return error


def error_of(status: int | None, text: str) -> RequestError:
    """Return the error that a text describes; both dialects write {"error": {"message"}}.

    status  None: that of the error's type, 500 where it has none
    """
    plain = " ".join(text[:500].split())
    message, kind, param, code = plain or f"status {status}", None, None, None
    try:
        told = json.loads(text)["error"]
        message, kind = told["message"], told.get("type")
        param, code = told.get("param"), told.get("code")
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    if status is None:
        status = _STATUSES.get(str(kind), 500)
    fault = _KINDS.get(status, BadRequest if 400 <= status < 500 else RequestFailed)
    error = fault(str(message))
    error.param, error.code, error.status = param, code, status
    return error


def _seconds(header: str | None) -> int:
    return int(header) if header is not None and header.isdecimal() else 0
