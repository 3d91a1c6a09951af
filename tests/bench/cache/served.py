"""The server's own residency behind the interface of the shared cache benchmark.

Where `adapter.py` is what the tree alone costs, this one is what a server hits: its residency
decides what a prompt matches, where it leaves resume points and waypoints, and what is evicted.
Only the steps that would compute and copy are missing.
"""

import numpy as np

from mem_cache.request_table import RequestTable
from mem_cache.spec import CacheSpec
from mem_cache.tree.handles import Match
from mem_cache.tree.policy import TurnPolicy
from mem_cache.units import Units
from runtime.collector import calm_collector
from runtime.config import ServerConfig
from runtime.executor.memory_budget import pool_sizes
from runtime.messages import Generate, Sampling
from runtime.scheduler.request import Request
from runtime.scheduler.residency import Residency
from runtime.scheduler.stats import Stats
from tests.bench.cache.adapter import FLASH, FULL_PAGE_BYTES, SWA_PAGE_BYTES

# The longest prompt and answer of the benchmarks.
LONGEST_TOKENS = 1 << 18


class Row:
    """One request: what the benchmark reads and sets, and the scheduler's view of it."""

    def __init__(self, request: Request, match: Match) -> None:
        self.request, self.match = request, match
        self.n = request.total
        self.hit, self.full_hit = match.start, match.full_tokens
        self.toks = request.tokens[: self.n]


class ServedFamily:
    """The adapter for any family. `stats` counts what was not hit, by cause."""

    name = "umbra-served"

    def __init__(self, cache: CacheSpec, budget: int, max_running: int = 32) -> None:
        """Divide `budget` bytes as the server does."""
        config = ServerConfig(kv_cache_bytes=budget, max_running_requests=max_running)
        sizes, tree = pool_sizes(config, cache), cache.tree
        self.residency = Residency(
            tree,
            units=Units(sizes),
            table=RequestTable(tree, rows=max_running, max_pages=LONGEST_TOKENS // tree.page_size),
            replay_tokens=cache.replay_tokens,
            eviction=TurnPolicy(),
        )
        self.stats = Stats(self.residency, lambda: 0.0, decode_log_interval=1 << 30)
        self.lost: dict[str, int] = {}
        self._requests = 0
        calm_collector()

    def prep(self, tokens: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(tokens, np.int32)

    def match(self, tokens: np.ndarray, length: int) -> Row:
        self._requests += 1
        sampling = Sampling(LONGEST_TOKENS - length, seed=0)
        prompt = tokens[:length].tobytes()
        request = Request(Generate(self._requests, prompt, sampling), (), arrival_s=0.0)
        return Row(request, self.residency.match(request))

    def lock(self, row: Row) -> None:
        if not self.try_lock(row):
            raise AssertionError("a request does not fit beside those that run")

    def try_lock(self, row: Row, *, reserve_pages: int = 0) -> bool:
        """Admit a request, if it fits and leaves so many pages to be had; say whether it did."""
        if not self.residency.try_admit(row.request, row.match, reserve_pages=reserve_pages):
            return False
        self.residency.take_copies()
        self.residency.copies_launched()
        self.stats.recomputed(row.request)
        # A lone request whose own match was in the way starts cold.
        row.hit = row.request.cached_tokens = row.request.matched
        return True

    def alloc(self, row: Row, upto: int, decode: bool = False) -> None:
        request, residency = row.request, self.residency
        if decode:
            request.tokens[request.total : upto] = row.toks[request.total : upto]
            request.total = upto
        if not residency.reserve(request, upto - request.scheduled):
            raise AssertionError("no page for a running request")
        if not decode:
            residency.plan_saves(request, request.scheduled, upto)
        request.scheduled = upto

    def insert(self, row: Row, upto: int, finished: bool) -> None:
        request = row.request
        request.committed = upto
        if not finished:
            self.residency.publish(request, partial=upto == row.n)

    def unlock(self, row: Row) -> None:
        self.residency.release(row.request)

    def enable_full_probe(self) -> None: ...


class Served(ServedFamily):
    """The adapter in V4-Flash's geometry, with the bytes of the benchmark's setting."""

    def __init__(self, full_pages: int, swa_pages: int, max_running: int = 32) -> None:
        budget = full_pages * FULL_PAGE_BYTES + swa_pages * SWA_PAGE_BYTES
        super().__init__(FLASH, budget, max_running)
