"""What enters and leaves the tree, told to routers: whole pages only, each by a content hash.

    inserted, cleared ...  as the tree changes       flush  once a turn: one batch, if any

A page counts as stored as soon as it is whole in the tree: any prefix of whole pages can be gone
on from, by a resume point or by a bounded replay. Costs a microsecond or two for each new page.

The key of the hashes (`runtime.kv_hashes`) is the sink's, or else lives as long as the process.
"""

import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Protocol

from mem_cache.errors import IntegrityError
from mem_cache.tree.handles import Insertion
from mem_cache.tree.radix import ShadowRadixCache
from runtime.kv_hashes import chain_hashes, top_hash
from runtime.scheduler.kv_event_wire import Cleared, Event, Removed, Stored


class EventSink(Protocol):
    """Where batches of events go.

    hash_key  of readers that compute hashes of namespaces; None: there are none
    """

    @property
    def hash_key(self) -> bytes | None:
        """Return the key, or None."""
        ...

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
        self._hash_key = sink.hash_key or secrets.token_bytes(32)
        self._hashes: dict[int, int] = {}
        # Pages of each hash that a match can find: a clean copy may stand beside one set aside.
        self._copies = Counter[int]()
        # Pages that no match finds, or that came after one of these: nobody is told of them.
        self._aside: set[int] = set()
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
        hashes = chain_hashes(
            top_hash(namespace, self._hash_key) if parent is None else parent, tokens
        )
        self._hashes.update(zip(pages.tolist(), hashes, strict=True))
        if page_above in self._aside:
            self._aside.update(pages.tolist())
            return
        self._copies.update(hashes)
        # A page that follows one set aside may be another copy. What follows a new one is new.
        known = sum(self._copies[hashed] > 1 for hashed in hashes)
        if known < len(hashes):
            above = hashes[known - 1] if known else parent
            self._pending.append(Stored(hashes[known:], above, tokens[known:]))

    def cleared(self) -> None:
        """Note that the tree was reset."""
        self._cache.take_removed()
        self._hashes.clear()
        self._copies.clear()
        self._aside.clear()
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
        self._tell_gone([page for page in known if page not in self._aside])
        for page in known:
            del self._hashes[page]
            self._aside.discard(page)

    def set_aside(self, pages: Iterable[int]) -> None:
        """Note that no match finds pages of the tree any more; some have left, others may later."""
        self._note_removed()
        gone = [page for page in pages if page in self._hashes and page not in self._aside]
        self._tell_gone(gone)
        self._aside.update(gone)

    def _tell_gone(self, pages: list[int]) -> None:
        hashes = [self._hashes[page] for page in pages]
        self._copies.subtract(hashes)
        last = [hashed for hashed in hashes if self._copies[hashed] <= 0]
        for hashed in last:
            del self._copies[hashed]
        if last:
            self._pending.append(Removed(last))
