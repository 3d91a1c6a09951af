"""The HTTP application: which path goes to which handler. No logic."""

from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any

import msgspec
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from runtime.chat_template import ChatEncoder
from runtime.config import ServerConfig
from runtime.server import errors
from runtime.server.auth import CacheNamespaces, RequireKey
from runtime.server.chat import ChatRoutes
from runtime.server.completions import CompletionRoutes
from runtime.server.health import HealthRoutes
from runtime.server.info import AbortBody, InfoRoutes
from runtime.server.metrics import Metrics
from runtime.server.native import NativeRoutes
from runtime.server.native_schema import GenerateBody
from runtime.server.openai_schema import ChatBody, CompletionBody
from runtime.server.request_id import EchoRequestId
from runtime.server.service import VERSION, Service, served_name
from runtime.server.spelling import Speller
from runtime.server.tokenize import DetokenizeBody, TokenizeBody, TokenizeRoutes
from runtime.tokenizer.manager import TokenizerManager

_Handler = Callable[[Request], Awaitable[Response]]


def create_app(manager: TokenizerManager, config: ServerConfig) -> FastAPI:
    """Return the application around `manager`, and let its metrics observe it.

    Raises ConfigError where the checkpoint's chat template is not valid.
    """
    service = _service(manager, config)
    manager.observer = service.metrics
    documented = config.api_key is None
    app = FastAPI(
        title="Umbra",
        version=VERSION,
        redirect_slashes=False,
        openapi_url="/openapi.json" if documented else None,
        docs_url="/docs" if documented else None,
        redoc_url=None,
    )
    errors.install(app)
    _add_routes(app, service)
    if config.api_key is not None:
        app.add_middleware(RequireKey, api_key=config.api_key)
    app.add_middleware(EchoRequestId)
    return app


def _service(manager: TokenizerManager, config: ServerConfig) -> Service:
    tokenizer = manager.tokenizer
    chat = None
    if tokenizer.backend is not None:
        chat = ChatEncoder(
            tokenizer.backend,
            template=tokenizer.chat_template,
            bos_token=tokenizer.bos_token,
            eos_token=tokenizer.eos_token,
        )
    return Service(
        manager=manager,
        config=config,
        metrics=Metrics(served_name(config), log_requests=config.log_requests),
        namespaces=CacheNamespaces(config.api_key),
        chat=chat,
        speller=Speller(tokenizer),
    )


def _add_routes(app: FastAPI, service: Service) -> None:
    chat = ChatRoutes(service)
    completions = CompletionRoutes(service)
    health = HealthRoutes(service)
    info = InfoRoutes(service)
    tokenize = TokenizeRoutes(service, chat)
    get, post = ["GET"], ["POST"]

    _add(app, "/generate", NativeRoutes(service).generate, ["POST", "PUT"], body=GenerateBody)
    _add(app, "/v1/completions", completions.create, post, body=CompletionBody)
    _add(app, "/v1/chat/completions", chat.create, post, body=ChatBody)
    _add(app, "/v1/models", info.models, get)
    _add(app, "/v1/models/{name:path}", info.model, get)
    _add(app, "/v1/loads", info.loads, get)
    for path in ("/tokenize", "/v1/tokenize"):
        _add(app, path, tokenize.tokenize, post, body=TokenizeBody)
    for path in ("/detokenize", "/v1/detokenize"):
        _add(app, path, tokenize.detokenize, post, body=DetokenizeBody)
    for path in ("/server_info", "/get_server_info"):
        _add(app, path, info.server_info, get)
    for path in ("/model_info", "/get_model_info"):
        _add(app, path, info.model_info, get)
    _add(app, "/flush_cache", info.flush_cache, ["GET", "POST"])
    _add(app, "/abort_request", info.abort_request, post, body=AbortBody)
    _add(app, "/health", health.health, get)
    _add(app, "/ready", health.ready, get)
    _add(app, "/health_generate", health.health_generate, get)
    _add(app, "/metrics", health.metrics, get)


def _add(
    app: FastAPI,
    path: str,
    handler: _Handler,
    methods: list[str],
    *,
    body: type[msgspec.Struct] | None = None,
) -> None:
    """Route `path`; `body` is what the documentation says of the request."""
    extra: dict[str, Any] | None = None
    if body is not None:
        content = {"application/json": {"schema": _inline_schema(body)}}
        extra = {"requestBody": {"required": True, "content": content}}
    for method in methods:
        app.add_api_route(
            path,
            handler,
            methods=[method],
            response_class=Response,
            openapi_extra=extra,
            operation_id=f"{method.lower()}{path.replace('/', '_')}",
        )


@lru_cache
def _inline_schema(body: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the JSON schema of `body` without references: the document has no place for them."""
    [schema], components = msgspec.json.schema_components([body], ref_template="{name}")
    return _inlined(schema, components)


def _inlined(node: Any, components: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_inlined(item, components) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _inlined(components[node["$ref"]], components)
    return {name: _inlined(value, components) for name, value in node.items()}
