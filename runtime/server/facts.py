"""Facts about a server or an engine, as `/server_info` tells them."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import msgspec

from runtime.rank_memory import RankMemory
from runtime.server.kv_event_sources import describe
from runtime.server.service import Service
from runtime.version import VERSION


def rank_memory(ranks: Sequence[RankMemory]) -> list[dict[str, int]]:
    """Return what is told of the memory of each rank's device, one object a rank."""
    return [msgspec.structs.asdict(rank) for rank in ranks]


async def server_info(service: Service) -> dict[str, Any]:
    """Return the settings (without the key), the engine's facts and its state."""
    settings = dataclasses.asdict(service.config)
    # Whether there is a key is no secret; the key is.
    for name in ("api_key", "api_key_file"):
        settings[name] = None if settings[name] is None else "***"
    state = await service.state()
    internal: list[dict[str, Any]] = [{}]
    if state is not None:
        # As SGLang does: an object for each data-parallel rank.
        parts = state.replicas or [state]
        internal = [
            {**part.counters, **part.gauges, "step_age_s": state.step_age_s} for part in parts
        ]
    return {
        **settings,
        **service.manager.ready.info,
        "max_running_requests": service.manager.rows,
        "served_model_name": service.model_name,
        "version": VERSION,
        "status": "draining" if service.manager.draining else "ready",
        "context_tokens": service.context_tokens,
        "vocab_size": service.vocab_size,
        "eos_token_ids": service.manager.ready.eos_token_ids,
        "chat_format": service.chat_format,
        "rank_memory": rank_memory(service.manager.ready.memory),
        "kv_events": describe(service.config, service.manager.ready.info),
        "internal_states": internal,
    }
