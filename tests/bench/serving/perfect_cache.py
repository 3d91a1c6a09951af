"""What a prefix cache could spare at best: one that forgets nothing and shares at once."""

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

_ID_BYTES = 4


class PerfectCache:
    """All sequences so far, sorted: of all of them, a neighbour has the longest common prefix.

    Big-endian ids order as bytes like the sequences themselves, so that a comparison is one of
    the interpreter's own, whatever the length.
    """

    def __init__(self) -> None:
        self._known: list[bytes] = []

    def add(self, tokens: Sequence[int]) -> None:
        """Take in a sequence; what is a prefix of it needs no place any more."""
        data = _pack(tokens)
        at = bisect_left(self._known, data)
        if at < len(self._known) and self._known[at].startswith(data):
            return
        first = at
        while first and data.startswith(self._known[first - 1]):
            first -= 1
        self._known[first:at] = [data]

    def hit(self, prompt: Sequence[int]) -> int:
        """Return how many leading tokens of `prompt` were there before.

        The last token does not count: an answer needs at least one token to be computed.
        """
        data = _pack(prompt)
        at = bisect_left(self._known, data)
        near = self._known[max(0, at - 1) : at + 1]
        longest = max((_common_bytes(data, other) for other in near), default=0)
        return max(0, min(longest // _ID_BYTES, len(prompt) - 1))


def _pack(tokens: Sequence[int]) -> bytes:
    return np.asarray(tokens, dtype=">u4").tobytes()


def _common_bytes(one: bytes, other: bytes) -> int:
    length = min(len(one), len(other))
    differ = np.frombuffer(one, np.uint8, length) != np.frombuffer(other, np.uint8, length)
    return int(differ.argmax()) if differ.any() else length
