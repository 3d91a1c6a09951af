"""What enters and leaves the tree, told to routers: whole pages only, each by a content hash.

    inserted, cleared ...  as the tree changes       flush  once a turn: one batch, if any

A page counts as stored as soon as it is whole in the tree: any prefix of whole pages can be gone
on from, by a resume point or by a bounded replay. Costs a microsecond or two for each new page.

A hash covers the hash before it and the page's tokens, so it stands for everything up to there.
Without a namespace it is the same in every process. The names of namespaces stem from keys and
salts: they enter under a key that lives as long as the process, so that nobody can try out guesses
on published hashes.
"""

import hashlib
import secrets
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np

from mem_cache.errors import IntegrityError
from mem_cache.tree.handles import Insertion
from mem_cache.tree.radix import ShadowRadixCache
from runtime.scheduler.kv_event_wire import Cleared, Event, Removed, Stored

HASH_BYTES = 8
_BLOCK, _TOP = b"umbra kv block", b"umbra kv top"


class EventSink(Protocol):
    """Where batches of events go."""

    def publish(self, events: list[Event], *, time_s: float) -> None:
        """Take a batch, in order; never block. `time_s` is Unix time."""
        ...


class KvEvents:
    """Turns changes of one tree into events; tell it of each insertion, right after it.

    cache  keeps a log of removed pages (`log_removed`), which this takes
    clock  Unix time in seconds
    """

    def __init__(
        self,
        cache: ShadowRadixCache,
        sink: EventSink,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._cache = cache
        self._sink = sink
        self._clock = clock
        self._secret = secrets.token_bytes(32)
        self._hashes: dict[int, int] = {}
        self._pending: list[Event] = []

    def inserted(self, insertion: Insertion, namespace: str) -> None:
        """Note the whole pages that an insertion added, after those that left before it.

        Raises IntegrityError if an earlier insertion was not told.
        """
        # A page id may have left and come back since the last call: first it left.
        self._note_removed()
        pages = insertion.pages[insertion.first_new :]
        if not len(pages):
            return
        arrays = self._cache.arrays
        nodes = arrays.node_of[pages]
        above = arrays.page("parent").item(nodes[0])
        page_above = arrays.unit.item(above) if above > 0 else 0
        parent = self._hashes.get(page_above)
        if page_above and parent is None:
            raise IntegrityError(
                f"page {pages[0]} comes after page {page_above}, which has no hash"
            )
        tokens = arrays.tokens[nodes]
        hashes = chain_hashes(self._top(namespace) if parent is None else parent, tokens)
        self._hashes.update(zip(pages.tolist(), hashes, strict=True))
        self._pending.append(Stored(hashes, parent, tokens))

    def cleared(self) -> None:
        """Note that the tree was reset."""
        self._cache.take_removed()
        self._hashes.clear()
        self._pending.append(Cleared())

    def flush(self) -> None:
        """Hand on what happened since the last call."""
        self._note_removed()
        if self._pending:
            self._sink.publish(self._pending, time_s=self._clock())
            self._pending = []

    def _note_removed(self) -> None:
        removed = self._cache.take_removed()
        if not len(removed):
            return
        # Partial pages never had a hash.
        known = [page for page in removed.tolist() if page in self._hashes]
        if known:
            self._pending.append(Removed([self._hashes.pop(page) for page in known]))

    def _top(self, namespace: str) -> int:
        key = self._secret if namespace else b""
        name = namespace.encode()
        digest = hashlib.blake2b(name, digest_size=HASH_BYTES, key=key, person=_TOP).digest()
        return int.from_bytes(digest, "big")


def chain_hashes(before: int, tokens: np.ndarray) -> list[int]:
    """Return the hash of each page of a run: BLAKE2b of the one before it and its own tokens.

    before  hash of the page before the run, or of the top of a namespace
    tokens  [pages, page_size] int32, hashed as little-endian bytes
    """
    hashes: list[int] = []
    digest = before.to_bytes(HASH_BYTES, "big")
    for page in tokens.astype("<i4", copy=False):
        hashed = hashlib.blake2b(digest, digest_size=HASH_BYTES, person=_BLOCK)
        hashed.update(page.tobytes())
        digest = hashed.digest()
        hashes.append(int.from_bytes(digest, "big"))
    return hashes
