"""Prefixes that are not in a tree yet, but whose requests wait or are being prefilled."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from runtime.scheduler.request import Request

__all__ = ["PendingPrefixes", "prefix_hashes"]


class PendingPrefixes:
    """Counts, for each prefix of whole pages, the requests of a replica that will compute it.

    Prefixes are known by `prefix_hashes`; a request without any is in no count.
    """

    def __init__(self) -> None:
        self._of: dict[int, tuple[int, ...]] = {}
        self._requests = Counter[int]()

    def add(self, request: Request) -> None:
        """Note a request that waits or is prefilled; doing it again does nothing."""
        if request.prefixes and request.id not in self._of:
            self._of[request.id] = request.prefixes
            self._requests.update(request.prefixes)

    def remove(self, request: Request) -> None:
        """Forget a request, if it was added."""
        for value in self._of.pop(request.id, ()):
            self._requests[value] -= 1
            if not self._requests[value]:
                del self._requests[value]

    def match(self, hashes: Sequence[int]) -> int:
        """Return how many leading pages a request has in common with one that was added."""
        pages = 0
        for value in hashes:
            if value not in self._requests:
                break
            pages += 1
        return pages


def prefix_hashes(tokens: np.ndarray, *, page_size: int, namespace: str) -> tuple[int, ...]:
    """Return a hash of each prefix of whole pages.

    tokens  [n] int32
    They are equal in one process only. Prefixes that differ may share one, about never.
    """
    hashes: list[int] = []
    before = hash(namespace)
    for start in range(0, len(tokens) - page_size + 1, page_size):
        before = hash((before, tokens[start : start + page_size].tobytes()))
        hashes.append(before)
    return tuple(hashes)
