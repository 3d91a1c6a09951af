"""Counters and gauges: the log lines and /metrics come from here."""

import logging
from collections.abc import Callable
from typing import Literal

from runtime.executor.pool_names import pool_gauges
from runtime.messages import Generate
from runtime.scheduler.namespaces import largest_namespaces
from runtime.scheduler.request import Request
from runtime.scheduler.residency import Residency

# There may be thousands of namespaces, so they are not looked at in every step.
NAMESPACES_INTERVAL_S = 1.0
NAMESPACES_TOLD = 16

logger = logging.getLogger("umbra.scheduler")

Ending = Literal["finished", "aborted", "failed", "refused"]

# Each request ends in one way: requests = finished + aborted + failed + refused, when idle. What
# the server asks in the background, for no client, is in none of these, nor in the tokens of
# prompts, of answers and of the cache; only what is computed counts for both.
COUNTERS = (
    "requests",
    "background_requests",
    "background_prompt_tokens",
    "refused_requests",
    "finished_requests",
    "aborted_requests",
    "failed_requests",
    "timed_out_requests",
    "retracted_requests",
    "not_finite_requests",
    "distrusted_pages",
    "prompt_tokens",
    "cached_tokens",
    "replayed_tokens",
    "recomputed_tokens",
    "no_point_tokens",
    "point_evicted_tokens",
    "page_evicted_tokens",
    "never_seen_tokens",
    "copied_tokens",
    "elsewhere_tokens",
    "computed_prompt_tokens",
    "generation_tokens",
    "prefill_steps",
    "decode_steps",
)


class Stats:
    """What happened since start, and what is so now. Written by the loop, read by anyone.

    namespace_tokens  that the largest cache namespaces hold, by digest
    name              of the replica in log lines; "" where there is no other
    cuda_graph        whether decode steps are replayed as CUDA graphs
    """

    def __init__(
        self,
        residency: Residency,
        clock: Callable[[], float],
        *,
        decode_log_interval: int,
        name: str = "",
    ) -> None:
        self.counters: dict[str, float] = dict.fromkeys(COUNTERS, 0.0)
        self.gauges: dict[str, float] = {}
        self.cuda_graph = False
        self._without_pages = 0
        self._residency = residency
        self._clock = clock
        self._interval = decode_log_interval
        self._prefix = f"{name} " if name else ""
        self._decode_steps = 0
        self._decode_tokens = 0
        self._decode_since = clock()
        self._gen_throughput = 0.0
        self._idle_since: float | None = None
        self.namespace_tokens: dict[str, float] = {}
        self._namespaces_due_s = clock()
        self.update(running=0, waiting=0)

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a counter."""
        self.counters[name] += amount

    def received(self, message: Generate, *, refused: bool) -> None:
        """Count a request that came in."""
        if message.background:
            self.count("background_requests")
        else:
            self.count("requests")
            self.count("refused_requests", refused)
        if not refused:
            name = "background_prompt_tokens" if message.background else "prompt_tokens"
            self.count(name, len(message.input_ids) // 4)

    def cached(self, request: Request) -> None:
        """Count the tokens of a prompt that came from the cache."""
        if not request.background and request.cached_tokens is not None:
            self.count("cached_tokens", request.cached_tokens)

    def recomputed(self, request: Request) -> None:
        """Count what a request just admitted computes again although its full pages are there.

        Replayed: no resume point was near. Recomputed: one was, further up. Both are counted by
        cause, too.
        """
        lost = request.holding.full_matched - request.matched
        replays = request.holding.exact_from > request.matched
        self.count("replayed_tokens" if replays else "recomputed_tokens", lost)
        self.count(
            "point_evicted_tokens" if request.holding.point_evicted else "no_point_tokens", lost
        )

    def brought(self, request: Request) -> None:
        """Count what other replicas have of a request just admitted: copied, or computed again."""
        self.count("copied_tokens", request.holding.copied)
        self.count("elsewhere_tokens", request.holding.elsewhere)

    def computed(self, request: Request, start: int, end: int) -> None:
        """Count a chunk [start, end) of a prompt that was just published.

        What had no full pages was evicted or is new: the tree has told which of them by now.
        """
        self._without_pages += max(0, end - max(start, request.holding.full_matched))

    def sampled(self, request: Request) -> None:
        """Count a sampled token."""
        if not request.background:
            self.counters["generation_tokens"] += 1

    def ended(self, request: Request, how: Ending) -> None:
        """Count the end of a request."""
        if not request.background:
            self.count(f"{how}_requests")

    def update(
        self,
        *,
        running: int,
        waiting: int,
        compiling: int = 0,
        waiting_uncached_tokens: int = 0,
        queued_tokens: int = 0,
    ) -> None:
        """Replace the gauges by what is so now.

        running    requests that hold a row
        waiting    those that do not
        compiling  those of them that wait for their grammar
        waiting_uncached_tokens  see `RequestSets`
        queued_tokens            those of them that are of requests without a row
        """
        residency = self._residency
        cache = residency.cache
        page = residency.spec.page_size
        hits, prompt = self.counters["cached_tokens"], self.counters["prompt_tokens"]
        self.counters["evicted_pages"] = cache.evicted_pages
        self.counters["evicted_points"] = cache.evicted_points
        returned = self.counters["page_evicted_tokens"] = cache.returned_pages * page
        # A page returns as a whole, and its first tokens may have been counted as new.
        never_seen = max(self.counters["never_seen_tokens"], self._without_pages - returned)
        self.counters["never_seen_tokens"] = never_seen
        now = self._clock()
        self._leave_out_idle_time(now, idle=running == 0)
        if now >= self._namespaces_due_s:
            self._namespaces_due_s = now + NAMESPACES_INTERVAL_S
            self.namespace_tokens = largest_namespaces(cache, NAMESPACES_TOLD)
        usage = residency.usage
        self.gauges = {
            "running": running,
            "waiting": waiting,
            "compiling": compiling,
            "waiting_uncached_tokens": waiting_uncached_tokens,
            "queued_tokens": queued_tokens,
            "rows": residency.table.rows,
            "cuda_graph": float(self.cuda_graph),
            **pool_gauges(usage),
            "tree_pages": cache.tree_pages,
            "resume_points": cache.points,
            "page_size": page,
            "swa_page_size": residency.spec.swa_page_size,
            "used_tokens": usage.full.held * page,
            "cache_hit_rate": hits / prompt if prompt else 0.0,
            "gen_throughput": self._gen_throughput,
        }

    def set_compiling(self, requests: int) -> None:
        """Replace the gauge of requests that wait for their grammar."""
        self.gauges["compiling"] = requests

    def _leave_out_idle_time(self, now: float, *, idle: bool) -> None:
        """Have the throughput be of the time in which something runs, and nothing while none."""
        if self._idle_since is not None:
            self._decode_since += now - self._idle_since
        self._idle_since = now if idle else None
        if idle:
            self._gen_throughput = 0.0

    def prefill_step(
        self, requests: list[Request], *, tokens: int, pending_tokens: int, elapsed_s: float
    ) -> None:
        """Count and log one prefill step of `tokens` new tokens that is not settled yet.

        pending_tokens  that its prompts have left after it
        """
        self.count("prefill_steps")
        self.count("computed_prompt_tokens", tokens)
        gauges = self.gauges
        fresh = [r for r in requests if r.committed == r.matched]
        logger.info(
            "%sPrefill batch, #new-seq: %d, #new-token: %d, #cached-token: %d, "
            "full token usage: %.2f, swa token usage: %.2f, #running-req: %d, #queue-req: %d, "
            "#pending-token: %d, input throughput (token/s): %.2f",
            self._prefix,
            len(requests),
            tokens,
            sum(r.matched for r in fresh),
            gauges["full_usage"],
            gauges["swa_usage"],
            gauges["running"],
            gauges["waiting"],
            pending_tokens,
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
            "%sDecode batch, #running-req: %d, #full token: %d, full token usage: %.2f, "
            "#swa token: %d, swa token usage: %.2f, cuda graph: %s, "
            "gen throughput (token/s): %.2f, #queue-req: %d",
            self._prefix,
            rows,
            gauges["used_tokens"],
            gauges["full_usage"],
            residency.usage.swa.held * residency.spec.swa_page_size,
            gauges["swa_usage"],
            self.cuda_graph,
            self._gen_throughput,
            gauges["waiting"],
        )
