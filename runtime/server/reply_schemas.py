"""What replies look like, as JSON Schema: for the OpenAPI document.

A record's `properties` are all that there ever is, `required` what there always is. Of a stream
the schema is that of one event's data.
"""

from typing import Any

Schema = dict[str, Any]

STRING: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}
OBJECT: Schema = {"type": "object"}
NULL: Schema = {"type": "null"}


def record(*, optional: Schema | None = None, **fields: Schema) -> Schema:
    """Return the schema of an object that has `fields`, and may have the `optional` ones."""
    properties = {**fields, **(optional or {})}
    return {"type": "object", "properties": properties, "required": list(fields)}


def array(items: Schema) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": items}


def either(*schemas: Schema) -> Schema:
    """Return the schema of what fits one of several."""
    return {"anyOf": list(schemas)}


def named(*values: str | bool | None) -> Schema:
    """Return the schema of one of a few words, or null."""
    return {"enum": list(values)}


def _nullable(schema: Schema) -> Schema:
    return either(schema, NULL)


def _row(*items: Schema) -> Schema:
    return {"type": "array", "prefixItems": list(items), "minItems": len(items), "items": False}


# --- errors

OPENAI_ERROR = record(
    error=record(message=STRING, type=STRING, param=_nullable(STRING), code=_nullable(STRING))
)
ANTHROPIC_ERROR = record(
    type=named("error"),
    error=record(type=STRING, message=STRING, optional={"details": record(error_code=STRING)}),
)
NATIVE_ERROR = record(error=record(message=STRING, optional={"type": STRING}))

# --- OpenAI's API

_USAGE = record(
    prompt_tokens=INTEGER,
    completion_tokens=INTEGER,
    total_tokens=INTEGER,
    prompt_tokens_details=record(cached_tokens=INTEGER),
    prompt_cache_hit_tokens=INTEGER,
    prompt_cache_miss_tokens=INTEGER,
    optional={"completion_tokens_details": record(reasoning_tokens=INTEGER)},
)
_FINISH = named("stop", "length", "tool_calls", "abort")
_UNFINISHED = named("stop", "length", "tool_calls", "abort", None)
_MATCHED = either(STRING, INTEGER, NULL)
TOKEN = {"token": STRING, "logprob": NUMBER, "bytes": array(INTEGER)}
_CHAT_TOKENS = array(record(**TOKEN, top_logprobs=array(record(**TOKEN))))
_CHAT_LOGPROBS = record(
    content=_CHAT_TOKENS, refusal=NULL, optional={"reasoning_content": _CHAT_TOKENS}
)
_CALL = either(
    record(id=STRING, type=named("function"), function=record(name=STRING, arguments=STRING)),
    record(id=STRING, type=named("custom"), custom=record(name=STRING, input=STRING)),
)
# The first piece of a call says whose it is, and all of them add to its arguments.
_CALL_PIECE = either(
    record(
        index=INTEGER,
        function=record(arguments=STRING, optional={"name": STRING}),
        optional={"id": STRING, "type": named("function")},
    ),
    record(
        index=INTEGER,
        custom=record(input=STRING, optional={"name": STRING}),
        optional={"id": STRING, "type": named("custom")},
    ),
)
# With the id of a call that a stream has begun.
INVALID_CALLS = array(record(name=_nullable(STRING), error=STRING, optional={"id": STRING}))
_IDS = {"token_ids": array(INTEGER)}


def _envelope(kind: str, choice: Schema, **more: Any) -> Schema:
    return record(
        id=STRING,
        object=named(kind),
        created=INTEGER,
        model=STRING,
        choices=array(choice),
        **more,
    )


_ANY_USAGE = {"usage": _nullable(_USAGE)}

CHAT = _envelope(
    "chat.completion",
    record(
        index=INTEGER,
        message=record(
            role=named("assistant"),
            content=_nullable(STRING),
            refusal=NULL,
            optional={
                "reasoning_content": STRING,
                "tool_calls": array(_CALL),
                "invalid_tool_calls": INVALID_CALLS,
            },
        ),
        logprobs=_nullable(_CHAT_LOGPROBS),
        finish_reason=_FINISH,
        matched_stop=_MATCHED,
        optional=_IDS,
    ),
    usage=_USAGE,
)
CHAT_CHUNK = _envelope(
    "chat.completion.chunk",
    record(
        index=INTEGER,
        delta=record(
            optional={
                "role": named("assistant"),
                "content": STRING,
                "reasoning_content": STRING,
                "tool_calls": array(_CALL_PIECE),
                "invalid_tool_calls": INVALID_CALLS,
            }
        ),
        logprobs=_nullable(_CHAT_LOGPROBS),
        finish_reason=_UNFINISHED,
        optional={"matched_stop": _MATCHED, **_IDS},
    ),
    optional=_ANY_USAGE,
)
_TEXT_LOGPROBS = record(
    tokens=array(STRING),
    token_logprobs=array(_nullable(NUMBER)),
    top_logprobs=_nullable(array(_nullable({"type": "object", "additionalProperties": NUMBER}))),
    text_offset=array(INTEGER),
)


def _text_choice(finish: Schema, optional: Schema, **more: Schema) -> Schema:
    return record(
        index=INTEGER,
        text=STRING,
        logprobs=_nullable(_TEXT_LOGPROBS),
        finish_reason=finish,
        **more,
        optional={**optional, **_IDS},
    )


COMPLETION = _envelope(
    "text_completion", _text_choice(_FINISH, {}, matched_stop=_MATCHED), usage=_USAGE
)
COMPLETION_CHUNK = _envelope(
    "text_completion", _text_choice(_UNFINISHED, {"matched_stop": _MATCHED}), optional=_ANY_USAGE
)
MODEL = record(
    id=STRING,
    object=named("model"),
    created=INTEGER,
    owned_by=STRING,
    root=STRING,
    parent=NULL,
    max_model_len=INTEGER,
    type=named("model"),
    display_name=STRING,
    created_at=STRING,
    lifecycle=STRING,
    max_input_tokens=INTEGER,
    max_tokens=INTEGER,
)
MODELS = record(
    object=named("list"), data=array(MODEL), first_id=STRING, last_id=STRING, has_more=BOOLEAN
)

RENDERED = record(
    request_id=STRING,
    token_ids=array(INTEGER),
    assistant_tokens_mask=NULL,
    token_offsets=NULL,
    features=NULL,
    sampling_params=OBJECT,
    model=STRING,
    stream=BOOLEAN,
    stream_options=_nullable(OBJECT),
    cache_salt=_nullable(STRING),
    priority=INTEGER,
    kv_transfer_params=NULL,
    ec_transfer_params=NULL,
)

# --- Anthropic's API

_TEXT_BLOCK = record(type=named("text"), text=STRING)
_THINKING_BLOCK = record(type=named("thinking"), thinking=STRING, signature=STRING)
_TOOL_BLOCK = record(type=named("tool_use"), id=STRING, name=STRING, input=OBJECT)
_BLOCK = either(_TEXT_BLOCK, _THINKING_BLOCK, _TOOL_BLOCK)
_MESSAGE_USAGE = record(
    input_tokens=INTEGER,
    cache_creation_input_tokens=INTEGER,
    cache_read_input_tokens=INTEGER,
    output_tokens=INTEGER,
    optional={"output_tokens_details": record(thinking_tokens=INTEGER)},
)
_STOP = {
    "stop_reason": named(
        "end_turn",
        "max_tokens",
        "stop_sequence",
        "tool_use",
        "model_context_window_exceeded",
        None,
    ),
    "stop_sequence": _nullable(STRING),
}
_INVALID = {"invalid_tool_calls": INVALID_CALLS}
MESSAGE = record(
    id=STRING,
    type=named("message"),
    role=named("assistant"),
    model=STRING,
    content=array(_BLOCK),
    **_STOP,
    usage=_MESSAGE_USAGE,
    optional=_INVALID,
)
_DELTA = either(
    record(type=named("text_delta"), text=STRING),
    record(type=named("thinking_delta"), thinking=STRING),
    record(type=named("signature_delta"), signature=STRING),
    record(type=named("input_json_delta"), partial_json=STRING),
)
MESSAGE_EVENT = either(
    record(type=named("message_start"), message=MESSAGE),
    record(type=named("content_block_start"), index=INTEGER, content_block=_BLOCK),
    record(type=named("content_block_delta"), index=INTEGER, delta=_DELTA),
    record(type=named("content_block_stop"), index=INTEGER),
    record(
        type=named("message_delta"),
        delta=record(**_STOP, optional=_INVALID),
        usage=_MESSAGE_USAGE,
    ),
    record(type=named("message_stop")),
    record(type=named("ping")),
)
TOKEN_COUNT = record(input_tokens=INTEGER)

# --- the native API

_LOGPROB = _row(_nullable(NUMBER), INTEGER, _nullable(STRING))
_LOGPROB_ROWS = {
    f"{side}_{kind}_logprobs": array(_LOGPROB if kind == "token" else _nullable(array(_LOGPROB)))
    for side in ("input", "output")
    for kind in ("token", "top", "token_ids")
}
_GENERATED_FIELDS = {
    "text": STRING,
    "output_ids": array(INTEGER),
    "meta_info": record(
        id=STRING,
        finish_reason=either(
            record(type=named("stop"), matched=_MATCHED),
            record(type=named("length"), length=INTEGER),
            record(type=named("abort"), message=_nullable(STRING)),
            NULL,
        ),
        prompt_tokens=INTEGER,
        completion_tokens=INTEGER,
        cached_tokens=INTEGER,
        weight_version=STRING,
        optional={**_LOGPROB_ROWS, "e2e_latency": NUMBER},
    ),
}
GENERATED = either(record(**_GENERATED_FIELDS), array(record(**_GENERATED_FIELDS)))
GENERATED_CHUNK = record(**_GENERATED_FIELDS, optional={"index": INTEGER})
SCORES = record(
    choices=array(
        record(
            token_ids=array(INTEGER),
            token_texts=array(STRING),
            logprobs=array(NUMBER),
            normalized_logprob=NUMBER,
            optional={"unconditional_logprobs": array(_nullable(NUMBER))},
        )
    ),
    meta_info=record(
        id=STRING,
        prompt_tokens=INTEGER,
        scored_from=INTEGER,
        cached_tokens=INTEGER,
        computed_tokens=INTEGER,
    ),
)
TOKENS = record(
    tokens=either(array(INTEGER), array(array(INTEGER))),
    count=either(INTEGER, array(INTEGER)),
    max_model_len=INTEGER,
)
TEXT = record(text=STRING, prompt=STRING)
ABORTED = record(aborted=INTEGER)
PROFILED = record(message=STRING, file=_nullable(STRING), files=array(STRING))

# --- facts

_COUNTS = (
    *("dp_rank", "num_running_reqs", "num_waiting_reqs", "num_waiting_uncached_tokens"),
    *("num_total_reqs", "num_used_tokens"),
)
_SHARES = ("token_usage", "gen_throughput", "cache_hit_rate", "utilization")
_LOAD = record(
    **dict.fromkeys(_COUNTS, INTEGER),
    max_total_num_tokens=INTEGER,
    max_running_requests=INTEGER,
    **dict.fromkeys(_SHARES, NUMBER),
)
LOADS = record(timestamp=STRING, version=STRING, loads=array(_LOAD))
LOAD = array(
    record(dp_rank=INTEGER, num_reqs=INTEGER, num_waiting_reqs=INTEGER, num_tokens=INTEGER)
)
VERSION = record(version=STRING)
MODEL_INFO = record(
    model_path=_nullable(STRING),
    served_model_name=STRING,
    tokenizer_path=_nullable(STRING),
    is_generation=BOOLEAN,
    weight_version=STRING,
    load_format=STRING,
    sampling_defaults=OBJECT,
    chat_format=named("deepseek_v4", "jinja", None),
    reasoning_parser=_nullable(STRING),
    tool_call_parser=_nullable(STRING),
    model_type=_nullable(STRING),
    architectures=array(STRING),
    context_length=INTEGER,
    vocab_size=INTEGER,
)
