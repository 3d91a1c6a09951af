"""How busy a server is: what routers balance by."""

from typing import Any

from runtime.messages import State
from runtime.server.scheduler_metrics import fullest_pool
from runtime.server.service import Service


def server_loads(service: Service, state: State | None) -> list[dict[str, Any]]:
    """Return the load of each replica; zeros for one without a `state`."""
    if state is None or not state.replicas:
        gauges = {} if state is None else state.gauges
        return [_load(0, gauges, service.manager.rows)]
    return [
        _load(rank, replica.gauges, int(replica.gauges["rows"]))
        for rank, replica in enumerate(state.replicas)
    ]


def _load(rank: int, gauges: dict[str, float], rows: int) -> dict[str, Any]:
    """Return the load of a replica, under SGLang's names.

    num_waiting_uncached_tokens  that are to be prefilled and in no step yet: of prompts that wait,
                  from where their prefill would start by the last look-up in the cache, or by
                  the prefill of another prompt that they wait for; in whole before the first
                  look-up, which comes with a free row; and what is left of prompts in prefill.
                  SGLang and the routers that read it mean the same: input tokens, less those
                  matched, of the queue and of the chunked request. Source: sglang
                  `SchedulerLoadInquirer.get_num_waiting_uncached_tokens`
    token_usage   of the fullest pool, cached units that no request holds not counted
    utilization   share of the rows that run, or of the fullest pool if that is more
    """
    running = int(gauges.get("running", 0))
    token_usage = fullest_pool(gauges)
    capacity = gauges.get("full_pages", 0.0) * gauges.get("page_size", 0.0)
    return {
        "dp_rank": rank,
        "num_running_reqs": running,
        "num_waiting_reqs": int(gauges.get("waiting", 0)),
        "num_waiting_uncached_tokens": int(gauges.get("waiting_uncached_tokens", 0)),
        "num_total_reqs": running + int(gauges.get("waiting", 0)),
        "num_used_tokens": int(gauges.get("used_tokens", 0)),
        "max_total_num_tokens": int(capacity),
        "max_running_requests": rows,
        "token_usage": token_usage,
        "gen_throughput": gauges.get("gen_throughput", 0.0),
        "cache_hit_rate": gauges.get("cache_hit_rate", 0.0),
        "utilization": max(running / rows, token_usage),
    }
