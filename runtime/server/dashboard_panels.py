"""What the panels of the Grafana dashboard ask Prometheus for, row by row."""

from dataclasses import dataclass

from runtime.server.promql import largest, levels, mean, most, now, quantile, rate, rates, ratio

__all__ = ["NOT_SHOWN", "ROWS", "Panel"]

# What /metrics has and no panel shows, and why.
NOT_SHOWN = {
    "sglang:cache_config_info": "constant, for routers",
    "sglang:evicted_tokens_total": "umbra:evicted_pages_total in tokens",
    "sglang:is_cuda_graph": "constant",
    "sglang:max_total_num_tokens": "constant",
    "sglang:num_pages": "constant",
    "sglang:num_paused_reqs": "always 0",
    "sglang:num_retracted_reqs": "sglang:num_retracted_requests_total as a gauge",
    "sglang:num_used_tokens": "sglang:kv_used_tokens",
    "sglang:page_size": "constant",
    "umbra:computed_prompt_tokens_total": "in sglang:realtime_tokens_total",
    "umbra:full_pages_evictable": "sglang:kv_evictable_tokens in pages",
    "umbra:full_pages_free": "sglang:kv_available_tokens in pages",
    "umbra:never_seen_tokens_total": "in umbra:uncached_tokens_total",
    "umbra:no_point_tokens_total": "in umbra:uncached_tokens_total",
    "umbra:page_evicted_tokens_total": "in umbra:uncached_tokens_total",
    "umbra:point_evicted_tokens_total": "in umbra:uncached_tokens_total",
    "umbra:rings": "constant",
    "umbra:swa_page_size": "constant",
    "umbra:swa_pages": "constant",
    "umbra:swa_pages_evictable": "sglang:swa_evictable_tokens in pages",
    "umbra:swa_pages_free": "sglang:swa_available_tokens in pages",
}

_SERVER = "instance, replica"
_REPLICA = "instance, replica, dp_rank"
_NAME = "{{instance}} {{replica}} {{dp_rank}}"


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph.

    unit     in Grafana's words
    queries  PromQL by legend; {{label}} in a legend is the value of a label
    text     what a reader may not know
    """

    title: str
    unit: str
    queries: dict[str, str]
    text: str = ""


def _percentiles(title: str, histogram: str, unit: str = "s", text: str = "") -> Panel:
    queries = {f"p{p}": quantile(p / 100, histogram) for p in (50, 90, 99)}
    return Panel(title, unit, queries | {"mean": mean(histogram)}, text)


_TRAFFIC = (
    Panel(
        "Requests",
        "reqps",
        rates(
            received="sglang:num_requests_total",
            finished="umbra:finished_requests_total",
            background="umbra:background_requests_total",
        ),
        "Background: beginnings of next turns, and probes of /health_generate",
    ),
    Panel("Ends", "reqps", {"{{reason}}": rate("umbra:choices_finished_total", "reason")}),
    Panel("Open connections", "short", levels(open="umbra:connections_open")),
    Panel(
        "Tokens",
        "tokens/s",
        rates(
            prompts="sglang:prompt_tokens_total",
            of_them_cached="sglang:cached_tokens_total",
            answers="sglang:generation_tokens_total",
            background_prompts="umbra:background_prompt_tokens_total",
        ),
    ),
    Panel(
        "Tokens as they come",
        "tokens/s",
        {"{{mode}}": rate("sglang:realtime_tokens_total", "mode")},
    ),
    Panel("Tokens sampled, lately", "tokens/s", levels(all="sglang:gen_throughput")),
    _percentiles("Tokens of a prompt", "sglang:prompt_tokens_histogram", "short"),
    _percentiles("Tokens of an answer", "sglang:generation_tokens_histogram", "short"),
)
_LATENCY = (
    _percentiles(
        "Time to first token",
        "sglang:time_to_first_token_seconds",
        text="Of requests whose tokens come as they are made",
    ),
    _percentiles("Time between tokens", "sglang:inter_token_latency_seconds"),
    _percentiles("Time of a request", "sglang:e2e_request_latency_seconds"),
    _percentiles("Time without a row", "sglang:queue_time_seconds"),
    _percentiles(
        "Mean time between a request's tokens", "sglang:request_time_per_output_token_seconds"
    ),
    Panel(
        "Where the time goes",
        "s",
        {"{{stage}}": mean("sglang:per_stage_req_latency_seconds", "stage")},
        "Mean seconds of a request in each stage",
    ),
)
_CACHE = (
    Panel(
        "Hit rate",
        "percentunit",
        {
            "lately": ratio("sglang:cached_tokens_total", "sglang:prompt_tokens_total"),
            "since start, {{instance}} {{replica}} {{dp_rank}}": now(
                "sglang:cache_hit_rate", _REPLICA
            ),
        },
        "Prompt tokens that came from the cache",
    ),
    Panel(
        "Prompt tokens not cached, by cause",
        "tokens/s",
        {"{{cause}}": rate("umbra:uncached_tokens_total", "cause")},
    ),
    Panel(
        "Computed again",
        "tokens/s",
        rates(replayed="umbra:replayed_tokens_total", recomputed="umbra:recomputed_tokens_total"),
        "Tokens whose pages were there, for want of a resume point",
    ),
    Panel(
        "Full pages",
        "short",
        levels(
            held_by_requests="sglang:kv_used_tokens",
            cached="sglang:kv_evictable_tokens",
            free="sglang:kv_available_tokens",
        ),
        "In tokens",
    ),
    Panel(
        "SWA pages",
        "short",
        levels(
            held_by_requests="sglang:swa_used_tokens",
            cached="sglang:swa_evictable_tokens",
            free="sglang:swa_available_tokens",
        ),
        "In tokens",
    ),
    Panel(
        "Tree",
        "short",
        levels(
            pages="umbra:tree_pages",
            resume_points="umbra:resume_points",
            states_cached="umbra:rings_evictable",
            states_free="umbra:rings_free",
        ),
    ),
    Panel(
        "Evictions",
        "ops",
        rates(pages="umbra:evicted_pages_total", resume_points="umbra:evicted_points_total"),
    ),
    _percentiles("Time of an eviction", "sglang:eviction_duration_seconds"),
    Panel(
        "Copied between replicas of one server",
        "tokens/s",
        rates(copied="umbra:copied_tokens_total", computed_again="umbra:elsewhere_tokens_total"),
        "With --enable-dp-attention",
    ),
    Panel(
        "Largest namespaces",
        "short",
        {
            "{{namespace}}": now("umbra:namespace_tokens", "namespace"),
            "all": now("sglang:kv_evictable_tokens"),
        },
        "Cached tokens",
    ),
)
_SCHEDULER = (
    Panel(
        "Requests by state",
        "short",
        levels(
            running="sglang:num_running_reqs",
            queued="sglang:num_queue_reqs",
            wait_for_a_grammar="sglang:num_grammar_queue_reqs",
            rows="umbra:max_running_requests",
        ),
    ),
    Panel(
        "Tokens to be prefilled",
        "short",
        levels(
            all="umbra:waiting_uncached_tokens", of_requests_without_a_row="umbra:queued_tokens"
        ),
    ),
    Panel(
        "Wait for a row",
        "s",
        {"{{instance}} {{replica}}": most("umbra:queue_seconds", "instance, replica")},
    ),
    Panel(
        "Share in use",
        "percentunit",
        largest(
            full_pages="sglang:full_token_usage",
            SWA_pages="sglang:swa_token_usage",
            states="umbra:ring_usage",
            fullest_pool="sglang:token_usage",
            rows_or_fullest_pool="sglang:utilization",
        ),
        "Of the fullest server",
    ),
    Panel("Retractions", "ops", rates(retracted="sglang:num_retracted_requests_total")),
    Panel(
        "Steps",
        "ops",
        rates(prefill="umbra:prefill_steps_total", decode="umbra:decode_steps_total"),
    ),
    _percentiles("Time to compile a grammar", "sglang:grammar_compilation_time_seconds"),
    Panel(
        "Rows by share",
        "short",
        {
            "{{share}} running": now("umbra:share_running_reqs", "share"),
            "{{share}} waiting": now("umbra:share_waiting_reqs", "share"),
        },
        "Of API keys by name",
    ),
    Panel(
        "Wait by share",
        "s",
        {
            "{{share}}": ratio(
                "umbra:share_wait_seconds_total", "umbra:share_started_requests_total", "share"
            )
        },
        "Mean seconds until a request of a share has a row",
    ),
)
_RELIABILITY = (
    Panel(
        "Requests that did not end well",
        "reqps",
        rates(
            failed="umbra:failed_requests_total",
            refused="umbra:refused_requests_total",
            timed_out="umbra:timed_out_requests_total",
            given_up_by_clients="sglang:num_aborted_requests_total",
        ),
    ),
    Panel("Refusals", "reqps", {"{{reason}}": rate("umbra:calls_refused_total", "reason")}),
    Panel(
        "Numbers that are not finite",
        "ops",
        rates(
            requests="umbra:not_finite_requests_total",
            distrusted_pages="umbra:distrusted_pages_total",
        ),
        "Faults of the device or the weights: anything but 0 is a reason to look",
    ),
    Panel(
        "Connections closed",
        "ops",
        {"{{reason}}": rate("umbra:connections_closed_total", "reason")},
    ),
    Panel("Replies that are not read", "bytes", levels(bytes="umbra:unread_reply_bytes")),
    Panel(
        "Age of the step, and of the loop's turn",
        "s",
        largest(step="umbra:step_age_seconds", turn="umbra:loop_age_seconds"),
        "A turn older than 3.5 s, or a step older than --watchdog-timeout, ends the server",
    ),
)
_PROCESSES = (
    Panel(
        "Resident memory",
        "bytes",
        {
            "{{process}} {{instance}}": now(
                "umbra:process_resident_memory_bytes", "process, instance"
            )
        },
    ),
    Panel(
        "Processors in use",
        "short",
        {"{{process}} {{instance}}": rate("umbra:process_cpu_seconds_total", "process, instance")},
    ),
    Panel(
        "Open files",
        "short",
        {"{{process}} {{instance}}": now("umbra:process_open_fds", "process, instance")},
    ),
    Panel(
        "Memory of ranks, by use",
        "bytes",
        {
            "{{part}}, rank {{rank}} {{instance}}": now(
                "umbra:rank_memory_bytes", "part, rank, instance"
            )
        },
        "Of each rank's device, as it was when the server was ready",
    ),
    Panel(
        "Memory of ranks",
        "bytes",
        {
            "all, rank {{rank}} {{instance}}": now(
                "umbra:rank_memory_total_bytes", "rank, instance"
            ),
            "free, rank {{rank}} {{instance}}": now(
                "umbra:rank_memory_free_bytes", "rank, instance"
            ),
        },
        "Likewise",
    ),
)
_REPLICAS = (
    Panel("Requests", "reqps", {_NAME: rate("sglang:num_requests_total", _REPLICA)}),
    Panel(
        "Hit rate",
        "percentunit",
        {_NAME: ratio("sglang:cached_tokens_total", "sglang:prompt_tokens_total", _REPLICA)},
    ),
    Panel(
        "Time to first token, p99",
        "s",
        {"{{instance}} {{replica}}": quantile(0.99, "sglang:time_to_first_token_seconds", _SERVER)},
    ),
    Panel("Running", "short", {_NAME: now("sglang:num_running_reqs", _REPLICA)}),
    Panel("Queued", "short", {_NAME: now("sglang:num_queue_reqs", _REPLICA)}),
    Panel(
        "Tokens to be prefilled", "short", {_NAME: now("umbra:waiting_uncached_tokens", _REPLICA)}
    ),
)

ROWS = {
    "Traffic": _TRAFFIC,
    "Latency": _LATENCY,
    "Cache": _CACHE,
    "Scheduler": _SCHEDULER,
    "Reliability": _RELIABILITY,
    "Processes and ranks": _PROCESSES,
    "Replicas side by side": _REPLICAS,
}
