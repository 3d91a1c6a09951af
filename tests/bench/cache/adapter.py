"""Umbra's own tree and allocators behind the interface of the shared cache benchmark.

A row does what `runtime.scheduler.residency` does with the tree: it has a window and a state of its
own, leaves points where the server's resume policy does, but for waypoints that are outside the
tree, and gives everything back. Sizes are the server's own, for V4-Flash and as many bytes.
"""

from collections import Counter

import numpy as np

from layers.models.deepseek_v4.layout import cache_spec
from layers.models.deepseek_v4.pool_spec import PoolSpec
from mem_cache.allocator import PageAllocator
from mem_cache.spec import TreeSpec
from mem_cache.tree.handles import Lock, Match, PointKind
from mem_cache.tree.policy import EvictionPolicy, TurnPolicy
from mem_cache.tree.radix import ShadowRadixCache
from runtime.collector import calm_collector
from runtime.config import ServerConfig
from runtime.executor.memory_budget import pool_sizes
from runtime.scheduler.resume_policy import ResumePolicy

FLASH = cache_spec(PoolSpec(TreeSpec(), (0, 0, *(4, 128) * 20, 4), 512, 64, 128, "fp8"))
# What the benchmark counts for a page of each of its two pools.
FULL_PAGE_BYTES, SWA_PAGE_BYTES = 256 * 3899, 256 * 31875
TREE = FLASH.tree
PAGE = TREE.page_size
RESUME = ResumePolicy()


class Row:
    """One request: what the benchmark reads and sets, and what the row holds."""

    lock: Lock
    pages: np.ndarray

    def __init__(self, match: Match, tokens: np.ndarray, prompt_tokens: int) -> None:
        self.match, self.toks, self.n = match, tokens, prompt_tokens
        self.hit, self.full_hit = match.start, match.full_tokens
        self.pages_held = self.pages_shared = match.full_tokens // PAGE
        self.window: list[int] = []
        self.state = self.row = 0
        wanted = RESUME.positions(match, target=prompt_tokens, boundaries=(), page_size=PAGE)
        # The deepest first: they are left from the end of the list.
        self.wanted = sorted(wanted.items(), reverse=True)


class Umbra:
    """The adapter. `lost` counts tokens computed again although their pages were there."""

    name = "umbra"
    policy: type[EvictionPolicy] = TurnPolicy

    def __init__(self, full_pages: int, swa_pages: int, max_running: int = 32) -> None:
        budget = full_pages * FULL_PAGE_BYTES + swa_pages * SWA_PAGE_BYTES
        config = ServerConfig(kv_cache_bytes=budget, max_running_requests=max_running)
        sizes = pool_sizes(config, FLASH)
        self.full = full = PageAllocator("full", sizes.full_pages)
        self.swa = swa = PageAllocator("swa", sizes.swa_pages)
        self.states = states = PageAllocator("rings", sizes.states)
        replay, policy = FLASH.replay_tokens, self.policy()
        self.cache = ShadowRadixCache(
            TREE, full=full, swa=swa, states=states, replay_tokens=replay, policy=policy
        )
        self.table = np.zeros((max_running, 1 << 12), np.int32)
        self.free_rows = list(range(max_running))
        self.lost: Counter[str] = Counter()
        calm_collector()

    def prep(self, tokens: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(tokens, np.int32)

    def match(self, tokens: np.ndarray, length: int) -> Row:
        match = self.cache.match(tokens[:length])
        self.lost["earlier point" if match.point else "replay"] += match.full_tokens - match.start
        return Row(match, tokens, length)

    def lock(self, row: Row) -> None:
        match = row.match
        row.lock = self.cache.lock(match)
        row.row = self.free_rows.pop()
        row.pages = self.table[row.row]
        row.pages[: row.pages_shared] = match.pages[: row.pages_shared]
        row.state = self._take_state()
        if match.point is not None:
            row.window = self._take_swa(len(match.point.swa_pages))
            self.cache.unlock_point(row.lock)

    def alloc(self, row: Row, upto: int, decode: bool = False) -> None:
        need = -(-upto // PAGE) - row.pages_held
        if need > 0:
            if self.full.free < need:
                self.cache.evict_full(need)
            row.pages[row.pages_held : row.pages_held + need] = self.full.alloc(need)
            row.pages_held += need
        if (missing := TREE.window_pages_at(upto) - len(row.window)) > 0:
            row.window += self._take_swa(missing)

    def insert(self, row: Row, upto: int, finished: bool) -> None:
        length = upto if upto >= row.n else upto // PAGE * PAGE
        whole = length // PAGE
        if length < row.pages_shared * PAGE:
            return
        tokens, pages = row.toks[:length], row.pages[: -(-length // PAGE)]
        insertion = self.cache.insert(
            tokens, pages, lock=row.lock, ended=finished, output_from=row.n
        )
        own = row.pages[row.pages_shared : whole].copy()
        row.pages[row.pages_shared : whole] = insertion.pages[row.pages_shared :]
        self.full.decref(own)
        row.pages_shared = whole
        while row.wanted and row.wanted[-1][0] <= length:
            self._leave_point(row, *row.wanted.pop())
        if finished:
            self._hang(row, upto, row.window, row.state, PointKind.REQUEST_END)
            row.window, row.state = [], 0

    def unlock(self, row: Row) -> None:
        self.full.decref(row.pages[row.pages_shared : row.pages_held])
        self.cache.unlock(row.lock)
        self.free_rows.append(row.row)

    def enable_full_probe(self) -> None: ...
    def evict(self, full_pages: int, swa_pages: int) -> tuple[int, int]:
        full, swa = self.full.free, self.swa.free
        _ = full_pages and self.cache.evict_full(full + full_pages)
        _ = swa_pages and self.cache.evict_swa(swa_pages=swa + swa_pages)
        return self.full.free - full, self.swa.free - swa

    def cached_tokens(self) -> int:
        return sum(self.cache.tokens_by_namespace().values())

    def _take_swa(self, count: int) -> list[int]:
        if self.swa.free < count:
            self.cache.evict_swa(swa_pages=count)
        return self.swa.alloc(count).tolist()

    def _take_state(self) -> int:
        if self.states.free < 1:
            self.cache.evict_swa(states=1)
        return self.states.take()

    def _leave_point(self, row: Row, position: int, kind: PointKind) -> None:
        window, state = self._take_swa(TREE.window_pages_at(position)), self._take_state()
        self._hang(row, position, window, state, kind)

    def _hang(
        self, row: Row, position: int, window: list[int], state: int, kind: PointKind
    ) -> None:
        self.cache.add_point(
            row.lock.node, position, swa_pages=window, state=state, kind=kind, give=True
        )
