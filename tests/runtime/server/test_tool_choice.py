"""Tests of runtime.server.tool_choice: which tools may, must or cannot be called."""

from typing import Any

import pytest

from runtime.errors import BadRequest
from runtime.server.tool_choice import ToolChoice, read_choice
from tests.runtime.server.engine import Server, served

Json = dict[str, Any]

PARAMETERS: Json = {"type": "object", "properties": {"s": {"type": "string"}}}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in "fgh"
]


def named(*names: str) -> list[Json]:
    return [{"type": "function", "function": {"name": name}} for name in names]


def allowed(mode: str, *names: str) -> Json:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": named(*names)}}


@pytest.mark.parametrize(
    ("choice", "read"),
    [
        (None, ToolChoice()),
        ("none", ToolChoice()),
        ("auto", ToolChoice()),
        ("required", ToolChoice(must=True)),
        (named("f")[0], ToolChoice(must=True, names=("f",), is_single=True)),
        (
            {"type": "custom", "custom": {"name": "f"}},
            ToolChoice(must=True, names=("f",), is_single=True),
        ),
        (allowed("auto", "f", "g"), ToolChoice(names=("f", "g"))),
        (allowed("required", "g"), ToolChoice(must=True, names=("g",))),
    ],
)
def test_a_choice_says_whether_and_which(choice: Any, read: ToolChoice) -> None:
    assert read_choice(choice) == read


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        ("any", "name a tool"),
        ({"type": "function"}, "a function has a name"),
        ({"type": "custom", "function": {"name": "f"}}, "a custom has a name"),
        (allowed("auto"), "has no tools"),
        (allowed("never", "f"), "'never'"),
        ({"type": "allowed_tools", "tools": []}, "allowed_tools"),
        ({"type": "mcp"}, "'mcp'"),
    ],
)
def test_what_is_no_choice_is_refused(choice: Any, text: str) -> None:
    with pytest.raises(BadRequest, match=text) as refused:
        read_choice(choice)

    assert refused.value.param == "tool_choice"


def test_of_the_tools_those_that_are_named_are_left_in_their_order() -> None:
    assert ToolChoice(names=("h", "f")).among({"f": 1, "g": 2, "h": 3}) == {"f": 1, "h": 3}
    with pytest.raises(BadRequest, match="no tool that is there: 'x'"):
        ToolChoice(names=("x",)).among({"f": 1})


@pytest.mark.parametrize("mode", ["auto", "required"])
@served(v4=True)
async def test_only_allowed_tools_can_be_called_and_the_prompt_shows_all(
    server: Server, mode: str
) -> None:
    messages = [{"role": "user", "content": "hi"}]
    asked: Json = {"messages": messages, "tools": TOOLS}
    for choice in ("auto", allowed(mode, "f", "h")):
        reply = await server.post("/v1/chat/completions", {**asked, "tool_choice": choice})
        assert reply.status_code == 200, reply.text

    free, held = server.engine.requests[-2:]
    assert held.input_ids == free.input_ids
    assert free.sampling.grammar is None
    assert held.sampling.grammar is not None
    text = held.sampling.grammar.text
    assert [f'invoke name=\\"{name}\\"' in text for name in "fgh"] == [True, False, True]
    assert held.sampling.grammar.may_end == (mode == "auto")
