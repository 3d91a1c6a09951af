"""Counters and gauges: the log lines and /metrics come from here."""

import logging
from collections.abc import Callable

from runtime.scheduler.request import Request
from runtime.scheduler.residency import Residency

logger = logging.getLogger("umbra.scheduler")

# The evictable pages are counted over all running rows, so not in every step.
EVICTABLE_INTERVAL_S = 0.25

COUNTERS = (
    "requests",
    "refused_requests",
    "finished_requests",
    "aborted_requests",
    "failed_requests",
    "retracted_requests",
    "prompt_tokens",
    "cached_tokens",
    "computed_prompt_tokens",
    "generation_tokens",
    "prefill_steps",
    "decode_steps",
)


class Stats:
    """What happened since start, and what is so now. Written by the loop, read by anyone."""

    def __init__(
        self, residency: Residency, clock: Callable[[], float], *, decode_log_interval: int
    ) -> None:
        self.counters: dict[str, float] = dict.fromkeys(COUNTERS, 0.0)
        self.gauges: dict[str, float] = {}
        self._residency = residency
        self._clock = clock
        self._interval = decode_log_interval
        self._decode_steps = 0
        self._decode_tokens = 0
        self._decode_since = clock()
        self._gen_throughput = 0.0
        self._evictable_pages = 0
        self._evictable_due_s = 0.0
        self.update(running=0, waiting=0)

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a counter."""
        self.counters[name] += amount

    def update(self, *, running: int, waiting: int) -> None:
        """Replace the gauges by what is so now."""
        residency = self._residency
        now = self._clock()
        if now >= self._evictable_due_s:
            self._evictable_due_s = now + EVICTABLE_INTERVAL_S
            self._evictable_pages = residency.evictable_pages()
        cache = residency.cache
        page = residency.spec.page_size
        full, swa, rings = residency.full, residency.swa, residency.rings
        hits, prompt = self.counters["cached_tokens"], self.counters["prompt_tokens"]
        self.counters["evicted_pages"] = cache.evicted_pages
        self.counters["evicted_points"] = cache.evicted_points
        self.gauges = {
            "running": running,
            "waiting": waiting,
            "full_pages": full.capacity,
            "full_pages_free": full.free,
            "full_pages_evictable": self._evictable_pages,
            "swa_pages": swa.capacity,
            "swa_pages_free": swa.free,
            "rings": rings.capacity,
            "rings_free": rings.free,
            "tree_pages": cache.tree_pages,
            "tree_nodes": cache.nodes,
            "resume_points": cache.points,
            "page_size": page,
            "used_tokens": (full.capacity - full.free) * page,
            "full_usage": 1 - full.free / full.capacity,
            "swa_usage": 1 - swa.free / swa.capacity,
            "ring_usage": 1 - rings.free / rings.capacity,
            "cache_hit_rate": hits / prompt if prompt else 0.0,
            "gen_throughput": self._gen_throughput,
        }

    def prefill_step(self, requests: list[Request], *, tokens: int, elapsed_s: float) -> None:
        """Count and log one prefill step of `tokens` new tokens that is not settled yet."""
        self.count("prefill_steps")
        self.count("computed_prompt_tokens", tokens)
        gauges = self.gauges
        fresh = [r for r in requests if r.committed == r.matched]
        logger.info(
            "Prefill batch, #new-seq: %d, #new-token: %d, #cached-token: %d, "
            "full token usage: %.2f, swa token usage: %.2f, #running-req: %d, #queue-req: %d, "
            "#pending-token: %d, cuda graph: False, input throughput (token/s): %.2f",
            len(requests),
            tokens,
            sum(r.matched for r in fresh),
            gauges["full_usage"],
            gauges["swa_usage"],
            gauges["running"],
            gauges["waiting"],
            sum(r.target - r.scheduled for r in requests),
            tokens / max(elapsed_s, 1e-9),
        )

    def decode_step(self, rows: int) -> None:
        """Count one decode step, and log every `decode_log_interval` of them."""
        self.count("decode_steps")
        self._decode_steps += 1
        self._decode_tokens += rows
        if self._decode_steps < self._interval:
            return
        now = self._clock()
        self._gen_throughput = self._decode_tokens / max(now - self._decode_since, 1e-9)
        self._decode_steps = self._decode_tokens = 0
        self._decode_since = now
        residency, gauges = self._residency, self.gauges
        logger.info(
            "Decode batch, #running-req: %d, #full token: %d, full token usage: %.2f, "
            "#swa token: %d, swa token usage: %.2f, cuda graph: False, "
            "gen throughput (token/s): %.2f, #queue-req: %d",
            rows,
            gauges["used_tokens"],
            gauges["full_usage"],
            (residency.swa.capacity - residency.swa.free) * residency.spec.swa_page_size,
            gauges["swa_usage"],
            self._gen_throughput,
            gauges["waiting"],
        )
