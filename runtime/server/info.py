"""Facts about the server, and the two things an operator does to it: flush and abort."""

import time
from datetime import UTC, datetime
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from runtime.errors import BadRequest
from runtime.server.body import read_body
from runtime.server.facts import server_info
from runtime.server.kv_event_sources import sources
from runtime.server.load import server_loads
from runtime.server.replies import json_reply
from runtime.server.service import Service
from runtime.version import VERSION

# By the owner of the first model SGLang's gateway decides whose paths and metrics it reads:
# "sglang" and "nvidia" mean SGLang, "vllm" means vLLM. For any other owner a `/version` that
# answers means vLLM, and without one `/server_info` means SGLang, whose paths and metrics these
# are.
# Source: model_gateway/src/workflow/steps/local/detect_backend.rs of smg 1.13.
OWNER = "sglang"


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
        model = self._model()
        pages = {"first_id": model["id"], "last_id": model["id"], "has_more": False}
        return json_reply({"object": "list", "data": [model], **pages})

    async def model(self, request: Request) -> Response:
        """Describe one model by its name. Raises NotFound."""
        self._service.check_model(request.path_params["name"])
        return json_reply(self._model())

    def _model(self) -> dict[str, Any]:
        """Return what OpenAI's clients look for, and what Anthropic's do, in one object."""
        service = self._service
        return {
            "id": service.model_name,
            "object": "model",
            "created": service.started,
            "owned_by": OWNER,
            "root": service.config.model_path or service.model_name,
            "parent": None,
            "max_model_len": service.context_tokens,
            "type": "model",
            "display_name": service.model_name,
            "created_at": _utc(service.started),
            "lifecycle": "active",
            "max_input_tokens": service.context_tokens,
            "max_tokens": service.context_tokens,
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
                "sampling_defaults": dict(self._service.defaults),
                "chat_format": self._service.chat_format,
                "reasoning_parser": self._service.reasoning_parser,
                "tool_call_parser": self._service.tool_call_parser,
                "model_type": facts.get("model_type"),
                "architectures": [name for name in architectures.split(",") if name],
                "context_length": self._service.context_tokens,
                "vocab_size": self._service.vocab_size,
            }
        )

    async def server_info(self, request: Request) -> Response:
        """Return the settings (without the key), the engine's facts and its state."""
        return json_reply(await server_info(self._service))

    async def kv_event_sources(self, request: Request) -> Response:
        """Return where cache events are published, by rank; {} when they are off."""
        service = self._service
        return json_reply(sources(service.config, service.manager.ready.info))

    async def loads(self, request: Request) -> Response:
        """Return how busy the server is, for routers; SGLang's gateway takes text as timestamp."""
        loads = server_loads(self._service, await self._service.state())
        now = _utc(time.time())
        return json_reply({"timestamp": now, "version": VERSION, "loads": loads})

    async def get_load(self, request: Request) -> Response:
        """Return the same as routers of older SGLang ask for it."""
        loads = server_loads(self._service, await self._service.state())
        return json_reply(
            [
                {
                    "dp_rank": load["dp_rank"],
                    "num_reqs": load["num_total_reqs"],
                    "num_waiting_reqs": load["num_waiting_reqs"],
                    "num_tokens": load["num_used_tokens"],
                }
                for load in loads
            ]
        )

    async def version(self, request: Request) -> Response:
        """Return the version alone."""
        return json_reply({"version": VERSION})

    async def flush_cache(self, request: Request) -> Response:
        """Empty the prefix cache; 400 while requests run."""
        flushed = await self._service.flush_cache()
        if not flushed.done:
            raise BadRequest(f"the cache was not flushed: {flushed.message}")
        return PlainTextResponse(f"Cache flushed: {flushed.message}\n")

    async def abort_request(self, request: Request) -> Response:
        """End the request with exactly this rid, or all of them; says how many."""
        body = await read_body(request, AbortBody)
        ended = await self._service.abort(body.rid, all=bool(body.abort_all))
        return json_reply({"aborted": ended})


def _utc(unix_s: float) -> str:
    """Return a time as ISO 8601."""
    return datetime.fromtimestamp(unix_s, UTC).isoformat().replace("+00:00", "Z")
