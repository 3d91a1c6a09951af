"""Every failure as the reply its dialect expects.

Under `/v1/` the body is OpenAI's `{"error": {message, type, param, code}}`, elsewhere
`{"error": {"message"}}`. A body is never FastAPI's own, and never tells what broke inside.
"""

from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from runtime.errors import BadRequest, NotFound, QueueFull, RequestError


class BodyTooLarge(BadRequest):
    """The body has more bytes than any request needs."""

    status = 413


class MethodNotAllowed(BadRequest):
    """The path exists, the method does not."""

    status = 405


def is_openai(path: str) -> bool:
    """Say whether `path` speaks OpenAI's dialect."""
    return path == "/v1" or path.startswith("/v1/")


def error_body(error: RequestError, *, openai: bool) -> dict[str, Any]:
    """Return the JSON body for `error` in one of the two dialects."""
    if not openai:
        return {"error": {"message": error.message}}
    return {
        "error": {
            "message": error.message,
            "type": error.kind,
            "param": error.param,
            "code": error.code,
        }
    }


def error_response(error: RequestError, *, openai: bool) -> Response:
    """Return the whole reply for `error`: status, headers and body."""
    headers: dict[str, str] = {}
    if isinstance(error, QueueFull):
        headers["Retry-After"] = str(error.retry_after_s)
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return Response(
        msgspec.json.encode(error_body(error, openai=openai)),
        status_code=error.status,
        headers=headers,
        media_type="application/json",
    )


def error_event(error: RequestError, *, openai: bool) -> bytes:
    """Return the server-sent event that ends a stream which `error` broke."""
    body = error_body(error, openai=openai)
    if not openai:
        body["error"]["type"] = error.kind
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def install(app: FastAPI) -> None:
    """Answer every exception of the routes, and of routing itself, in the caller's dialect."""
    app.add_exception_handler(RequestError, _on_request_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(Exception, _on_fault)


async def _on_request_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return error_response(error, openai=is_openai(request.url.path))


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path
    reply: RequestError
    match error.status_code:
        case 404:
            reply = NotFound(f"there is nothing at {path[:200]}")
        case 405:
            reply = MethodNotAllowed(f"{request.method} is not allowed at {path[:200]}")
        case status:
            reply = BadRequest(HTTPStatus(status).phrase)
            reply.status = status
    response = error_response(reply, openai=is_openai(path))
    for name, value in (error.headers or {}).items():
        response.headers[name] = value
    return response


async def _on_fault(request: Request, error: Exception) -> Response:
    # Starlette raises it again after this reply, so that it is logged with its traceback.
    return error_response(
        RequestError("internal error", code="internal_error"), openai=is_openai(request.url.path)
    )
