"""Fields of other servers are refused with what to use instead, unless they ask for nothing."""

from typing import Any, ClassVar

import msgspec
import pytest

from runtime.errors import BadRequest
from runtime.server.body import decode
from runtime.server.field_hints import OFF, FieldHint, FieldHints, HintedBody, hints_of
from runtime.server.fields import as_body
from tests.runtime.server.engine import Server, served

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HINTS = FieldHints(
    (FieldHint("color colour", "use paint"), FieldHint("shiny", "it always is", (True,))),
    (FieldHint("colour", "use ink", (*OFF, "black")), FieldHint("parts.size", "use length")),
)


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a body."""

    length: int


class Body(HintedBody, frozen=True):
    """A body with hints."""

    elsewhere: ClassVar[FieldHints] = HINTS

    paint: str
    parts: list[Part] | None = None


@pytest.mark.parametrize(
    "fields",
    [
        {"color": None, "colour": None, "shiny": None},
        {"color": "", "colour": "black"},
        {"color": False, "shiny": True},
        {"color": {}, "colour": []},
        {"color": 0, "never_heard_of": {"a": 1}, "parts.size": 2},
    ],
)
def test_what_asks_for_nothing_is_taken(fields: dict[str, Any]) -> None:
    assert decode(msgspec.json.encode({"paint": "p", **fields}), Body) == Body("p")


@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        ({"color": "red"}, "color", "color is not supported: use paint"),
        ({"colour": "red"}, "colour", "colour is not supported: use ink"),
        ({"shiny": False}, "shiny", "shiny is not supported: it always is"),
        ({"color": [[[{}]]]}, "color", "color is not supported: use paint"),
    ],
)
def test_what_asks_for_something_is_refused_in_json_and_in_python(
    fields: dict[str, Any], param: str, text: str
) -> None:
    values = {"paint": "p", **fields}
    for refusing in (
        lambda: decode(msgspec.json.encode(values), Body),
        lambda: as_body(values, Body),
    ):
        with pytest.raises(BadRequest) as refused:
            refusing()
        assert (refused.value.message, refused.value.param) == (text, param)
        assert refused.value.code == "not_supported"


def test_a_missing_field_that_has_another_servers_name_is_told() -> None:
    with pytest.raises(BadRequest, match="color is not supported: use paint"):
        decode(b'{"color": "red"}', Body)
    with pytest.raises(BadRequest, match="missing required field `paint`"):
        decode(b'{"tint": "red"}', Body)


def test_fields_of_parts_have_hints_of_their_own() -> None:
    with pytest.raises(BadRequest, match=r"parts\[1\]: .*`size`: use length") as refused:
        decode(b'{"paint": "p", "parts": [{"length": 1}, {"size": 2}]}', Body)

    assert refused.value.param == "parts"
    assert HINTS.names == ("color", "colour", "shiny")


def test_a_body_without_hints_ignores_what_it_does_not_know() -> None:
    class Plain(msgspec.Struct):
        x: int = 1

    assert hints_of(Plain).names == ()
    assert decode(b'{"color": "red"}', Plain).x == 1


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
        (CHAT, {"input": "hi", "instructions": "be brief"}, "use messages"),
        (COMPLETIONS, {"prompt": "a", "bootstrap_host": "h"}, "in one server"),
        (COMPLETIONS, {"prompt": "a", "return_routed_experts": True}, "hidden states"),
        ("/generate", {"inputs": "a"}, "use text"),
        ("/generate", {"text": "a", "temperature": 0}, "give it in sampling_params"),
        ("/generate", {"text": "a", "max_tokens": 3}, "use max_new_tokens in sampling_params"),
        ("/generate", {"text": "a", "return_prompt_token_ids": True}, "use /tokenize"),
        ("/generate", {"text": "a", "session_params": {"id": 1}}, "found in the cache"),
        ("/generate", {"text": "a", "sampling_params": {"max_tokens": 3}}, "use max_new_tokens"),
        ("/generate", {"text": "a", "sampling_params": {"temp": 3}}, "`temp`"),
        ("/generate", {"text": "a", "sampling_params": [{"stream": True}]}, "beside sampling"),
        ("/generate", {"text": "a", "sampling_params": {"stop_regex": "a"}}, "use stop"),
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
