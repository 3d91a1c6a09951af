"""Fields of other servers are refused with what to use instead."""

from typing import Any

import pytest

from runtime.server.field_hints import field_hint, unknown_field_hint
from tests.runtime.server.engine import Server, served

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


@pytest.mark.parametrize(
    ("path", "body", "hint"),
    [
        (COMPLETIONS, {"prompt": "a", "suffix": "b"}, "put what comes first into prompt"),
        (COMPLETIONS, {"prompt": "a", "prompt_logprobs": 1}, "use echo with logprobs"),
        (COMPLETIONS, {"prompt": "a", "stop_regex": "b"}, "use stop"),
        (COMPLETIONS, {"prompt": "a", "include_stop_str_in_output": True}, "use no_stop_trim"),
        (CHAT, {"messages": [], "functions": [{"name": "f"}]}, "use tools"),
        (CHAT, {"messages": [], "allowed_token_ids": [1]}, "use logit_bias"),
        (CHAT, {"messages": [], "input_ids": [1]}, "use /v1/completions"),
        (CHAT, {"messages": [], "return_meta_info": True}, "use /generate"),
        (CHAT, {"messages": [], "thinking_token_budget": 9}, "use reasoning_effort"),
        (CHAT, {"messages": [], "documents": [{"text": "x"}]}, "into a message"),
        (COMPLETIONS, {"prompt": "a", "bootstrap_host": "h"}, "in one server"),
        (COMPLETIONS, {"prompt": "a", "return_routed_experts": True}, "hidden states"),
        ("/generate", {"text": "a", "return_prompt_token_ids": True}, "use /tokenize"),
        ("/generate", {"text": "a", "session_params": {"id": 1}}, "found in the cache"),
        ("/generate", {"text": "a", "sampling_params": {"max_tokens": 3}}, "use max_new_tokens"),
        ("/generate", {"text": "a", "sampling_params": {"temp": 3}}, "`temp`"),
        ("/generate", {"text": "a", "sampling_params": [{"stream": True}]}, "beside sampling"),
    ],
    ids=lambda value: next(reversed(value)) if isinstance(value, dict) else "",
)
@served()
async def test_a_field_of_another_server_is_answered_with_a_hint(
    server: Server, path: str, body: dict[str, Any], hint: str
) -> None:
    reply = await server.post(path, body)

    assert reply.status_code == 400
    assert hint in reply.json()["error"]["message"]
    assert server.engine.requests == []


def test_what_is_unknown_to_everybody_gets_no_hint() -> None:
    assert field_hint("nonsense") == ""
    assert unknown_field_hint("Expected `int`, got `str`") == ""
    assert unknown_field_hint("Object contains unknown field `nonsense`") == ""
