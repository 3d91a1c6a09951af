"""Facts about the server, and the two things an operator does to it: flush and abort."""

import dataclasses
import time
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from runtime.errors import BadRequest
from runtime.server.body import read_body
from runtime.server.health import current_state
from runtime.server.replies import json_reply
from runtime.server.service import VERSION, Service


class AbortBody(msgspec.Struct, frozen=True):
    """`/abort_request`."""

    rid: str | None = None
    abort_all: bool | None = None


class InfoRoutes:
    """Handlers of the facts, `/flush_cache` and `/abort_request`."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def models(self, request: Request) -> Response:
        """List the one served model."""
        return json_reply({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        """Describe one model by its name. Raises NotFound."""
        self._service.check_model(request.path_params["name"])
        return json_reply(self._model())

    def _model(self) -> dict[str, Any]:
        service = self._service
        return {
            "id": service.model_name,
            "object": "model",
            "created": service.started,
            # Routers fall back to the generic OpenAI dialect for an owner they do not know, which
            # is the truth: we are not one of those engines.
            "owned_by": "umbra",
            "root": service.config.model_path or service.model_name,
            "parent": None,
            "max_model_len": service.context_tokens,
        }

    async def model_info(self, request: Request) -> Response:
        """Return what clients ask of the model before they use it."""
        config, facts = self._service.config, self._service.manager.ready.info
        architectures = str(facts.get("architectures", ""))
        return json_reply(
            {
                "model_path": config.model_path,
                "served_model_name": self._service.model_name,
                "tokenizer_path": config.tokenizer_path or config.model_path,
                "is_generation": True,
                "weight_version": "default",
                "load_format": config.load_format,
                "reasoning_parser": None,
                "tool_call_parser": None,
                "model_type": facts.get("model_type"),
                "architectures": [name for name in architectures.split(",") if name],
                "context_length": self._service.context_tokens,
                "vocab_size": self._service.vocab_size,
            }
        )

    async def server_info(self, request: Request) -> Response:
        """Return the settings (without the key), the engine's facts and its state."""
        service = self._service
        settings = dataclasses.asdict(service.config)
        # Whether there is a key is no secret; the key is.
        settings["api_key"] = None if service.config.api_key is None else "***"
        state = await current_state(service)
        internal: dict[str, Any] = {}
        if state is not None:
            internal = {**state.counters, **state.gauges, "step_age_s": state.step_age_s}
        return json_reply(
            {
                **settings,
                **service.manager.ready.info,
                "served_model_name": service.model_name,
                "version": VERSION,
                "status": "draining" if service.manager.draining else "ready",
                "context_tokens": service.context_tokens,
                "vocab_size": service.vocab_size,
                "eos_token_ids": service.manager.ready.eos_token_ids,
                "internal_states": [internal],
            }
        )

    async def loads(self, request: Request) -> Response:
        """Return how busy the server is, for routers."""
        state = await current_state(self._service)
        gauges = state.gauges if state is not None else {}
        return json_reply(
            {
                "timestamp": time.time(),
                "version": VERSION,
                "loads": [
                    {
                        "dp_rank": 0,
                        "num_running_reqs": int(gauges.get("running", 0)),
                        "num_waiting_reqs": int(gauges.get("waiting", 0)),
                        "num_used_tokens": int(gauges.get("used_tokens", 0)),
                        "token_usage": gauges.get("full_usage", 0.0),
                    }
                ],
            }
        )

    async def flush_cache(self, request: Request) -> Response:
        """Empty the prefix cache; 400 while requests run."""
        flushed = await self._service.manager.flush_cache()
        if not flushed.done:
            raise BadRequest(f"the cache was not flushed: {flushed.message}")
        return PlainTextResponse(f"Cache flushed: {flushed.message}\n")

    async def abort_request(self, request: Request) -> Response:
        """End the request with exactly this rid, or all of them; says how many."""
        body = await read_body(request, AbortBody)
        manager = self._service.manager
        if body.abort_all:
            return json_reply({"aborted": await manager.abort(None, all=True)})
        if not body.rid:
            raise BadRequest("give rid, or abort_all: true", param="rid")
        ended = [await manager.abort(label) for label in self._service.batches.members(body.rid)]
        return json_reply({"aborted": sum(ended)})
