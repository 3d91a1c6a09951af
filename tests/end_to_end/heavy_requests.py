"""The heaviest requests that one client can make: served, or just refused.

Each costs a server more than it costs the client, in its own way. A new one is a line of `ATTACKS`.
"""

import json
from collections.abc import Callable
from typing import Any

__all__ = ["ATTACKS", "PROMPT_TOKENS", "Attack"]

Json = dict[str, Any]
# Path and body; a body that `json` cannot write is bytes already.
Attack = tuple[str, "Json | bytes"]

PROMPT_TOKENS = 32_000
_TEXT = "So it is said. "
_DEEP = 100_000


def _ids(count: int) -> list[int]:
    return [10 + k % 1500 for k in range(count)]


def _prompt(fields: Json | None = None, **sampling: Any) -> Attack:
    sampling = {"max_new_tokens": 8, **sampling}
    return "/generate", {
        "input_ids": _ids(PROMPT_TOKENS),
        "sampling_params": sampling,
        **(fields or {}),
    }


def _sampled(fields: Json | None = None, **sampling: Any) -> Attack:
    sampling = {"max_new_tokens": 64, **sampling}
    return "/generate", {"text": "Hello", "sampling_params": sampling, **(fields or {})}


def _schema(properties: int) -> Attack:
    names = [f"f{k}" for k in range(properties)]
    schema = {
        "type": "object",
        "properties": {name: {"type": "string"} for name in names},
        "required": names[:1000],
    }
    return _sampled({"cache_salt": str(properties)}, json_schema=json.dumps(schema))


def _choices(count: int) -> Attack:
    """Return a schema of a text that is one of many."""
    return _sampled(json_schema=json.dumps({"enum": [f"choice {k * k}" for k in range(count)]}))


def _bias(entries: int) -> dict[str, float]:
    return {str(k % 2048): 0.001 * k + 1e-9 for k in range(entries)}


def _stops(count: int, chars: int) -> list[str]:
    return [f"{'ab' * chars}{k:03}"[-chars:] for k in range(count)]


def _messages(count: int) -> list[Json]:
    roles = ("user", "assistant")
    return [{"role": roles[k % 2], "content": f"Say {k}."} for k in range(count)]


def _tools(count: int) -> list[Json]:
    fields = {f"field{k}": {"type": "string", "description": _TEXT} for k in range(8)}
    parameters = {"type": "object", "properties": fields}
    return [
        {"type": "function", "function": {"name": f"tool{k}", "parameters": parameters}}
        for k in range(count)
    ]


def _images(count: int) -> list[Json]:
    url = "data:image/png;base64," + "A" * 10_000
    return [{"type": "image_url", "image_url": {"url": url}}] * count


def _deep(before: str, after: str) -> bytes:
    return (before + "[" * _DEEP + "]" * _DEEP + after).encode()


ATTACKS: dict[str, Callable[[], Attack]] = {
    "nothing": lambda: ("/tokenize", {"prompt": "Hello"}),
    "chunk": _prompt,
    "log-probabilities": lambda: _prompt(
        {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 128},
        max_new_tokens=128,
    ),
    "picked ids": lambda: _sampled(
        {"return_logprob": True, "token_ids_logprob": _ids(1_024)}, n=32, max_new_tokens=64
    ),
    "8 M ids": lambda: ("/generate", {"input_ids": [7] * 8_000_000}),
    "4 M ids": lambda: ("/generate", {"input_ids": [*[[7] * 16_000] * 250, [-1]]}),
    "4 M floats": lambda: ("/generate", {"input_ids": [*[[7.0] * 16_000] * 250, [-1]]}),
    "batch": lambda: (
        "/generate",
        {"input_ids": [[k, *_ids(400)] for k in range(256)], "sampling_params": {"n": 1}},
    ),
    "texts": lambda: (
        "/generate",
        {"text": [f"{k} {_TEXT * 100}" for k in range(128)], "sampling_params": {"n": 8}},
    ),
    "own sampling": lambda: (
        "/generate",
        {
            "text": ["Hello"] * 64,
            "sampling_params": [{"max_new_tokens": 16, "logit_bias": _bias(1_024)}] * 64,
        },
    ),
    "stops and bias": lambda: _sampled(n=64, stop=_stops(16, 123), logit_bias=_bias(1_024)),
    "stops and bias, refused": lambda: _sampled(
        n=64, stop=_stops(128, 8), logit_bias=_bias(10_000)
    ),
    "stops": lambda: _sampled(n=64, stop=_stops(16, 256), max_new_tokens=256),
    "penalties": lambda: _prompt(n=64, frequency_penalty=0.5, repetition_penalty=1.1),
    "schema": lambda: _schema(5_000),
    "schema of 1,000": lambda: _schema(1_000),
    "choices": lambda: _choices(8_000),
    "regex": lambda: _sampled(n=64, regex="([a-z]{1,8} |[0-9]{1,40}, |(AB|CD){3,90}; ){1,90}"),
    "deep JSON": lambda: ("/generate", _deep('{"text": "Hello", "other": ', "}")),
    "deep schema": lambda: (
        "/generate",
        _deep('{"text": "Hello", "sampling_params": {"json_schema": {"a": ', "}}}"),
    ),
    "parts": lambda: ("/generate", {"text": "Hello", "rid": ["x"] * 520_000}),
    "stop_regex": lambda: _sampled(stop_regex="(a|b)*c" * 1_000_000),
    "tokenize": lambda: ("/tokenize", {"prompt": _TEXT * 70_000}),
    "tokenize words": lambda: ("/tokenize", {"prompt": [_TEXT * 1_000] * 256}),
    "detokenize": lambda: ("/detokenize", {"tokens": _ids(1_000_000)}),
    "score": lambda: (
        "/score",
        {"text": "What is it? " * 200, "choices": [f"It is {k} or {k * 7}." for k in range(256)]},
    ),
    "chat": lambda: (
        "/v1/chat/completions",
        {"messages": _messages(1_001), "max_tokens": 4},
    ),
    "chat with tools": lambda: (
        "/v1/chat/completions",
        {"messages": _messages(9_999), "tools": _tools(1_000), "max_tokens": 4},
    ),
    "long chat": lambda: (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": _TEXT * 260_000}], "max_tokens": 4},
    ),
    "forced call": lambda: (
        "/v1/chat/completions",
        {
            "messages": _messages(1),
            "tools": _tools(300),
            "tool_choice": "required",
            "max_tokens": 4,
        },
    ),
    "images": lambda: (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": _images(1_000)}]},
    ),
    "completions": lambda: (
        "/v1/completions",
        {"prompt": [_TEXT * 300] * 16, "echo": True, "logprobs": 20, "max_tokens": 16, "n": 4},
    ),
    "echo": lambda: (
        "/v1/completions",
        {"prompt": _ids(PROMPT_TOKENS), "echo": True, "logprobs": 20, "max_tokens": 1},
    ),
    "chat log-probabilities": lambda: (
        "/v1/chat/completions",
        {
            "messages": _messages(1),
            "logprobs": True,
            "top_logprobs": 20,
            "n": 64,
            "max_tokens": 128,
            "ignore_eos": True,
        },
    ),
    "messages": lambda: (
        "/v1/messages",
        {"model": "default", "messages": _messages(2_001), "max_tokens": 4},
    ),
    "responses": lambda: (
        "/v1/responses",
        {"input": [*_messages(2_001)], "max_output_tokens": 4, "store": True},
    ),
}
