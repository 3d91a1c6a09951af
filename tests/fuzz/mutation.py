"""Damaged copies of valid inputs, as Hypothesis strategies: failures shrink, seeds repeat."""

import json
from collections.abc import Sequence
from typing import Any, cast

from hypothesis import strategies as st

__all__ = ["cuts", "damaged_bytes", "damaged_json", "json_text"]

_MOST_CHANGES = 4
_MOST_INSERTED = 24
_WIDTHS = (1, 2, 4, 8)
# Where counters, signs and allocations turn.
_NUMBERS = sorted(
    {
        0,
        1,
        2,
        *((1 << bits) + step for bits in (7, 8, 15, 16, 31, 32, 40, 63, 64) for step in (-1, 0)),
    }
)
_ODD: list[Any] = [
    *(None, True, False, "", "x", [], {}, [[]], {"": None}, 0, -1, 1, 2, 3, 0.5, -0.0, 1e308),
    *(2**31, 2**40, 2**63, -(2**63), 2**64, 10**400, float("nan"), float("inf"), -float("inf")),
    *("\ud800", "\0", "a" * 5000, "../x", "%s", "{{", "1", [0] * 300, ["x", 1, None]),
    {"type": "object"},
    {"role": "user"},
]


def _deep() -> Any:
    """Return a list in a list, and so on, beyond what recursion takes."""
    value: Any = []
    for _ in range(600):
        value = [value]
    return value


_ODD.append(_deep())


@st.composite
def damaged_bytes(draw: st.DrawFn, seeds: Sequence[bytes]) -> bytes:
    """Draw one of `seeds` with up to four changes; now and then bytes that are none of them."""
    if draw(st.integers(0, 15)) == 0:
        return draw(st.binary(max_size=200))
    data = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(0, _MOST_CHANGES))):
        data = _changed(draw, data, seeds)
    return data


def _changed(draw: st.DrawFn, data: bytes, seeds: Sequence[bytes]) -> bytes:
    # Most of a header stands in the first bytes, however long the data behind it are.
    at = draw(st.one_of(st.integers(0, min(len(data), 400)), st.integers(0, len(data))))
    size = draw(st.integers(0, _MOST_INSERTED))
    match draw(st.integers(0, 6)):
        case 0:
            return data[:at] + draw(st.binary(min_size=1, max_size=4)) + data[at + size :]
        case 1:
            return data[:at]
        case 2:
            return data[:at] + data[at + size :]
        case 3:
            return data[:at] + data[at : at + size] * draw(st.integers(2, 40)) + data[at + size :]
        case 4:
            other = draw(st.sampled_from(seeds))
            return data[:at] + other[draw(st.integers(0, len(other))) :]
        case 5:
            flipped = bytes([data[at] ^ 1 << draw(st.integers(0, 7))]) if at < len(data) else b""
            return data[:at] + flipped + data[at + 1 :]
        case _:
            width = draw(st.sampled_from(_WIDTHS))
            number = draw(st.sampled_from(_NUMBERS)) % (1 << 8 * width)
            order = draw(st.sampled_from(("little", "big")))
            return data[:at] + number.to_bytes(width, order) + data[at + width :]


@st.composite
def damaged_json(draw: st.DrawFn, seeds: Sequence[Any]) -> Any:
    """Draw one of `seeds`, JSON values, with up to four of its parts changed."""
    value = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(0, _MOST_CHANGES))):
        path = draw(st.sampled_from(list(_paths(value))))
        change = draw(st.integers(0, 4))
        value = _put(value, path, _odd(draw, value, seeds, change), drop=change == 0)
    return value


def _odd(draw: st.DrawFn, value: Any, seeds: Sequence[Any], change: int) -> Any:
    if change == 1:
        other = draw(st.sampled_from(seeds))
        return _at(other, draw(st.sampled_from(list(_paths(other)))))
    if change == 2:
        return [_at(value, draw(st.sampled_from(list(_paths(value)))))]
    return draw(st.sampled_from(_ODD))


def _paths(value: Any, path: tuple[Any, ...] = (), depth: int = 12) -> list[tuple[Any, ...]]:
    found = [path]
    if depth == 0:
        return found
    if isinstance(value, dict):
        for key, item in cast(dict[str, Any], value).items():
            found += _paths(item, (*path, key), depth - 1)
    elif isinstance(value, list):
        for k, item in enumerate(cast(list[Any], value)[:8]):
            found += _paths(item, (*path, k), depth - 1)
    return found


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def _put(value: Any, path: tuple[Any, ...], new: Any, *, drop: bool) -> Any:
    """Return a copy of `value` in which `new` is at `path`, or nothing with `drop`."""
    if not path:
        return value if drop else new
    key, rest = path[0], path[1:]
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    if drop and not rest:
        del copy[key]
    else:
        copy[key] = _put(copy[key], rest, new, drop=drop)
    return copy


def json_text(value: Any) -> bytes:
    """Return the JSON of a value; NaN and lone surrogates are in it as Python writes them."""
    return json.dumps(value).encode()


def cuts(data: bytes, seed: int) -> list[bytes]:
    """Return the bytes in pieces; the same ones for the same seed, and each size comes up."""
    pieces: list[bytes] = []
    at = 0
    while at < len(data):
        seed = (seed * 1103515245 + 12345) & 0x7FFFFFFF
        size = 1 + (seed >> 16) % (1, 3, 16, 400)[(seed >> 8) & 3]
        pieces.append(data[at : at + size])
        at += size
    return pieces
