"""Prometheus metrics, under SGLang's names where they mean the same, else under `umbra:`.

Two sources: what the tokenizer manager observes (latencies, outcomes), and the scheduler's
counters and gauges, read when somebody scrapes.
"""

import logging
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from runtime.messages import State

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

logger = logging.getLogger("umbra.requests")

_SECONDS = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 100, 200, 400,
)  # fmt: skip
_GAP_SECONDS = (
    0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 0.6, 1, 2,
)  # fmt: skip
_TOKENS = tuple(float(1 << k) for k in range(0, 21, 2))

# scheduler's name -> (exported name, help)
_COUNTERS = {
    "prompt_tokens": ("sglang:prompt_tokens", "Prompt tokens, cached ones included"),
    "generation_tokens": ("sglang:generation_tokens", "Tokens sampled"),
    "cached_tokens": ("sglang:cached_tokens", "Prompt tokens that came from the cache"),
    "requests": ("sglang:num_requests", "Requests the scheduler received"),
    "aborted_requests": ("sglang:num_aborted_requests", "Requests aborted"),
    "retracted_requests": ("sglang:num_retracted_requests", "Times a request gave up its row"),
}
_GAUGES = {
    "running": ("sglang:num_running_reqs", "Requests that hold a row"),
    "waiting": ("sglang:num_queue_reqs", "Requests that wait for a row"),
    "used_tokens": ("sglang:num_used_tokens", "Tokens whose full pages are in use or cached"),
    "full_usage": ("sglang:full_token_usage", "Share of the full pages in use or cached"),
    "swa_usage": ("sglang:swa_token_usage", "Share of the SWA pages in use or cached"),
    "cache_hit_rate": ("sglang:cache_hit_rate", "Cached share of all prompt tokens since start"),
    "gen_throughput": ("sglang:gen_throughput", "Tokens sampled per second, lately"),
    "page_size": ("sglang:page_size", "Tokens of a full page"),
    "full_pages": ("sglang:num_pages", "Full pages there are"),
}


class Metrics:
    """The observer of the tokenizer manager, and the text of /metrics."""

    def __init__(self, model_name: str, *, log_requests: bool = False) -> None:
        """Make a registry of its own: two servers in one process share nothing.

        log_requests  log the size and outcome of each request; never its text
        """
        self._model_name = model_name
        self._registry = CollectorRegistry()
        self._scheduler = _SchedulerCollector(model_name)
        self._registry.register(self._scheduler)
        self._log_requests = log_requests
        self._ttft = self._seconds("time_to_first_token", "Seconds to the first token", _SECONDS)
        self._gap = self._seconds("inter_token_latency", "Seconds between tokens", _GAP_SECONDS)
        self._e2e = self._seconds("e2e_request_latency", "Seconds per choice", _SECONDS)
        self._prompt = self._tokens("prompt_tokens_histogram", "Prompt tokens per choice")
        self._generated = self._tokens("generation_tokens_histogram", "New tokens per choice")
        self._finished = self._count("umbra:choices_finished", "Choices ended, by reason")
        self._refused = self._count("umbra:calls_refused", "Calls not admitted, by reason")

    def _seconds(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return self._histogram(f"sglang:{name}_seconds", text, buckets)

    def _tokens(self, name: str, text: str) -> Histogram:
        return self._histogram(f"sglang:{name}", text, _TOKENS)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        family = Histogram(name, text, ["model_name"], buckets=buckets, registry=self._registry)
        # The child is looked up once: these are touched for every token.
        return family.labels(self._model_name)

    def _count(self, name: str, text: str) -> Counter:
        return Counter(name, text, ["model_name", "reason"], registry=self._registry)

    def first_token(self, seconds: float) -> None:
        """Record the time from a call to the first token of one of its choices."""
        self._ttft.observe(seconds)

    def inter_token(self, seconds: float, tokens: int) -> None:
        """Record that `tokens` tokens came, each `seconds` after the one before it."""
        for _ in range(tokens):
            self._gap.observe(seconds)

    def finished(
        self,
        reason: str,
        *,
        seconds: float,
        prompt_tokens: int,
        cached_tokens: int,
        completion_tokens: int,
    ) -> None:
        """Record the end of a choice."""
        self._finished.labels(self._model_name, reason).inc()
        self._e2e.observe(seconds)
        self._prompt.observe(prompt_tokens)
        self._generated.observe(completion_tokens)
        if self._log_requests:
            logger.info(
                "Finish request: %s, #prompt-token: %d, #cached-token: %d, #new-token: %d, %.3f s",
                reason,
                prompt_tokens,
                cached_tokens,
                completion_tokens,
                seconds,
            )

    def refused(self, reason: str) -> None:
        """Count a call that was not admitted."""
        self._refused.labels(self._model_name, reason).inc()
        if self._log_requests:
            logger.info("Refuse request: %s", reason)

    def render(self, state: State | None) -> bytes:
        """Return the exposition text; without `state` the scheduler's part is left out."""
        self._scheduler.state = state
        return generate_latest(self._registry)


class _SchedulerCollector(Collector):
    """Exposes the scheduler's counters and gauges as they were last reported."""

    def __init__(self, model_name: str) -> None:
        self.state: State | None = None
        self._labels = {"model_name": model_name}

    def collect(self) -> Iterable[Metric]:
        """Yield one metric family for each value."""
        state = self.state
        if state is None:
            return
        for name, value in state.counters.items():
            exported, text = _COUNTERS.get(name, (f"umbra:{name}", "Counted since start"))
            yield self._counter(exported, text, value)
        for name, value in state.gauges.items():
            exported, text = _GAUGES.get(name, (f"umbra:{name}", "As of now"))
            yield self._gauge(exported, text, value)
        yield self._gauge("umbra:step_age_seconds", "Age of the step in progress", state.step_age_s)
        yield self._gauge("umbra:loop_age_seconds", "Since the loop turned", state.loop_age_s)
        if {"full_pages", "full_pages_free", "page_size"} <= state.gauges.keys():
            yield from self._derived(state)

    def _derived(self, state: State) -> Iterable[Metric]:
        gauges = state.gauges
        page, pages, free = gauges["page_size"], gauges["full_pages"], gauges["full_pages_free"]
        # Cached pages that nobody runs on are room for new requests, as routers understand usage.
        evictable = gauges.get("full_pages_evictable", 0.0)
        used = pages - free - evictable
        yield self._gauge(
            "sglang:token_usage", "Share of the full pages in use", used / pages if pages else 0.0
        )
        yield self._gauge(
            "sglang:max_total_num_tokens", "Tokens that full pages hold", pages * page
        )
        yield self._gauge("sglang:kv_available_tokens", "Tokens of free full pages", free * page)
        yield self._gauge("sglang:kv_used_tokens", "Tokens of full pages in use", used * page)
        if "full_pages_evictable" in gauges:
            text = "Tokens of cached full pages that nobody uses"
            yield self._gauge("sglang:kv_evictable_tokens", text, evictable * page)
        if "evicted_pages" in state.counters:
            evicted = state.counters["evicted_pages"] * page
            yield self._counter("sglang:evicted_tokens", "Tokens of evicted full pages", evicted)
        info = InfoMetricFamily(
            "sglang:cache_config", "Geometry of the KV cache", labels=list(self._labels)
        )
        sizes = {"page_size": f"{page:g}", "num_pages": f"{pages:g}"}
        info.add_metric(list(self._labels.values()), sizes)
        yield info

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family
