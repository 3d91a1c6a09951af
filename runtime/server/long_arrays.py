"""Long arrays of numbers in a body, decoded a part at a time.

Decoding holds the interpreter: of four million token ids for a quarter of a second, in which no
stream goes on. In parts it lets others have turns, from a thread.
"""

import re
import typing
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
import numpy as np

from runtime.errors import BadRequest
from runtime.server.whole_numbers import as_shape, is_of_float

__all__ = ["LONG_ARRAY_BYTES", "MAX_OTHER_VALUES", "count_commas", "decode_json", "decode_long"]

# Decoding so much takes some five milliseconds.
LONG_ARRAY_BYTES = 1 << 18
# Values of a body that are not in long arrays.
MAX_OTHER_VALUES = 1 << 19

_Shape = TypeVar("_Shape", bound=msgspec.Struct)


def decode_long(body: bytes, shape: type[_Shape]) -> _Shape:
    """Return a JSON object as a `shape`; its long arrays of numbers are decoded in parts.

    Such an array has numbers, or lists of numbers. Raises msgspec.DecodeError or ValidationError,
    BadRequest for an array of both, or where there are too many values besides.
    """
    types = _types(shape)
    long: dict[str, bytes] = {}
    others: dict[str, msgspec.Raw] = {}
    values = 0
    for name, raw in msgspec.json.decode(body, type=dict[str, msgspec.Raw]).items():
        text = bytes(raw)
        if name in types and _is_long_array(text):
            long[name] = text
            others[name] = msgspec.Raw(b"[]")  # where no array may be, that is told
        elif name in types or len(text) < LONG_ARRAY_BYTES:
            others[name] = raw
            values += count_commas(text) if text.count(b",") > MAX_OTHER_VALUES - values else 0
    if values > MAX_OTHER_VALUES:
        raise BadRequest(f"the body has more than {MAX_OTHER_VALUES} values besides token ids")
    decoded = decode_json(msgspec.json.encode(others), shape)
    lists = {name: _array(text, types[name], name) for name, text in long.items()}
    return msgspec.structs.replace(decoded, **lists)


def decode_json(body: bytes, shape: Any) -> Any:
    """Return JSON as a `shape`, in which whole numbers may be written as floats.

    Raises msgspec.DecodeError or ValidationError.
    """
    try:
        return msgspec.json.decode(body, type=shape)
    except msgspec.ValidationError as fault:
        if not is_of_float(fault):
            raise
    return as_shape(msgspec.json.decode(body), shape)


@lru_cache(maxsize=64)
def _types(shape: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the type of each field, by its name in JSON."""
    return {
        field.encode_name: hint
        for field, hint in zip(
            msgspec.structs.fields(shape),
            (typing.get_type_hints(shape, include_extras=True)[f] for f in shape.__struct_fields__),
            strict=True,
        )
    }


def count_commas(text: bytes) -> int:
    """Return how many commas a JSON text has outside of its strings."""
    plain = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    array = np.frombuffer(plain, dtype=np.uint8)
    inside = np.logical_xor.accumulate(array == ord('"'))
    return int(np.count_nonzero((array == ord(",")) & ~inside))


def _is_long_array(text: bytes) -> bool:
    """Return whether a JSON value is a long array without strings and objects."""
    if len(text) < LONG_ARRAY_BYTES or not text.startswith(b"["):
        return False
    return b'"' not in text and b"{" not in text


def _array(raw: bytes, kind: Any, name: str) -> list[Any]:
    """Return a long array as a list of `kind`."""
    inner = raw[1:-1].strip()
    if not inner.startswith(b"["):
        parts = _split(inner, b",")
    else:
        decode_json(b"[[]]", kind)
        parts = _split(inner, b"]")
    values: list[Any] = []
    for part in parts:
        values += _part(part, kind, name, len(values))
    return values


def _part(part: bytes, kind: Any, name: str, before: int) -> list[Any]:
    """Return some items of an array, of which `before` come before these."""
    if len(part) > 2 * LONG_ARRAY_BYTES:
        return [_inner(part, kind, f"{name}[{before}]")]
    try:
        return decode_json(b"[" + part + b"]", kind)
    except msgspec.ValidationError as fault:
        text = re.sub(
            r"\$\[(\d+)\]", lambda at: f"$.{name}[{before + int(at[1])}]", str(fault), count=1
        )
        raise msgspec.ValidationError(text) from fault
    except msgspec.DecodeError:
        raise _mixture(name) from None


def _inner(part: bytes, kind: Any, name: str) -> list[Any]:
    """Return one long list of an array of lists; its numbers are such as the array could have."""
    if not part.startswith(b"["):
        raise _mixture(name)
    values: list[Any] = []
    for piece in _split(part[1:-1], b","):
        values += _part(piece, kind, name, len(values))
    return values


def _mixture(name: str) -> BadRequest:
    field = name.partition("[")[0]
    return BadRequest(f"{field} mixes values and lists, or has lists of lists", param=field)


def _split(text: bytes, end: bytes) -> Iterator[bytes]:
    """Yield parts of a JSON array's inside, without the commas between them.

    end  what an item ends with: a comma, which is no part of it, or a bracket, which is
    A part has `LONG_ARRAY_BYTES`, or is one item.
    """
    at, after = 0, 0 if end == b"," else len(end)
    while at < len(text):
        cut = text.rfind(end, at, at + LONG_ARRAY_BYTES)
        if len(text) - at <= LONG_ARRAY_BYTES:
            cut = len(text)
        elif cut < 0:
            cut = text.find(end, at)
            cut = len(text) if cut < 0 else cut + after
        else:
            cut += after
        part = text[at:cut].strip()
        comma = text.find(b",", cut)
        at = len(text) if comma < 0 else comma + 1
        yield part
