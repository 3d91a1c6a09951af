"""Long JSON in slices: encoding all of it at once would hold up every other request."""

from collections.abc import Callable, Iterator
from typing import Any, cast

import msgspec

__all__ = ["LazyRows", "held_bytes", "is_long", "json_slices"]

# Numbers, texts and lists that one slice has, about: a few milliseconds of work.
SLICE_ITEMS = 1 << 13
# Encoding so many takes no longer than a slice.
_SHORT_ITEMS = 1 << 14


class LazyRows:
    """A list that is made as it is encoded, a part at a time.

    count       items
    each        size of an item, in numbers and texts
    part        returns items [start, stop)
    held_bytes  memory that it holds until then
    """

    def __init__(
        self,
        count: int,
        each: int,
        part: Callable[[int, int], list[Any]],
        *,
        held_bytes: int = 0,
    ) -> None:
        self.count = count
        self.each = each
        self.part = part
        self.held_bytes = held_bytes


def is_long(value: Any) -> bool:
    """Return whether a JSON value is worth slicing; it looks at no more than it must."""
    return _size(value, _SHORT_ITEMS) > _SHORT_ITEMS


def held_bytes(value: Any, *, depth: int = 2) -> int:
    """Return the memory that the `LazyRows` in a reply hold.

    depth  objects inside each other that are looked into: of a reply, and of what is told of it
    """
    if isinstance(value, LazyRows):
        return value.held_bytes
    if isinstance(value, dict) and depth:
        inner = cast(dict[str, Any], value).values()
        return sum(held_bytes(item, depth=depth - 1) for item in inner)
    if isinstance(value, list) and depth:
        items = cast(list[Any], value)
        if items and isinstance(items[0], dict):
            return sum(held_bytes(item, depth=depth) for item in items)
    return 0


def json_slices(value: Any) -> Iterator[bytes]:
    """Yield the JSON of `value`, which may hold `LazyRows`, in pieces of bounded work."""
    if isinstance(value, LazyRows):
        yield from _list_slices(value)
    elif not is_long(value):
        yield msgspec.json.encode(value)
    elif isinstance(value, dict):
        yield b"{"
        fields = cast(dict[str, Any], value)
        for number, (name, item) in enumerate(fields.items()):
            yield (b"," if number else b"") + msgspec.json.encode(name) + b":"
            yield from json_slices(item)
        yield b"}"
    elif isinstance(value, list):
        yield from _items(cast(list[Any], value))
    else:
        yield msgspec.json.encode(value)


def _items(items: list[Any]) -> Iterator[bytes]:
    """Yield the JSON of a list; each item is looked at in the slice that it belongs to."""
    yield b"["
    begun = size = 0
    for number, item in enumerate(items):
        each = 1 + _size(item, SLICE_ITEMS)
        if begun < number and size + each > SLICE_ITEMS:
            yield (b"," if begun else b"") + msgspec.json.encode(items[begun:number])[1:-1]
            begun, size = number, 0
        size += each
        if each > SLICE_ITEMS // 2:
            if begun < number:
                yield (b"," if begun else b"") + msgspec.json.encode(items[begun:number])[1:-1]
            yield b"," if number else b""
            yield from json_slices(item)
            begun, size = number + 1, 0
    if begun < len(items):
        yield (b"," if begun else b"") + msgspec.json.encode(items[begun:])[1:-1]
    yield b"]"


def _list_slices(rows: LazyRows) -> Iterator[bytes]:
    step = max(1, SLICE_ITEMS // rows.each)
    yield b"["
    for start in range(0, rows.count, step):
        items = rows.part(start, min(start + step, rows.count))
        yield (b"," if start else b"") + msgspec.json.encode(items)[1:-1]
    yield b"]"


def _size(value: Any, most: int) -> int:
    """Return how many numbers and texts a value has, or some number beyond `most`."""
    if isinstance(value, LazyRows):
        return most + 1
    if isinstance(value, str):
        return 1 + len(value) // 64
    if isinstance(value, dict):
        inner: Any = cast(dict[str, Any], value).values()
    elif isinstance(value, list | tuple):
        inner = cast(list[Any], value)
        if len(inner) > most or (inner and isinstance(inner[0], int | float)):
            return 1 + len(inner)
    else:
        return 1
    total = 1
    for item in inner:
        total += _size(item, most)
        if total > most:
            break
    return total
