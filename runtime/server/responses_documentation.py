"""What `/v1/responses` replies with, as JSON Schema; see `runtime.server.reply_schemas`."""

from typing import Any

from runtime.server.reply_schemas import (
    BOOLEAN,
    INTEGER,
    INVALID_CALLS,
    NULL,
    NUMBER,
    OBJECT,
    STRING,
    TOKEN,
    Schema,
    array,
    either,
    named,
    record,
)

_STATUS = named("in_progress", "completed", "incomplete")
_LOGPROBS = array(record(**TOKEN, top_logprobs=array(record(**TOKEN))))
_TEXT_PART = record(
    type=named("output_text"),
    text=STRING,
    annotations=array(OBJECT),
    logprobs=_LOGPROBS,
)
_REASONING_PART = record(type=named("reasoning_text"), text=STRING)
_PART = either(_TEXT_PART, _REASONING_PART)
_ITEM = either(
    record(
        id=STRING,
        type=named("message"),
        status=_STATUS,
        role=named("assistant"),
        content=array(_TEXT_PART),
    ),
    record(
        id=STRING,
        type=named("reasoning"),
        status=_STATUS,
        summary=array(OBJECT),
        content=array(_REASONING_PART),
        optional={"encrypted_content": STRING},
    ),
    record(
        id=STRING,
        type=named("function_call"),
        status=_STATUS,
        call_id=STRING,
        name=STRING,
        arguments=STRING,
        optional={"namespace": STRING},
    ),
    record(
        id=STRING,
        type=named("custom_tool_call"),
        status=_STATUS,
        call_id=STRING,
        name=STRING,
        input=STRING,
    ),
)
_USAGE = record(
    input_tokens=INTEGER,
    input_tokens_details=record(cached_tokens=INTEGER, cache_write_tokens=INTEGER),
    output_tokens=INTEGER,
    output_tokens_details=record(reasoning_tokens=INTEGER),
    total_tokens=INTEGER,
)
RESPONSE = record(
    id=STRING,
    object=named("response"),
    created_at=INTEGER,
    completed_at=either(INTEGER, NULL),
    status=named("in_progress", "completed", "incomplete", "failed"),
    background=named(False),
    error=either(record(code=STRING, message=STRING), NULL),
    incomplete_details=either(record(reason=named("max_output_tokens")), NULL),
    instructions=either(STRING, NULL),
    max_output_tokens=either(INTEGER, NULL),
    metadata=OBJECT,
    model=STRING,
    output=array(_ITEM),
    parallel_tool_calls=BOOLEAN,
    previous_response_id=either(STRING, NULL),
    reasoning=record(effort=either(STRING, NULL), summary=NULL),
    service_tier=named("default"),
    store=BOOLEAN,
    temperature=NUMBER,
    text=record(format=OBJECT),
    tool_choice=either(STRING, OBJECT),
    tools=array(OBJECT),
    top_logprobs=INTEGER,
    top_p=NUMBER,
    truncation=named("disabled"),
    usage=either(_USAGE, NULL),
    optional={"invalid_tool_calls": INVALID_CALLS},
)
RESPONSE_TOKENS = record(object=named("response.input_tokens"), input_tokens=INTEGER)
RESPONSE_DELETED = record(id=STRING, object=named("response"), deleted=BOOLEAN)


def _event(*kinds: str, **fields: Any) -> Schema:
    types = [f"response.{kind}" for kind in kinds]
    return record(type=named(*types), sequence_number=INTEGER, **fields)


_PLACE: Schema = {"item_id": STRING, "output_index": INTEGER}
_TEXT_PLACE: Schema = {**_PLACE, "content_index": INTEGER}
RESPONSE_EVENT = either(
    _event("created", "in_progress", "completed", "incomplete", "failed", response=RESPONSE),
    _event("output_item.added", "output_item.done", output_index=INTEGER, item=_ITEM),
    _event("content_part.added", "content_part.done", **_TEXT_PLACE, part=_PART),
    _event("output_text.delta", **_TEXT_PLACE, delta=STRING, logprobs=_LOGPROBS),
    _event("output_text.done", **_TEXT_PLACE, text=STRING, logprobs=_LOGPROBS),
    _event("reasoning_text.delta", **_TEXT_PLACE, delta=STRING),
    _event("reasoning_text.done", **_TEXT_PLACE, text=STRING),
    _event("function_call_arguments.delta", **_PLACE, delta=STRING),
    _event("function_call_arguments.done", **_PLACE, name=STRING, arguments=STRING),
    _event("custom_tool_call_input.delta", **_PLACE, delta=STRING),
    _event("custom_tool_call_input.done", **_PLACE, input=STRING),
)
