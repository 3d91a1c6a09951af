"""Sets aside the cached pages that NaN or infinite numbers may have spoilt: none is reused."""

from mem_cache.spec import div_ceil
from mem_cache.tree.aside import below, only_of, set_aside, top_of
from mem_cache.tree.handles import Match
from mem_cache.tree.radix import ShadowRadixCache
from runtime.scheduler.kv_events import KvEvents
from runtime.scheduler.request import Request

__all__ = ["Distrust"]


class Distrust:
    """Sets pages of a tree aside. Each method returns how many.

    events  publishes that they are gone; None: nothing is published
    """

    def __init__(self, cache: ShadowRadixCache, events: KvEvents | None) -> None:
        self._cache, self._events = cache, events

    def own(self, request: Request) -> int:
        """Set aside the pages that a running request added to the tree and no other one uses."""
        lock, page = request.holding.lock, self._cache.spec.page_size
        assert lock is not None
        first = div_ceil(request.holding.full_matched, page)
        return self._set_aside(only_of(self._cache, lock, first=first))

    def suspect(self, request: Request) -> int:
        """Set aside the first start of a request that is finite on its second try (`suspect`).

        Does nothing where another request has replaced that page already.
        """
        top = top_of(self._cache, self._found(request).node)
        return self._set_aside(top) if top == request.suspect else 0

    def end(self, request: Request) -> int:
        """Set aside the page with the last token of a request that has ended."""
        match = self._found(request)
        return self._set_aside(match.node) if match.full_tokens == request.total else 0

    def suspect_of(self, request: Request) -> int:
        """Return the first cached page that a running request started from; 0 for none."""
        lock = request.holding.lock
        assert lock is not None
        return top_of(self._cache, lock.node) if request.holding.full_matched else 0

    def _found(self, request: Request) -> Match:
        tokens = request.tokens[: request.total]
        return self._cache.peek(tokens, limit=len(tokens), namespace=request.namespace)

    def _set_aside(self, node: int) -> int:
        if node <= 0:
            return 0
        units: list[int] = self._cache.arrays.unit[below(self._cache, node)].tolist()
        pages = set_aside(self._cache, node)
        if self._events is not None and pages:
            self._events.set_aside(units)
        return pages
