"""What the OpenAPI document says of a route: its request, its replies, its refusals."""

from functools import lru_cache
from typing import Any

import msgspec

import runtime.server.reply_schemas as replies
from runtime.server.field_hints import hints_of
from runtime.server.responses_documentation import (
    RESPONSE,
    RESPONSE_DELETED,
    RESPONSE_EVENT,
    RESPONSE_TOKENS,
)

Schema = dict[str, Any]

_JSON, _EVENTS = "application/json", "text/event-stream"
# What each path replies with 200, by media type.
_REPLIES: dict[str, Schema] = {
    "/generate": {_JSON: replies.GENERATED, _EVENTS: replies.GENERATED_CHUNK},
    "/score": {_JSON: replies.SCORES},
    "/v1/completions": {_JSON: replies.COMPLETION, _EVENTS: replies.COMPLETION_CHUNK},
    "/v1/chat/completions": {_JSON: replies.CHAT, _EVENTS: replies.CHAT_CHUNK},
    "/v1/completions/render": {_JSON: replies.array(replies.RENDERED)},
    "/v1/chat/completions/render": {_JSON: replies.RENDERED},
    "/v1/messages": {_JSON: replies.MESSAGE, _EVENTS: replies.MESSAGE_EVENT},
    "/v1/messages/count_tokens": {_JSON: replies.TOKEN_COUNT},
    "/v1/responses": {_JSON: RESPONSE, _EVENTS: RESPONSE_EVENT},
    "/v1/responses/input_tokens": {_JSON: RESPONSE_TOKENS},
    "/v1/responses/{response_id}": {_JSON: replies.either(RESPONSE, RESPONSE_DELETED)},
    "/v1/models": {_JSON: replies.MODELS},
    "/v1/models/{name:path}": {_JSON: replies.MODEL},
    "/v1/loads": {_JSON: replies.LOADS},
    "/get_load": {_JSON: replies.LOAD},
    "/version": {_JSON: replies.VERSION},
    "/tokenize": {_JSON: replies.TOKENS},
    "/v1/tokenize": {_JSON: replies.TOKENS},
    "/detokenize": {_JSON: replies.TEXT},
    "/v1/detokenize": {_JSON: replies.TEXT},
    "/server_info": {_JSON: replies.OBJECT},
    "/get_server_info": {_JSON: replies.OBJECT},
    "/model_info": {_JSON: replies.MODEL_INFO},
    "/get_model_info": {_JSON: replies.MODEL_INFO},
    "/kv_event_sources": {_JSON: replies.OBJECT},
    "/": {"text/html": replies.STRING},
    "/cache": {_JSON: replies.OBJECT},
    "/flush_cache": {"text/plain": replies.STRING},
    "/abort_request": {_JSON: replies.ABORTED},
    "/start_profile": {_JSON: replies.PROFILED},
    "/stop_profile": {_JSON: replies.PROFILED},
    "/metrics": {"text/plain": replies.STRING},
}
# Streams that end without `[DONE]`: their last event says so itself.
_NAMED_EVENTS = ("/v1/messages", "/v1/responses")
_PROBES = ("/health", "/ping", "/ready", "/health_generate")


def reply_documentation(path: str) -> dict[int | str, dict[str, Any]]:
    """Return the replies of a route, by status."""
    if path in _PROBES:
        return {
            200: {"description": "Yes. The body is empty."},
            503: {"description": "No. The body is empty."},
        }
    content = {kind: {"schema": schema} for kind, schema in _REPLIES[path].items()}
    if _EVENTS in content:  # a stream can break when its status is already sent
        content[_EVENTS] = {"schema": replies.either(_REPLIES[path][_EVENTS], _error(path))}
    told = "The answer."
    if _EVENTS in content:
        told = "The answer; with `stream`, server-sent events whose data is like this."
        if path not in _NAMED_EVENTS:
            told += " `[DONE]` comes last."
    refusal = {"content": {_JSON: {"schema": _error(path)}}}
    return {
        200: {"description": told, "content": content},
        "4XX": {"description": "What was wrong with the request.", **refusal},
        "5XX": {"description": "Why the server cannot answer.", **refusal},
    }


def _error(path: str) -> Schema:
    if path.startswith("/v1/messages"):
        return replies.ANTHROPIC_ERROR
    if path == "/v1/models" or path.startswith("/v1/models/"):
        return replies.either(replies.OPENAI_ERROR, replies.ANTHROPIC_ERROR)
    return replies.OPENAI_ERROR if path.startswith("/v1/") else replies.NATIVE_ERROR


@lru_cache
def request_schema(body: type[msgspec.Struct]) -> Schema:
    """Return the JSON schema of a body without references: the document has no place for them.

    Fields of other servers that are refused are there, and say so.
    """
    [schema], components = msgspec.json.schema_components([body], ref_template="{name}")
    whole, hints = _inlined(schema, components), hints_of(body)
    for name in hints.names:
        whole["properties"][name] = {"description": f"Not supported{hints.text(name)}."}
    return whole


def _inlined(node: Any, components: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_inlined(item, components) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _inlined(components[node["$ref"]], components)
    # A discriminator names components. Each alternative tells its one `type` itself.
    return {k: _inlined(v, components) for k, v in node.items() if k != "discriminator"}
