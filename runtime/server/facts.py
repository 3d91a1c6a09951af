"""Facts about a server or an engine, as `/server_info` tells them."""

import dataclasses
from typing import Any

from runtime.server.kv_event_sources import describe
from runtime.server.service import Service
from runtime.version import VERSION


async def server_info(service: Service) -> dict[str, Any]:
    """Return the settings (without the key), the engine's facts and its state."""
    settings = dataclasses.asdict(service.config)
    # Whether there is a key is no secret; the key is.
    settings["api_key"] = None if service.config.api_key is None else "***"
    state = await service.state()
    internal: dict[str, Any] = {}
    if state is not None:
        internal = {**state.counters, **state.gauges, "step_age_s": state.step_age_s}
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
        "kv_events": describe(service.config, service.manager.ready.info),
        "internal_states": [internal],
    }
