"""The HTTP application: which path goes to which handler. No logic."""

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from runtime.api_keys import read_api_keys
from runtime.config import ServerConfig
from runtime.server import errors
from runtime.server.access_log import AccessFields
from runtime.server.auth import RequireKey
from runtime.server.cache_page import DEFAULT_SPANS, MAX_SPANS, CacheRoutes
from runtime.server.chat_schema import ChatBody
from runtime.server.completions import CompletionRoutes
from runtime.server.documentation import reply_documentation, request_schema
from runtime.server.health import HealthRoutes
from runtime.server.info import AbortBody, InfoRoutes
from runtime.server.know_caller import KnowCaller
from runtime.server.messages_api import MessagesRoutes
from runtime.server.messages_schema import CountBody, MessagesBody
from runtime.server.openai_schema import CompletionBody
from runtime.server.profile import ProfileBody, ProfileRoutes
from runtime.server.prompt import PromptedBody
from runtime.server.refuse_full import RefuseFull
from runtime.server.render import RenderRoutes
from runtime.server.request_id import EchoRequestId
from runtime.server.request_record import Recorder, RecordRequests, Watch
from runtime.server.responses_api import ResponsesRoutes
from runtime.server.responses_schema import ResponsesBody
from runtime.server.routes import ModelRoutes
from runtime.server.same_site import SameSite
from runtime.server.score import ScoreBody
from runtime.server.service import Service
from runtime.server.tokenize import DetokenizeBody, TokenizeBody
from runtime.tokenizer.manager import TokenizerManager
from runtime.traces_endpoint import parse_traces_endpoint
from runtime.version import VERSION

_Handler = Callable[[Request], Awaitable[Response]]


def create_app(manager: TokenizerManager, config: ServerConfig) -> FastAPI:
    """Return the application around `manager`, and let its metrics observe it.

    Raises ConfigError where the checkpoint's chat template is not valid, or the file of API keys.
    """
    service = Service.make(manager, config)
    keys = () if config.api_key_file is None else read_api_keys(config.api_key_file)
    documented = config.api_key is None and not keys
    app = FastAPI(
        title="Umbra",
        version=VERSION,
        redirect_slashes=False,
        openapi_url="/openapi.json" if documented else None,
        docs_url="/docs" if documented else None,
        redoc_url=None,
    )
    app.state.service = service
    errors.install(app)
    _add_routes(app, service)
    app.add_middleware(RefuseFull, manager=manager)
    app.add_middleware(KnowCaller)
    if not documented:
        app.add_middleware(RequireKey, api_key=config.api_key, keys=keys)
    app.add_middleware(SameSite, host=config.host, allowed=config.allowed_hosts)
    app.add_middleware(EchoRequestId)
    _record_requests(app, service)
    return app


def _record_requests(app: FastAPI, service: Service) -> None:
    """Have requests recorded, if the log or traces ask for it."""
    config, manager = service.config, service.manager
    watches: list[Watch] = []
    if config.log_format == "json":
        level = config.log_level_http or config.log_level
        fields = AccessFields(level, leave_out=config.uvicorn_access_log_exclude_prefixes)
        watches.append(fields.watch)
    endpoint = parse_traces_endpoint(config.otlp_traces_endpoint)
    if endpoint is not None:
        from runtime.server.traces import Traces, exporter_to

        app.state.traces = Traces(service.model_name, exporter_to(endpoint))
        watches.append(app.state.traces.watch)
    if watches:
        manager.observer = Recorder(service.metrics)
        app.add_middleware(RecordRequests, watches=watches, clock=manager.clock)


def _add_routes(app: FastAPI, service: Service) -> None:
    cache = CacheRoutes(service)
    completions = CompletionRoutes(service)
    health = HealthRoutes(service)
    info = InfoRoutes(service)
    messages = MessagesRoutes(service)
    model = ModelRoutes(service)
    profile = ProfileRoutes(service)
    render = RenderRoutes(service)
    responses = ResponsesRoutes(service)
    get, post = ["GET"], ["POST"]

    _add(app, "/generate", model.generate, ["POST", "PUT"], body=PromptedBody)
    _add(app, "/score", model.score, post, body=ScoreBody)
    _add(app, "/v1/completions", completions.create, post, body=CompletionBody)
    _add(app, "/v1/completions/render", render.completions, post, body=CompletionBody)
    _add(app, "/v1/chat/completions", model.chat, post, body=ChatBody)
    _add(app, "/v1/chat/completions/render", render.chat, post, body=ChatBody)
    _add(app, "/v1/messages", messages.create, post, body=MessagesBody)
    _add(app, "/v1/messages/count_tokens", messages.count_tokens, post, body=CountBody)
    _add(app, "/v1/responses", responses.create, post, body=ResponsesBody)
    _add(app, "/v1/responses/input_tokens", responses.count, post, body=ResponsesBody)
    kept, text = "/v1/responses/{response_id}", {"type": "string"}
    salts = [{"name": x, "in": "query", "schema": text} for x in ("cache_salt", "extra_key")]
    _add(app, kept, responses.retrieve, get, parameters=[_in_path("response_id"), *salts])
    _add(app, kept, responses.delete, ["DELETE"], parameters=[_in_path("response_id"), *salts])
    _add(app, "/v1/models", info.models, get)
    _add(app, "/v1/models/{name:path}", info.model, get, parameters=[_in_path("name")])
    _add(app, "/v1/loads", info.loads, get)
    _add(app, "/get_load", info.get_load, get)
    _add(app, "/version", info.version, get)
    for path in ("/tokenize", "/v1/tokenize"):
        _add(app, path, model.tokenize, post, body=TokenizeBody)
    for path in ("/detokenize", "/v1/detokenize"):
        _add(app, path, model.detokenize, post, body=DetokenizeBody)
    for path in ("/server_info", "/get_server_info"):
        _add(app, path, info.server_info, get)
    for path in ("/model_info", "/get_model_info"):
        _add(app, path, info.model_info, get)
    _add(app, "/kv_event_sources", info.kv_event_sources, get)
    _add(app, "/", cache.page, get)
    spans = {"type": "integer", "minimum": 1, "maximum": MAX_SPANS, "default": DEFAULT_SPANS}
    limit = {"name": "max_spans", "in": "query", "schema": spans}
    ranks = {"type": "integer", "minimum": 0, "maximum": service.replicas - 1, "default": 0}
    replica = {"name": "replica", "in": "query", "schema": ranks}
    _add(app, "/cache", cache.cache, get, parameters=[limit, replica])
    _add(app, "/flush_cache", info.flush_cache, post)
    _add(app, "/abort_request", info.abort_request, post, body=AbortBody)
    _add(app, "/start_profile", profile.start, post, body=ProfileBody)
    _add(app, "/stop_profile", profile.stop, post)
    for path in ("/health", "/ping"):
        _add(app, path, health.health, get)
    _add(app, "/ready", health.ready, get)
    _add(app, "/health_generate", health.health_generate, get)
    _add(app, "/metrics", health.metrics, get)


def _in_path(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _add(
    app: FastAPI,
    path: str,
    handler: _Handler,
    methods: list[str],
    *,
    body: type[msgspec.Struct] | None = None,
    parameters: Sequence[dict[str, Any]] = (),
) -> None:
    """Route `path`; `body` and `parameters` are what the documentation says of the request.

    What GET alone reads HEAD reads, too; the HTTP server leaves out the body.
    """
    extra: dict[str, Any] = {}
    if body is not None:
        content = {"application/json": {"schema": request_schema(body)}}
        extra["requestBody"] = {"required": True, "content": content}
    if parameters:
        extra["parameters"] = list(parameters)
    for method in methods:
        app.add_api_route(
            path,
            handler,
            methods=[method],
            response_class=Response,
            openapi_extra=extra,
            responses=reply_documentation(path),
            operation_id=re.sub(r"\W+", "_", f"{method.lower()}{path}").rstrip("_"),
        )
    if methods == ["GET"]:
        app.add_route(path, handler, methods=["HEAD"], include_in_schema=False)
