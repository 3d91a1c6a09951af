"""Request bodies: bounded, JSON, decoded straight into a typed struct; every fault is a 400."""

from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from runtime.errors import Aborted, BadRequest
from runtime.server.errors import BodyTooLarge
from runtime.server.fields import field_error

MAX_BODY_BYTES = 32 << 20

_Shape = TypeVar("_Shape", bound=msgspec.Struct)


async def read_body(request: Request, shape: type[_Shape]) -> _Shape:
    """Return the request's JSON body as a `shape`.

    Raises BadRequest (naming the field) for anything that is not one, BodyTooLarge beyond 32 MiB,
    Aborted where the client leaves before it has sent the body.
    """
    _check_headers(request)
    return decode(await _read(request), shape)


def decode(body: bytes, shape: type[_Shape]) -> _Shape:
    """Return `body` as a `shape`; see `read_body`."""
    try:
        body.decode("utf-8")
    except UnicodeDecodeError as fault:
        raise BadRequest(f"the body is not UTF-8 (byte {fault.start})") from fault
    try:
        return msgspec.json.decode(body, type=shape)
    except msgspec.ValidationError as fault:
        raise field_error(str(fault)) from fault
    except msgspec.DecodeError as fault:
        # A string cut off inside a surrogate pair reads as truncated, too.
        raise BadRequest(f"the body is not valid JSON: {fault}") from fault
    except RecursionError as fault:
        raise BadRequest("the body is nested too deeply") from fault
    except (ValueError, OverflowError) as fault:
        raise BadRequest(f"the body cannot be read: {fault}") from fault


def _check_headers(request: Request) -> None:
    # A form or a plain text can be sent by any web page without asking; JSON cannot.
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        shown = content_type[:80] or "none"
        raise BadRequest(f"the content type must be application/json, got {shown}")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", ""):
        raise BadRequest(f"the body must not be compressed, got {encoding[:80]}")
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length[:20]) > MAX_BODY_BYTES:
        raise BodyTooLarge(f"the body has {length[:20]} bytes, at most {MAX_BODY_BYTES} are read")


async def _read(request: Request) -> bytes:
    chunks: list[bytes] = []
    size = 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > MAX_BODY_BYTES:
                raise BodyTooLarge(f"the body has more than {MAX_BODY_BYTES} bytes")
            chunks.append(chunk)
    except ClientDisconnect as gone:
        raise Aborted("the client left before its request was complete") from gone
    return b"".join(chunks)
