"""A list from least to most recently used, linked through the items themselves.

An item derives from `Link`, which has room for one list: nodes stand in the list of full pages,
resume points in the list of windows. Every step costs the same, however long the list is.
"""

from collections.abc import Iterator
from typing import Generic, TypeVar, cast

from mem_cache.errors import IntegrityError


class Link:
    """Base of what an `LruList` can hold: the two neighbours, both None outside a list."""

    __slots__ = ("newer", "older")

    def __init__(self) -> None:
        self.newer: Link | None = None
        self.older: Link | None = None

    @property
    def linked(self) -> bool:
        """Whether the item stands in a list."""
        return self.newer is not None


T = TypeVar("T", bound=Link)


class LruList(Generic[T]):
    """Items in order of use. Raises IntegrityError where an item is not where it should be."""

    def __init__(self) -> None:
        # A ring closed by one end piece: `newer` of it is the oldest item.
        self._ends = Link()
        self._ends.newer = self._ends.older = self._ends
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        """Go from the oldest to the newest; the list must not change meanwhile."""
        link = self._ends.newer
        while link is not None and link is not self._ends:
            yield cast(T, link)
            link = link.newer

    @property
    def oldest(self) -> T | None:
        """The item used longest ago, or None if there is none."""
        return None if self._length == 0 else cast(T, self._ends.newer)

    def push_newest(self, item: T) -> None:
        """Add `item` as the most recently used."""
        self._link(item, cast(Link, self._ends.older), self._ends)

    def push_oldest(self, item: T) -> None:
        """Add `item` as the least recently used: next in line."""
        self._link(item, self._ends, cast(Link, self._ends.newer))

    def remove(self, item: T) -> None:
        """Take `item` out."""
        older, newer = item.older, item.newer
        if older is None or newer is None:
            raise IntegrityError("an item that stands in no list was to leave one")
        older.newer, newer.older = newer, older
        item.older = item.newer = None
        self._length -= 1

    def touch(self, item: T) -> None:
        """Make `item` the most recently used, whether it stands here already or in no list."""
        if item.newer is not None:
            if item.newer is self._ends:
                return
            self.remove(item)
        self.push_newest(item)

    def check(self) -> None:
        """Verify that the links agree in both directions and with the length."""
        before, link, steps = self._ends, self._ends.newer, 0
        while link is not None and link.older is before and steps <= self._length:
            if link is self._ends:
                break
            before, link, steps = link, link.newer, steps + 1
        if link is None or link is not self._ends or (link.older, steps) != (before, self._length):
            raise IntegrityError(f"list of {self._length} items is broken after {steps} of them")

    def _link(self, item: T, older: Link, newer: Link) -> None:
        if item.newer is not None:
            raise IntegrityError("an item that stands in a list was to enter one")
        item.older, item.newer = older, newer
        older.newer = newer.older = item
        self._length += 1
