"""The children of a node, found by their first page of tokens and never by a scan.

    key    bytes of a child's first page of tokens, shorter only for a leaf that ends inside it
    head   a resume point inside a first page, known by the bytes of the tokens before it

Children may share the first tokens of a page, so a query that matches none of them exactly needs
the one with the longest common run: in sorted order that is one of the two neighbours. Any byte
order of the tokens sorts equal runs together, so the tokens' own is used. A resume point is true
for every child that shares the tokens before it, whichever of them it hangs on: hence heads.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import Generic, TypeVar

import numpy as np

N = TypeVar("N")
P = TypeVar("P")

TOKEN_BYTES = 4

_BLOCK = 512


def common_run(left: np.ndarray, right: np.ndarray) -> int:
    """Return how many tokens the two int32 arrays have in common from their start on."""
    length = min(len(left), len(right))
    if not length:
        return 0
    differs = left[:length] != right[:length]
    first = int(differs.argmax())
    return first if differs[first] else length


def _first(block: list[bytes]) -> bytes:
    return block[0]


class Children(Generic[N, P]):
    """Children by key, and resume points inside their first pages by the tokens before them."""

    __slots__ = ("_by_key", "_head_lengths", "_heads", "_sorted")

    def __init__(self) -> None:
        self._by_key: dict[bytes, N] = {}
        # Sorted keys in sorted blocks, so that adding one among 100,000 moves few of them.
        self._sorted: list[list[bytes]] = []
        self._heads: dict[bytes, P] = {}
        self._head_lengths: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[N]:
        return iter(self._by_key.values())

    def items(self) -> Iterator[tuple[bytes, N]]:
        """Go through (key, child) in no particular order."""
        return iter(self._by_key.items())

    def heads(self) -> Iterator[tuple[bytes, P]]:
        """Go through (bytes of the tokens before it in the page, resume point)."""
        return iter(self._heads.items())

    def sorted_keys(self) -> Iterator[bytes]:
        """Go through the keys in ascending order."""
        return (key for block in self._sorted for key in block)

    def add(self, key: bytes, child: N) -> None:
        """Add `child` under a key that is not there and is no prefix of another."""
        self._by_key[key] = child
        if not self._sorted:
            self._sorted.append([key])
            return
        at = self._block_of(key)
        block = self._sorted[at]
        insort(block, key)
        if len(block) > _BLOCK:
            self._sorted[at : at + 1] = [block[: _BLOCK // 2], block[_BLOCK // 2 :]]

    def remove(self, key: bytes) -> None:
        """Take out the child under `key`; heads stay."""
        del self._by_key[key]
        at = self._block_of(key)
        block = self._sorted[at]
        del block[bisect_left(block, key)]
        if not block:
            del self._sorted[at]

    def replace(self, key: bytes, child: N) -> None:
        """Put `child` where another child with the same first page was."""
        self._by_key[key] = child

    def nearest(self, key: bytes) -> tuple[N | None, int]:
        """Return a child that shares the longest run with `key`, and the run in tokens.

        None and 0 if no child has the first token.
        """
        child = self._by_key.get(key)
        if child is not None:
            return child, len(key) // TOKEN_BYTES
        if not self._sorted:
            return None, 0
        at = self._block_of(key)
        block = self._sorted[at]
        place = bisect_left(block, key)
        neighbours = block[max(0, place - 1) : place + 1]
        if place == len(block) and at + 1 < len(self._sorted):
            neighbours.append(self._sorted[at + 1][0])
        wanted = np.frombuffer(key, np.int32)
        best, longest = b"", 0
        for neighbour in neighbours:
            run = common_run(np.frombuffer(neighbour, np.int32), wanted)
            if run > longest:
                best, longest = neighbour, run
        return (self._by_key[best], longest) if longest else (None, 0)

    def add_head(self, tokens: bytes, point: P) -> None:
        """Make a resume point known that has `tokens` before it in its page."""
        self._heads[tokens] = point
        length = len(tokens)
        self._head_lengths[length] = self._head_lengths.get(length, 0) + 1

    def remove_head(self, tokens: bytes) -> None:
        """Forget the resume point that has `tokens` before it in its page."""
        del self._heads[tokens]
        length = len(tokens)
        self._head_lengths[length] -= 1
        if not self._head_lengths[length]:
            del self._head_lengths[length]

    def head(self, tokens: bytes) -> P | None:
        """Return the resume point that has exactly `tokens` before it in its page."""
        return self._heads.get(tokens)

    def deepest_head(self, tokens: bytes) -> P | None:
        """Return the resume point that has the longest part of `tokens`, or all, before it."""
        for length in sorted(self._head_lengths, reverse=True):
            if length <= len(tokens):
                point = self._heads.get(tokens[:length])
                if point is not None:
                    return point
        return None

    def _block_of(self, key: bytes) -> int:
        return max(0, bisect_right(self._sorted, key, key=_first) - 1)
