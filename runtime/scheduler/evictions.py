"""Makes room in the pools by evicting from the tree, and measures how long that takes."""

import time
from collections.abc import Callable

from mem_cache.tree.radix import ShadowRadixCache
from runtime.durations import Durations


class Evictions:
    """The only way by which the scheduler evicts.

    seconds  of each call that evicted anything
    """

    def __init__(
        self, cache: ShadowRadixCache, *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._cache = cache
        self._clock = clock
        self.seconds = Durations()

    def make_room(self, pages: int) -> bool:
        """Have so many full pages free; False if they cannot be had."""
        cache = self._cache
        return cache.full.free >= pages or self._timed(lambda: cache.evict_full(pages))

    def drop_points(self, *, swa_pages: int = 0, states: int = 0) -> bool:
        """Have so many SWA pages and states free; False if they cannot be had."""
        cache = self._cache
        if cache.swa.free >= swa_pages and cache.states.free >= states:
            return True
        return self._timed(lambda: cache.evict_swa(swa_pages=swa_pages, states=states))

    def shrink(self, namespace: str, *, keep_tokens: int) -> None:
        """Have a namespace hold so many tokens at most, as far as no lock protects more."""
        self._timed(lambda: self._cache.shrink(namespace, keep_tokens=keep_tokens))

    def _timed(self, evict: Callable[[], bool]) -> bool:
        evicted, started_s = self._evicted, self._clock()
        done = evict()
        if self._evicted != evicted:
            self.seconds.observe(self._clock() - started_s)
        return done

    @property
    def _evicted(self) -> int:
        return self._cache.evicted_pages + self._cache.evicted_points
