"""Every failure as the reply its dialect expects.

Under `/v1/` the body is OpenAI's `{"error": {message, type, param, code}}`, or for Anthropic's
clients `{"type": "error", "error": {type, message, details}}`; elsewhere it is
`{"error": {"message"}}`. A body is never FastAPI's own, and never tells what broke inside.
"""

from http import HTTPStatus
from typing import Any, Literal

import msgspec
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from runtime.errors import BadRequest, NotFound, QueueFull, RequestError, Unavailable
from runtime.server.hints import endpoint_hint

Dialect = Literal["native", "openai", "anthropic"]

# Source: Anthropic's API reference, "Errors"; other refusals are invalid requests.
_ANTHROPIC_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    499: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class BodyTooLarge(BadRequest):
    """The body has more bytes than any request needs."""

    status = 413


class Forbidden(BadRequest):
    """Another site's page may have sent the request."""

    status = 403


class MethodNotAllowed(BadRequest):
    """The path exists, the method does not."""

    status = 405


def dialect_of(scope: Scope) -> Dialect:
    """Return the dialect of a request: its path tells, and what all of Anthropic's clients send."""
    path: str = scope["path"]
    if path != "/v1" and not path.startswith("/v1/"):
        return "native"
    if path == "/v1/messages" or path.startswith("/v1/messages/"):
        return "anthropic"
    # The list of models is at the same path for both.
    named = any(name == b"anthropic-version" for name, _ in scope["headers"])
    return "anthropic" if named else "openai"


def error_body(error: RequestError, dialect: Dialect) -> dict[str, Any]:
    """Return the JSON body for `error`."""
    if dialect == "native":
        return {"error": {"message": error.message}}
    if dialect == "anthropic":
        default = "invalid_request_error" if error.status < 500 else "api_error"
        kind = _ANTHROPIC_KINDS.get(error.status, default)
        details = {} if error.code is None else {"details": {"error_code": error.code}}
        # These bodies have no place of their own for the field.
        named = error.param is None or error.param in error.message
        message = error.message if named else f"{error.param}: {error.message}"
        return {"type": "error", "error": {"type": kind, "message": message, **details}}
    return {
        "error": {
            "message": error.message,
            "type": error.kind,
            "param": error.param,
            "code": error.code,
        }
    }


def error_response(error: RequestError, dialect: Dialect) -> Response:
    """Return the whole reply for `error`: status, headers and body."""
    headers: dict[str, str] = {}
    if isinstance(error, QueueFull | Unavailable) and error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return Response(
        msgspec.json.encode(error_body(error, dialect)),
        status_code=error.status,
        headers=headers,
        media_type="application/json",
    )


def error_event(error: RequestError, dialect: Dialect) -> bytes:
    """Return the server-sent event that ends a stream which `error` broke."""
    body = error_body(error, dialect)
    if dialect == "native":
        body["error"]["type"] = error.kind
    name = b"event: error\n" if dialect == "anthropic" else b""
    return name + b"data: " + msgspec.json.encode(body) + b"\n\n"


def install(app: FastAPI) -> None:
    """Answer every exception of the routes, and of routing itself, in the caller's dialect."""
    app.add_exception_handler(RequestError, _on_request_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(Exception, _on_fault)


async def _on_request_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return error_response(error, dialect_of(request.scope))


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path
    hint = endpoint_hint(path)
    place = f"{path[:200]}{f': {hint}' if hint else ''}"
    reply: RequestError
    match error.status_code:
        case 404:
            text = f"there is nothing at {place}"
            reply = NotFound(text, code="not_supported" if hint else None)
        case 405:
            reply = MethodNotAllowed(f"{request.method} is not allowed at {place}")
        case status:
            reply = BadRequest(HTTPStatus(status).phrase)
            reply.status = status
    response = error_response(reply, dialect_of(request.scope))
    for name, value in (error.headers or {}).items():
        response.headers[name] = value
    return response


async def _on_fault(request: Request, error: Exception) -> Response:
    # Starlette raises it again after this reply, so that it is logged with its traceback.
    fault = RequestError("internal error", code="internal_error")
    return error_response(fault, dialect_of(request.scope))
