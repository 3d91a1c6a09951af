"""Prometheus metrics, under SGLang's names where they mean the same, else under `umbra:`.

Two sources: what the tokenizer manager observes (latencies, outcomes), and the scheduler's
counters and gauges, read when somebody scrapes.
"""

import logging
from collections.abc import Iterable, Sequence
from itertools import accumulate

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from runtime.durations import Durations
from runtime.messages import Histogram, State
from runtime.rank_memory import RankMemory
from runtime.server.memory_metrics import RankMemoryCollector
from runtime.tokenizer.observer import Observer, Stage

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

logger = logging.getLogger("umbra.requests")

_SECONDS = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 100, 200, 400,
)  # fmt: skip
_GAP_SECONDS = (
    0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 0.6, 1, 2,
)  # fmt: skip
_STAGE_SECONDS = tuple(float(f"{m}e{e}") for e in range(-4, 4) for m in (1, 2, 5))
_TOKENS = tuple(float(1 << k) for k in range(0, 21, 2))

# scheduler's name -> (exported name, help)
_COUNTERS = {
    "prompt_tokens": ("sglang:prompt_tokens", "Prompt tokens, cached ones included"),
    "generation_tokens": ("sglang:generation_tokens", "Tokens sampled"),
    "cached_tokens": ("sglang:cached_tokens", "Prompt tokens that came from the cache"),
    "replayed_tokens": ("umbra:replayed_tokens", "Computed again in replays, their pages there"),
    "recomputed_tokens": ("umbra:recomputed_tokens", "Computed again from an earlier point"),
    "requests": (
        "sglang:num_requests",
        "Requests of clients that the scheduler received, one for each of n choices; what the "
        "server asks in the background is counted apart",
    ),
    "aborted_requests": ("sglang:num_aborted_requests", "Requests that their clients gave up"),
    "finished_requests": ("umbra:finished_requests", "Requests that came to their end"),
    "failed_requests": ("umbra:failed_requests", "Requests that ended with an error"),
    "refused_requests": ("umbra:refused_requests", "Requests that the scheduler refused"),
    "background_requests": (
        "umbra:background_requests",
        "Beginnings of next turns prefilled in the background, and probes of /health_generate; "
        "in no other count of requests",
    ),
    "background_prompt_tokens": (
        "umbra:background_prompt_tokens",
        "Prompt tokens of background requests; in no other count but that of computed ones",
    ),
    "computed_prompt_tokens": (
        "umbra:computed_prompt_tokens",
        "Prompt tokens computed, those of background requests included",
    ),
    "retracted_requests": ("sglang:num_retracted_requests", "Times a request gave up its row"),
}
# Causes for which prompt tokens are computed; the scheduler counts `<cause>_tokens`.
UNCACHED_CAUSES = ("no_point", "point_evicted", "page_evicted", "never_seen")
_GAUGES = {
    "running": ("sglang:num_running_reqs", "Requests that hold a row"),
    "waiting": ("sglang:num_queue_reqs", "Requests that wait for a row"),
    "compiling": ("sglang:num_grammar_queue_reqs", "Requests that wait for their grammar"),
    "waiting_uncached_tokens": (
        "umbra:waiting_uncached_tokens",
        "Tokens to be prefilled that are in no step yet; those known to be cached left out",
    ),
    "rows": ("umbra:max_running_requests", "Rows there are"),
    "cuda_graph": ("sglang:is_cuda_graph", "Whether decode steps run as CUDA graphs"),
    "used_tokens": ("sglang:num_used_tokens", "Tokens of full pages that requests hold"),
    "full_usage": ("sglang:full_token_usage", "Share of the full pages that requests hold"),
    "swa_usage": ("sglang:swa_token_usage", "Share of the SWA pages that requests hold"),
    "ring_usage": ("umbra:ring_usage", "Share of the compress-state rings that requests hold"),
    "cache_hit_rate": ("sglang:cache_hit_rate", "Cached share of all prompt tokens since start"),
    "gen_throughput": ("sglang:gen_throughput", "Tokens sampled per second, lately"),
    "page_size": ("sglang:page_size", "Tokens of a full page"),
    "full_pages": ("sglang:num_pages", "Full pages there are"),
}


# scheduler's name -> (exported name, help)
_DURATIONS = {
    "eviction": (
        "sglang:eviction_duration_seconds",
        "Seconds of each time that pages or resume points were evicted",
    ),
    "grammar_compilation": (
        "sglang:grammar_compilation_time_seconds",
        "Seconds from starting a grammar's process until it was compiled",
    ),
}


class Metrics(Observer):
    """The observer of the tokenizer manager, and the text of /metrics."""

    def __init__(
        self,
        model_name: str,
        *,
        log_requests: bool = False,
        memory: Sequence[RankMemory] = (),
    ) -> None:
        """Make a registry of its own: two servers in one process share nothing.

        log_requests  log the size and outcome of each request; never its text
        memory        of each rank's device
        """
        self._model_name = model_name
        self._registry = CollectorRegistry()
        self._scheduler = _SchedulerCollector(model_name)
        self._registry.register(self._scheduler)
        self._registry.register(RankMemoryCollector(model_name, memory))
        self._log_requests = log_requests
        self._ttft = self._seconds("time_to_first_token", "Seconds to the first token", _SECONDS)
        # Observed for every token: prometheus_client's own histogram takes ten times as long.
        self._gap = Durations(_GAP_SECONDS)
        self._registry.register(_GapCollector(model_name, self._gap))
        self._e2e = self._seconds("e2e_request_latency", "Seconds per choice", _SECONDS)
        self._queue = self._seconds("queue_time", "Seconds without a row", _STAGE_SECONDS)
        self._per_token = self._seconds(
            "request_time_per_output_token", "Mean seconds between a choice's tokens", _GAP_SECONDS
        )
        self._stages = prometheus_client.Histogram(
            "sglang:per_stage_req_latency_seconds",
            "Seconds that a choice was in a stage of its life",
            ["model_name", "stage"],
            buckets=_STAGE_SECONDS,
            registry=self._registry,
        )
        self._prompt = self._tokens("prompt_tokens_histogram", "Prompt tokens per choice")
        self._generated = self._tokens("generation_tokens_histogram", "New tokens per choice")
        self._finished = self._count("umbra:choices_finished", "Choices ended, by reason")
        self._refused = self._count("umbra:calls_refused", "Calls not admitted, by reason")

    def _seconds(
        self, name: str, text: str, buckets: tuple[float, ...]
    ) -> prometheus_client.Histogram:
        return self._histogram(f"sglang:{name}_seconds", text, buckets)

    def _tokens(self, name: str, text: str) -> prometheus_client.Histogram:
        return self._histogram(f"sglang:{name}", text, _TOKENS)

    def _histogram(
        self, name: str, text: str, buckets: tuple[float, ...]
    ) -> prometheus_client.Histogram:
        family = prometheus_client.Histogram(
            name, text, ["model_name"], buckets=buckets, registry=self._registry
        )
        # The child is looked up once: these are touched for every token.
        return family.labels(self._model_name)

    def _count(self, name: str, text: str) -> Counter:
        return Counter(name, text, ["model_name", "reason"], registry=self._registry)

    def stage(self, stage: Stage, seconds: float) -> None:
        """Record how long a choice was in a stage that it has behind it."""
        self._stages.labels(self._model_name, stage).observe(seconds)
        if stage == "prefill_waiting":
            self._queue.observe(seconds)

    def first_token(self, seconds: float) -> None:
        """Record the time from a call to the first token of one of its choices."""
        self._ttft.observe(seconds)

    def inter_token(self, seconds: float, tokens: int) -> None:
        """Record that `tokens` tokens came, each `seconds` after the one before it."""
        self._gap.observe(seconds, tokens)

    def finished(
        self,
        reason: str,
        *,
        seconds: float,
        decode_s: float | None,
        prompt_tokens: int,
        cached_tokens: int,
        completion_tokens: int,
    ) -> None:
        """Record the end of a choice; its decoding if it was not cut off and had any."""
        self._finished.labels(self._model_name, reason).inc()
        self._e2e.observe(seconds)
        self._prompt.observe(prompt_tokens)
        self._generated.observe(completion_tokens)
        if decode_s is not None and completion_tokens > 1:
            self.stage("decode_forward", decode_s)
            self._per_token.observe(decode_s / (completion_tokens - 1))
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


def fullest_pool(gauges: dict[str, float]) -> float:
    """Return the share that requests hold of the pool of which they hold the most."""
    return max(gauges.get(f"{pool}_usage", 0.0) for pool in ("full", "swa", "ring"))


def _histogram(name: str, text: str, seen: Histogram, *, labels: dict[str, str]) -> Metric:
    bounds = [*(str(float(bound)) for bound in seen.bounds), "+Inf"]
    buckets = list(zip(bounds, accumulate(seen.counts), strict=True))
    family = HistogramMetricFamily(name, text, labels=list(labels))
    family.add_metric(list(labels.values()), buckets, seen.sum_s)
    return family


class _GapCollector(Collector):
    """Exposes the times between tokens."""

    def __init__(self, model_name: str, gaps: Durations) -> None:
        self._labels = {"model_name": model_name}
        self._gaps = gaps

    def collect(self) -> Iterable[Metric]:
        """Yield their histogram."""
        name = "sglang:inter_token_latency_seconds"
        yield _histogram(name, "Seconds between tokens", self._gaps.told(), labels=self._labels)


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
        for name, histogram in state.durations.items():
            yield _histogram(*_DURATIONS[name], histogram, labels=self._labels)
        yield self._gauge("umbra:step_age_seconds", "Age of the step in progress", state.step_age_s)
        yield self._namespaces(state)
        yield self._gauge("umbra:loop_age_seconds", "Since the loop turned", state.loop_age_s)
        if {"full_pages", "full_pages_free", "page_size"} <= state.gauges.keys():
            yield from self._derived(state)

    def _namespaces(self, state: State) -> Metric:
        text = "Tokens that the largest cache namespaces hold, by digest of their names"
        labels = [*self._labels, "namespace"]
        family = GaugeMetricFamily("umbra:namespace_tokens", text, labels=labels)
        for name, tokens in state.namespaces.items():
            family.add_metric([*self._labels.values(), name], tokens)
        return family

    def _derived(self, state: State) -> Iterable[Metric]:
        gauges, counters = state.gauges, state.counters
        page, pages = gauges["page_size"], gauges["full_pages"]
        # Whoever balances load asks how near a server is to making requests wait.
        usage = fullest_pool(gauges)
        yield self._gauge("sglang:token_usage", "Usage of the fullest pool", usage)
        if gauges.get("rows"):
            busy = max(gauges.get("running", 0.0) / gauges["rows"], usage)
            text = "Share of the rows, or of the fullest pool if that is more, that is in use"
            yield self._gauge("sglang:utilization", text, busy)
        text = "Requests that are paused: nothing here pauses any"
        yield self._gauge("sglang:num_paused_reqs", text, 0.0)
        yield self._gauge(
            "sglang:max_total_num_tokens", "Tokens that full pages hold", pages * page
        )
        retracted = counters.get("retracted_requests", 0.0)
        text = "Times a request gave up its row, since start"
        yield self._gauge("sglang:num_retracted_reqs", text, retracted)
        yield from self._pool_tokens("kv", "full_pages", gauges, tokens=page)
        if "swa_page_size" in gauges:
            yield from self._pool_tokens("swa", "swa_pages", gauges, tokens=gauges["swa_page_size"])
        if "evicted_pages" in counters:
            evicted = counters["evicted_pages"] * page
            yield self._counter("sglang:evicted_tokens", "Tokens of evicted full pages", evicted)
        yield self._realtime_tokens(counters)
        yield self._uncached_tokens(counters)
        info = InfoMetricFamily(
            "sglang:cache_config", "Geometry of the KV cache", labels=list(self._labels)
        )
        sizes = {"page_size": f"{page:g}", "num_pages": f"{pages:g}"}
        info.add_metric(list(self._labels.values()), sizes)
        yield info

    def _pool_tokens(
        self, name: str, pool: str, gauges: dict[str, float], *, tokens: float
    ) -> Iterable[Metric]:
        """Yield one pool's free, cached and held units in tokens."""
        free, cached = gauges[f"{pool}_free"], gauges.get(f"{pool}_evictable", 0.0)
        held = gauges[pool] - free - cached
        for state, count, text in (
            ("available", free, "free"),
            ("evictable", cached, "cached, and held by no request"),
            ("used", held, "held by requests"),
        ):
            text = f"Tokens of {pool.replace('_', ' ')} that are {text}"
            yield self._gauge(f"sglang:{name}_{state}_tokens", text, count * tokens)

    def _realtime_tokens(self, counters: dict[str, float]) -> Metric:
        labels = [*self._labels, "mode"]
        text = "Tokens as they are computed, found or sampled"
        family = CounterMetricFamily("sglang:realtime_tokens", text, labels=labels)
        for mode, counter in (
            ("prefill_compute", "computed_prompt_tokens"),
            ("prefill_cache", "cached_tokens"),
            ("decode", "generation_tokens"),
        ):
            family.add_metric([*self._labels.values(), mode], counters.get(counter, 0.0))
        return family

    def _uncached_tokens(self, counters: dict[str, float]) -> Metric:
        labels = [*self._labels, "cause"]
        text = "Prompt tokens that did not come from the cache, by what was missing"
        family = CounterMetricFamily("umbra:uncached_tokens", text, labels=labels)
        for cause in UNCACHED_CAUSES:
            family.add_metric([*self._labels.values(), cause], counters.get(f"{cause}_tokens", 0.0))
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family
