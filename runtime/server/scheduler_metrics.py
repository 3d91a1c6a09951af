"""The scheduler's counters and gauges for Prometheus, by replica where there are several."""

from collections.abc import Iterable, Mapping
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from runtime.messages import Histogram, ReplicaState, State
from runtime.server.share_metrics import share_metrics

__all__ = ["UNCACHED_CAUSES", "SchedulerCollector", "fullest_pool", "histogram"]

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
    "copied_tokens": (
        "umbra:copied_tokens",
        "Prompt tokens copied from another replica instead of computed",
    ),
    "elsewhere_tokens": (
        "umbra:elsewhere_tokens",
        "Prompt tokens that another replica had, and that were computed again",
    ),
    "computed_prompt_tokens": (
        "umbra:computed_prompt_tokens",
        "Prompt tokens computed, those of background requests included",
    ),
    "retracted_requests": ("sglang:num_retracted_requests", "Times a request gave up its row"),
    "timed_out_requests": (
        "umbra:timed_out_requests",
        "Requests that were ended in the middle of their output as their time was over",
    ),
    "not_finite_requests": (
        "umbra:not_finite_requests",
        "Times a request's numbers were not finite, which is no client's fault",
    ),
    "distrusted_pages": (
        "umbra:distrusted_pages",
        "Pages that are not used again because something computed from them was not finite",
    ),
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
    "queued_tokens": (
        "umbra:queued_tokens",
        "Tokens to be prefilled of requests that wait for a row, which --max-queued-tokens bounds",
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


def fullest_pool(gauges: dict[str, float]) -> float:
    """Return the share that requests hold of the pool of which they hold the most."""
    return max(gauges.get(f"{pool}_usage", 0.0) for pool in ("full", "swa", "ring"))


def histogram(name: str, text: str, seen: Histogram, *, labels: dict[str, str]) -> Metric:
    """Return a histogram that was counted elsewhere."""
    bounds = [*(str(float(bound)) for bound in seen.bounds), "+Inf"]
    buckets = list(zip(bounds, accumulate(seen.counts), strict=True))
    family = HistogramMetricFamily(name, text, labels=list(labels))
    family.add_metric(list(labels.values()), buckets, seen.sum_s)
    return family


class SchedulerCollector(Collector):
    """Exposes the scheduler's counters and gauges as they were last reported.

    Those of several replicas have the label `dp_rank`, as SGLang's have.
    """

    def __init__(self, model_name: str) -> None:
        self.state: State | None = None
        self._labels = {"model_name": model_name}

    def collect(self) -> Iterable[Metric]:
        """Yield one metric family for each value."""
        state = self.state
        if state is None:
            return
        parts = state.replicas or [ReplicaState(state.counters, state.gauges)]
        ranks = [{"dp_rank": str(k)} if state.replicas else {} for k in range(len(parts))]
        families: dict[str, Metric] = {}
        for rank, part in zip(ranks, parts, strict=True):
            for metric in _ReplicaMetrics(part, self._labels | rank).collect():
                families.setdefault(metric.name, metric)
                if families[metric.name] is not metric:
                    families[metric.name].samples += metric.samples
        yield from families.values()
        for name, seen in state.durations.items():
            yield histogram(*_DURATIONS[name], seen, labels=self._labels)
        text = "Age of the step in progress"
        yield _gauge("umbra:step_age_seconds", text, state.step_age_s, self._labels)
        yield _gauge(
            "umbra:loop_age_seconds", "Since the loop turned", state.loop_age_s, self._labels
        )
        text = "Seconds until all that wait have rows, at the rate of late"
        yield _gauge("umbra:queue_seconds", text, state.queue_s, self._labels)
        yield self._namespaces(state)
        yield from share_metrics(state.shares, self._labels)

    def _namespaces(self, state: State) -> Metric:
        text = "Tokens that the largest cache namespaces hold, by digest of their names"
        labels = [*self._labels, "namespace"]
        family = GaugeMetricFamily("umbra:namespace_tokens", text, labels=labels)
        for name, tokens in state.namespaces.items():
            family.add_metric([*self._labels.values(), name], tokens)
        return family


class _ReplicaMetrics:
    """The metrics of one replica, or of a scheduler that has no other."""

    def __init__(self, state: ReplicaState, labels: Mapping[str, str]) -> None:
        self._state = state
        self._labels = labels

    def collect(self) -> Iterable[Metric]:
        """Yield one metric family for each value."""
        state = self._state
        for name, value in state.counters.items():
            exported, text = _COUNTERS.get(name, (f"umbra:{name}", "Counted since start"))
            yield self._counter(exported, text, value)
        for name, value in state.gauges.items():
            exported, text = _GAUGES.get(name, (f"umbra:{name}", "As of now"))
            yield self._gauge(exported, text, value)
        if {"full_pages", "full_pages_free", "page_size"} <= state.gauges.keys():
            yield from self._derived()

    def _derived(self) -> Iterable[Metric]:
        gauges, counters = self._state.gauges, self._state.counters
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
        return _gauge(name, text, value, self._labels)


def _gauge(name: str, text: str, value: float, labels: Mapping[str, str]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family
