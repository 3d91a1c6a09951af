"""Request bodies: bounded, JSON, decoded straight into a typed struct; every fault is a 400.

Decoding holds the interpreter, and with it every stream. So of bodies that come at once each has a
turn of the event loop, long ones are decoded one after the other in a thread, and what would take a
second is refused by its shape.
"""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import msgspec
import numpy as np
from starlette.requests import ClientDisconnect, Request

from runtime.errors import Aborted, BadRequest, QueueFull
from runtime.server.errors import BodyTooLarge
from runtime.server.field_hints import hints_of
from runtime.server.fields import field_error
from runtime.server.long_arrays import (
    MAX_OTHER_VALUES,
    count_commas,
    decode_json,
    decode_long,
)
from runtime.server.loop_turns import own_turn

MAX_BODY_BYTES = 32 << 20
# Each costs half a microsecond; 10,000 messages with calls and a thousand tools have fewer.
MAX_PARTS = 1 << 19
# Each costs 30 nanoseconds; a batch of 256 prompts of 16,384 token ids has as many.
MAX_VALUES = 1 << 22
_SHORT_BODY_BYTES = 1 << 12
LONG_BODY_BYTES = 1 << 20
_long_bodies = ThreadPoolExecutor(1, "body")
# Of all the bodies that are on their way: slow senders of long ones would fill the memory.
MAX_BYTES_ON_THEIR_WAY = 1 << 30

_Shape = TypeVar("_Shape", bound=msgspec.Struct)


class _OnItsWay:
    """Counts the bytes of bodies that are being read or decoded."""

    def __init__(self) -> None:
        self._total = 0

    @contextmanager
    def share(self) -> Iterator[Callable[[int], None]]:
        """Give what adds the bytes of one body, and takes them back at the end."""
        size = 0

        def add(count: int) -> None:
            nonlocal size
            size += count
            self._total += count
            if size > LONG_BODY_BYTES and self._total > MAX_BYTES_ON_THEIR_WAY:
                raise QueueFull("too many long requests are being read: try again later")

        try:
            yield add
        finally:
            self._total -= size


_on_its_way = _OnItsWay()


async def read_body(request: Request, shape: type[_Shape]) -> _Shape:
    """Return the request's JSON body as a `shape`.

    Raises BadRequest (naming the field) for anything that is not one, BodyTooLarge beyond 32 MiB,
    QueueFull for a long body while there are too many, Aborted where the client leaves before it
    has sent the body.
    """
    _check_headers(request)
    with _on_its_way.share() as share:
        body = await _read(request, share)
        if len(body) < LONG_BODY_BYTES:
            if len(body) > _SHORT_BODY_BYTES:
                await own_turn()
            return decode(body, shape)
        return await asyncio.get_running_loop().run_in_executor(_long_bodies, decode, body, shape)


def decode(body: bytes, shape: type[_Shape]) -> _Shape:
    """Return `body` as a `shape`; see `read_body`."""
    try:
        body.decode("utf-8")
    except UnicodeDecodeError as fault:
        raise BadRequest(f"the body is not UTF-8 (byte {fault.start})") from fault
    # Each part has a byte of its own.
    many = len(body) > MAX_PARTS and _most_parts(body) > MAX_PARTS
    if many and _count_parts(body) > MAX_PARTS:
        raise BadRequest(f"the body has more than {MAX_PARTS} arrays, objects and strings")
    commas = body.count(b",")
    if commas > MAX_VALUES and count_commas(body) > MAX_VALUES:
        raise BadRequest(f"the body has more than {MAX_VALUES} values: send parts")
    try:
        hints = hints_of(shape)
        try:
            reader = decode_json if commas <= MAX_OTHER_VALUES else decode_long
            decoded = reader(body, shape)
        except msgspec.ValidationError as fault:
            # What is missing may be there under another server's name.
            if "missing required field" in str(fault):
                hints.refuse_any(body)
            raise field_error(str(fault), hints) from fault
        hints.refuse_any(body)
        return decoded
    except msgspec.DecodeError as fault:
        # A string cut off inside a surrogate pair reads as truncated, too.
        raise BadRequest(f"the body is not valid JSON: {fault}") from fault
    except RecursionError as fault:
        raise BadRequest("the body is nested too deeply") from fault
    except (ValueError, OverflowError) as fault:
        raise BadRequest(f"the body cannot be read: {fault}") from fault


def _most_parts(body: bytes) -> int:
    """Return no less than `_count_parts`, in a tenth of its time: what stands in strings counts."""
    return body.count(b"[") + body.count(b"{") + body.count(b'"') // 2


def _count_parts(body: bytes) -> int:
    """Return how many arrays, objects and strings (keys included) a JSON text has."""
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    text = np.frombuffer(plain, dtype=np.uint8)
    quotes = text == ord('"')
    opens = (text == ord("[")) | (text == ord("{"))
    opens &= ~np.logical_xor.accumulate(quotes)
    return int(np.count_nonzero(opens)) + int(np.count_nonzero(quotes)) // 2


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


async def _read(request: Request, share: Callable[[int], None]) -> bytes:
    chunks: list[bytes] = []
    size = 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > MAX_BODY_BYTES:
                raise BodyTooLarge(f"the body has more than {MAX_BODY_BYTES} bytes")
            share(len(chunk))
            chunks.append(chunk)
    except ClientDisconnect as gone:
        raise Aborted("the client left before its request was complete") from gone
    return b"".join(chunks)
