"""Where cache events are published, as routers ask for it.

SGLang's routers read `kv_events` of `/server_info`, vLLM's `/kv_event_sources`.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from runtime.config import ServerConfig
from runtime.kv_events_config import host_and_port, parse_kv_events_config

_Facts = Mapping[str, str | int | float | bool]
# One publisher has the events of all replicas: a batch says by `data_parallel_rank` of which.
_RANK = "0"


def describe(config: ServerConfig, facts: _Facts) -> dict[str, Any] | None:
    """Return SGLang's description of the publisher; None without one that can be dialled by TCP.

    facts  of the scheduler: endpoints with the ports really taken
    A wildcard host stands for the one that this server was reached by.
    """
    wanted = parse_kv_events_config(config.kv_events_config)
    endpoint = str(facts.get("kv_events_endpoint", ""))
    if wanted is None or not wanted.listens or not endpoint.startswith("tcp:"):
        return None
    host, port = host_and_port(endpoint)
    described: dict[str, Any] = {
        "publisher": "zmq",
        "endpoint_host": host,
        "endpoint_port_base": port,
        "topic": wanted.topic,
        "block_size": facts.get("page_size"),
        "dp_size": 1,
    }
    replay = str(facts.get("kv_events_replay_endpoint", ""))
    if replay.startswith("tcp:"):
        described["replay_endpoint_port_base"] = host_and_port(replay)[1]
    return described


def sources(config: ServerConfig, facts: _Facts) -> dict[str, Any]:
    """Return the publisher's settings by rank, as vLLM does; {} when events are off."""
    wanted = parse_kv_events_config(config.kv_events_config)
    if wanted is None or "kv_events_endpoint" not in facts:
        return {}
    resolved = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": facts["kv_events_endpoint"],
        "bind": wanted.listens,
        "replay_endpoint": facts.get("kv_events_replay_endpoint"),
    }
    # Where a key lies is for those who start servers.
    told = msgspec.to_builtins(wanted) | resolved
    del told["hash_key_file"]
    return {_RANK: told}
