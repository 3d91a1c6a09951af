"""Prometheus metrics, under SGLang's names where they mean the same, else under `umbra:`.

Two sources: what the tokenizer manager observes (latencies, outcomes), and the scheduler's
counters and gauges, read when somebody scrapes.
"""

import logging
from collections.abc import Iterable, Sequence
from typing import get_args

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from runtime.durations import Durations
from runtime.errors import (
    BadRequest,
    GrammarError,
    PromptTooLong,
    QueueFull,
    TimedOut,
    Unavailable,
)
from runtime.messages import State
from runtime.rank_memory import RankMemory
from runtime.server.memory_metrics import RankMemoryCollector
from runtime.server.scheduler_metrics import SchedulerCollector, histogram
from runtime.tokenizer.observer import ChoiceEnd, Observer, Stage

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

logger = logging.getLogger("umbra.requests")

_SECONDS = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 100, 200, 400,
)  # fmt: skip
_GAP_SECONDS = (
    0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 0.6, 1, 2,
)  # fmt: skip
_STAGE_SECONDS = tuple(float(f"{m}e{e}") for e in range(-4, 4) for m in (1, 2, 5))
# The usual ones; there may be others.
_ENDINGS = ("stop", "length", "abort", "error", "unread")
_REFUSALS = (BadRequest, GrammarError, PromptTooLong, QueueFull, TimedOut, Unavailable)
_TOKENS = tuple(float(1 << k) for k in range(0, 21, 2))


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
        self.model_name = model_name
        self._registry = CollectorRegistry()
        self._scheduler = SchedulerCollector(model_name)
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
        self._begin_at_zero()

    def _begin_at_zero(self) -> None:
        """Expose what did not happen yet: the first time is a rise only from 0."""
        for stage in get_args(Stage):
            self._stages.labels(self.model_name, stage)
        for reason in _ENDINGS:
            self._finished.labels(self.model_name, reason)
        for refusal in _REFUSALS:
            self._refused.labels(self.model_name, refusal.__name__)

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
        return family.labels(self.model_name)

    def _count(self, name: str, text: str) -> Counter:
        return Counter(name, text, ["model_name", "reason"], registry=self._registry)

    def add(self, collector: Collector) -> None:
        """Expose what `collector` tells, too."""
        self._registry.register(collector)

    def stage(self, stage: Stage, seconds: float) -> None:
        """Record how long a choice was in a stage that it has behind it."""
        self._stages.labels(self.model_name, stage).observe(seconds)
        if stage == "prefill_waiting":
            self._queue.observe(seconds)

    def first_token(self, seconds: float) -> None:
        """Record the time from a call to the first token of one of its choices."""
        self._ttft.observe(seconds)

    def inter_token(self, seconds: float, tokens: int) -> None:
        """Record that `tokens` tokens came, each `seconds` after the one before it."""
        self._gap.observe(seconds, tokens)

    def finished(self, end: ChoiceEnd) -> None:
        """Record the end of a choice; its decoding if it was not cut off and had any."""
        self._finished.labels(self.model_name, end.reason).inc()
        self._e2e.observe(end.seconds)
        self._prompt.observe(end.prompt_tokens)
        self._generated.observe(end.completion_tokens)
        if end.decode_s is not None and end.completion_tokens > 1:
            self.stage("decode_forward", end.decode_s)
            self._per_token.observe(end.decode_s / (end.completion_tokens - 1))
        if self._log_requests:
            logger.info(
                "Finish request: %s, #prompt-token: %d, #cached-token: %d, #new-token: %d, %.3f s",
                end.reason,
                end.prompt_tokens,
                end.cached_tokens,
                end.completion_tokens,
                end.seconds,
                extra={
                    "fields": {
                        "finish_reason": end.reason,
                        "prompt_tokens": end.prompt_tokens,
                        "cached_tokens": end.cached_tokens,
                        "output_tokens": end.completion_tokens,
                        "duration_s": round(end.seconds, 6),
                    }
                },
            )

    def refused(self, reason: str) -> None:
        """Count a call that was not admitted."""
        self._refused.labels(self.model_name, reason).inc()
        if self._log_requests:
            logger.info("Refuse request: %s", reason, extra={"fields": {"refusal": reason}})

    def render(self, state: State | None) -> bytes:
        """Return the exposition text; without `state` the scheduler's part is left out."""
        self._scheduler.state = state
        return generate_latest(self._registry)


class _GapCollector(Collector):
    """Exposes the times between tokens."""

    def __init__(self, model_name: str, gaps: Durations) -> None:
        self._labels = {"model_name": model_name}
        self._gaps = gaps

    def collect(self) -> Iterable[Metric]:
        """Yield their histogram."""
        name = "sglang:inter_token_latency_seconds"
        yield histogram(name, "Seconds between tokens", self._gaps.told(), labels=self._labels)
