"""The response object of `/v1/responses`, in each state that it goes through."""

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from runtime.errors import QueueFull, RequestError
from runtime.server.fields import refusing_depth
from runtime.server.responses_reply import response_usage
from runtime.server.responses_schema import ResponsesBody
from runtime.server.runs import Tally

Json = dict[str, Any]


def response_object(
    body: ResponsesBody,
    *,
    name: str,
    created: int,
    model: str,
    temperature: float,
    top_p: float,
) -> Json:
    """Return the response to a request while there is no answer yet: mostly its fields."""
    form = None if body.text is None else body.text.format
    effort = None if body.reasoning is None else body.reasoning.effort
    return {
        "id": name,
        "object": "response",
        "created_at": created,
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "model": model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "reasoning": {"effort": effort, "summary": None},
        "service_tier": "default",
        "store": body.store is not False,
        "temperature": temperature,
        "text": {"format": {"type": "text"} if form is None else _written(form, "text")},
        "tool_choice": _written(body.tool_choice or "auto", "tool_choice"),
        "tools": _written(body.offered, "tools"),
        "top_logprobs": body.top_logprobs or 0,
        "top_p": top_p,
        "truncation": "disabled",
        "usage": None,
    }


def finished(
    head: Json, items: Sequence[Json], tally: Tally, *, cut: bool, invalid: Sequence[Json]
) -> Json:
    """Return the response with its answer.

    cut      the answer ended because it had as many tokens as it may have
    invalid  calls that cannot be handed to a tool; they are in an extension field
    """
    ended = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    if not cut:
        ended = {"status": "completed", "completed_at": int(time.time())}
    response = {**head, **ended, "output": list(items), "usage": response_usage(tally)}
    return {**response, "invalid_tool_calls": list(invalid)} if invalid else response


def failed(head: Json, error: RequestError) -> Json:
    """Return the response whose stream `error` broke."""
    code = "server_error"
    if isinstance(error, QueueFull):
        code = "rate_limit_exceeded"
    elif error.status < 499:
        code = "invalid_prompt"
    return {**head, "status": "failed", "error": {"code": code, "message": error.message}}


def _written(value: Any, name: str) -> msgspec.Raw:
    """Return what the client gave as JSON, once for all events. Raises BadRequest if too deep."""
    with refusing_depth(name):
        return msgspec.Raw(msgspec.json.encode(value))
