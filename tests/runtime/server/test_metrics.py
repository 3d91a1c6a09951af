"""Tests of runtime.server.metrics."""

import logging

import pytest
from prometheus_client.parser import text_string_to_metric_families

from runtime.messages import Histogram, State
from runtime.server.metrics import Metrics
from runtime.tokenizer.observer import ChoiceEnd
from tests.runtime.server.engine import Server, served


def samples(text: bytes | str) -> dict[str, float]:
    """Return the samples by name and by what distinguishes them."""
    text = text if isinstance(text, str) else text.decode()
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            rest = {k: v for k, v in sample.labels.items() if k != "model_name"}
            shown = "".join(f"{{{k}={v}}}" for k, v in sorted(rest.items()))
            found[sample.name + shown] = sample.value
    return found


def end(metrics: Metrics, reason: str, *, decode_s: float | None, completion_tokens: int) -> None:
    """Let a choice end."""
    metrics.finished(
        ChoiceEnd(
            reason,
            index=0,
            seconds=1.0,
            decode_s=decode_s,
            prompt_tokens=2,
            cached_tokens=1,
            completion_tokens=completion_tokens,
        )
    )


@served()
async def test_a_scrape_shows_what_happened(server: Server) -> None:
    await server.events("/generate", {"text": "hi", "sampling_params": {"n": 2}})
    await server.post("/generate", {"text": "x" * 400})

    reply = await server.client.get("/metrics")

    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    told = samples(reply.text)
    assert told["sglang:num_requests_total"] == 2
    assert told["sglang:time_to_first_token_seconds_count"] == 2
    assert told["sglang:e2e_request_latency_seconds_count"] == 2
    assert told["sglang:generation_tokens_histogram_sum"] == 12
    assert told["sglang:queue_time_seconds_count"] == 2
    assert told["sglang:queue_time_seconds_sum"] == 0.5
    stage = "sglang:per_stage_req_latency_seconds"
    assert told[f"{stage}_count{{stage=tokenize}}"] == 1
    assert told[f"{stage}_sum{{stage=prefill_waiting}}"] == 0.5
    assert told[f"{stage}_sum{{stage=prefill_forward}}"] == 1.0
    assert told[f"{stage}_sum{{stage=decode_forward}}"] == 2.0
    assert told["sglang:request_time_per_output_token_seconds_count"] == 2
    assert told["sglang:request_time_per_output_token_seconds_sum"] == pytest.approx(2 * 1.0 / 5)
    assert told["umbra:choices_finished_total{reason=stop}"] == 2
    assert sum(v for k, v in told.items() if k.startswith("umbra:calls_refused_total")) == 1


def test_scheduler_values_have_the_names_routers_read() -> None:
    gauges = {
        "rows": 4.0, "cuda_graph": 0.0, "running": 3.0, "waiting": 2.0, "compiling": 1.0,
        "waiting_uncached_tokens": 700.0, "full_pages": 10.0, "full_pages_free": 4.0,
        "full_pages_evictable": 1.0, "page_size": 256.0, "rings": 5.0, "swa_page_size": 64.0,
        "swa_pages": 8.0, "swa_pages_free": 1.0, "swa_pages_evictable": 2.0,
        "full_usage": 0.5, "swa_usage": 0.625, "ring_usage": 0.2, "used_tokens": 1280.0,
    }  # fmt: skip
    counters = {
        "prompt_tokens": 100.0, "evicted_pages": 2.0, "decode_steps": 7.0, "cached_tokens": 30.0,
        "computed_prompt_tokens": 70.0, "retracted_requests": 1.0,
        "no_point_tokens": 4.0, "never_seen_tokens": 50.0,
    }  # fmt: skip

    told = samples(Metrics("m").render(State(0, counters, gauges, step_age_s=0.5)))

    causes = {"no_point": 4, "point_evicted": 0, "page_evicted": 0, "never_seen": 50}
    for cause, tokens in causes.items():
        assert told[f"umbra:uncached_tokens_total{{cause={cause}}}"] == tokens
    assert told["sglang:num_running_reqs"] == 3
    assert told["sglang:utilization"] == 0.75
    assert told["umbra:max_running_requests"] == 4
    assert told["sglang:num_paused_reqs"] == told["sglang:is_cuda_graph"] == 0
    assert told["sglang:num_queue_reqs"] == 2
    assert told["sglang:num_grammar_queue_reqs"] == 1
    assert told["umbra:waiting_uncached_tokens"] == 700
    assert told["sglang:num_used_tokens"] == told["sglang:kv_used_tokens"] == 1280
    assert told["sglang:full_token_usage"] == 0.5
    assert told["sglang:swa_token_usage"] == told["sglang:token_usage"] == 0.625
    assert told["umbra:ring_usage"] == 0.2
    assert told["sglang:swa_available_tokens"] == 64
    assert told["sglang:swa_evictable_tokens"] == 128
    assert told["sglang:swa_used_tokens"] == 5 * 64
    assert told["sglang:num_retracted_reqs"] == told["sglang:num_retracted_requests_total"] == 1
    assert told["sglang:realtime_tokens_total{mode=prefill_cache}"] == 30
    assert told["sglang:realtime_tokens_total{mode=prefill_compute}"] == 70
    assert told["sglang:max_total_num_tokens"] == 2560
    assert told["sglang:kv_available_tokens"] == 1024
    assert told["sglang:kv_evictable_tokens"] == 256
    assert told["sglang:prompt_tokens_total"] == 100
    assert told["sglang:evicted_tokens_total"] == 512
    assert told["umbra:decode_steps_total"] == 7
    assert told["umbra:rings"] == 5
    assert told["umbra:step_age_seconds"] == 0.5
    assert told["sglang:cache_config_info{num_pages=10}{page_size=256}"] == 1


def test_durations_that_the_scheduler_measured_are_histograms() -> None:
    seen = Histogram([0.1, 1.0], [3, 2, 1], 7.5)
    durations = {"eviction": seen, "grammar_compilation": Histogram([0.1, 1.0], [0, 0, 0], 0.0)}

    told = samples(Metrics("m").render(State(0, {}, {}, durations=durations)))

    name = "sglang:eviction_duration_seconds"
    buckets = [told[f"{name}_bucket{{le={bound}}}"] for bound in ("0.1", "1.0", "+Inf")]
    assert buckets == [3, 5, 6]
    assert (told[f"{name}_count"], told[f"{name}_sum"]) == (6, 7.5)
    assert told["sglang:grammar_compilation_time_seconds_count"] == 0


def test_without_a_state_only_what_was_observed_is_told() -> None:
    told = samples(Metrics("m").render(None))

    assert "sglang:num_running_reqs" not in told
    assert told["sglang:inter_token_latency_seconds_count"] == 0


def test_gaps_count_once_per_token() -> None:
    metrics = Metrics("m")

    metrics.inter_token(0.01, 3)
    metrics.inter_token(3.0, 1)

    told = samples(metrics.render(None))
    gap = "sglang:inter_token_latency_seconds"
    assert told[f"{gap}_count"] == 4
    assert told[f"{gap}_sum"] == pytest.approx(3.03)
    buckets = {k: told[f"{gap}_bucket{{le={k}}}"] for k in ("0.008", "0.01", "2.0", "+Inf")}
    assert buckets == {"0.008": 0, "0.01": 3, "2.0": 3, "+Inf": 4}


@pytest.mark.parametrize(("decode_s", "tokens"), [(None, 9), (0.0, 1), (0.0, 0)])
def test_a_choice_that_was_cut_off_or_did_not_decode_has_no_decoding_time(
    decode_s: float | None, tokens: int
) -> None:
    metrics = Metrics("m")

    end(metrics, "abort", decode_s=decode_s, completion_tokens=tokens)

    told = samples(metrics.render(None))
    assert told["sglang:e2e_request_latency_seconds_count"] == 1
    assert told["sglang:request_time_per_output_token_seconds_count"] == 0
    assert told["sglang:per_stage_req_latency_seconds_count{stage=decode_forward}"] == 0


def test_a_queue_of_no_time_and_one_of_minutes_fall_into_different_buckets() -> None:
    metrics = Metrics("m")
    for seconds in (0.0, 0.003, 400.0, 1e6):
        metrics.stage("prefill_waiting", seconds)

    told = samples(metrics.render(None))
    name = "sglang:queue_time_seconds_bucket"
    assert told[f"{name}{{le=0.0001}}"] == 1
    assert told[f"{name}{{le=0.005}}"] == 2
    assert told[f"{name}{{le=500.0}}"] == 3
    assert told[f"{name}{{le=+Inf}}"] == 4


@served()
async def test_an_answer_that_ends_at_a_stop_string_is_told_as_finished(server: Server) -> None:
    sampling = {"stop": ["ll"], "max_new_tokens": 50}
    await server.post("/generate", {"text": "hi", "sampling_params": sampling})

    told = samples((await server.client.get("/metrics")).text)

    assert told["umbra:choices_finished_total{reason=stop}"] == 1
    assert told["umbra:choices_finished_total{reason=abort}"] == 0
    assert (len(server.engine.stopped), server.engine.aborted) == (1, [])
    assert told["sglang:per_stage_req_latency_seconds_count{stage=decode_forward}"] == 1


def test_two_servers_share_no_metric() -> None:
    one, other = Metrics("m"), Metrics("m")

    one.refused("queue_full")

    assert "umbra:calls_refused_total{reason=queue_full}" in samples(one.render(None))
    assert "umbra:calls_refused_total{reason=queue_full}" not in samples(other.render(None))


@pytest.mark.parametrize("asked", [False, True])
def test_requests_are_logged_only_when_asked(asked: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "umbra.requests")
    metrics = Metrics("m", log_requests=asked)

    end(metrics, "stop", decode_s=0.5, completion_tokens=3)
    metrics.refused("too_long")

    assert len(caplog.records) == (2 if asked else 0)
