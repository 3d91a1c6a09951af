"""What bodies ask the output to be, as the scheduler gets it; and what is refused at once."""

import json
from functools import reduce
from importlib.machinery import ModuleSpec
from typing import Any

import msgspec
import pytest

from runtime.chat.call_grammar import call_grammar
from runtime.chat.marks import DSML, THINK_END, marks_by_id
from runtime.errors import BadRequest, GrammarError
from runtime.messages import Grammar
from runtime.sampling import MAX_GRAMMAR_CHARS
from runtime.server.grammars import asked_grammar, forced_call, strict_calls
from tests.runtime.chat.conversations import encoder
from tests.runtime.server.engine import Server, served

CHAT, COMPLETIONS, GENERATE = "/v1/chat/completions", "/v1/completions", "/generate"
HI: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"é": {"type": "null"}}}
TEXT = '{"type":"object","properties":{"é":{"type":"null"}}}'
FORMAT: dict[str, Any] = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
TAG: dict[str, Any] = {"type": "structural_tag", "format": {"type": "any_text"}}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
OTHER: dict[str, Any] = {"type": "function", "function": {"name": "g"}}
DEEP: dict[str, Any] = reduce(lambda inner, _: {"not": inner}, range(5000), dict[str, Any]())

ASKED: dict[str, tuple[dict[str, Any], Grammar]] = {
    "schema": ({"json_schema": SCHEMA}, Grammar("json_schema", TEXT)),
    "schema as text": ({"json_schema": TEXT}, Grammar("json_schema", TEXT)),
    "regex": ({"regex": "a+"}, Grammar("regex", "a+")),
    "ebnf": ({"ebnf": 'root ::= "a"'}, Grammar("ebnf", 'root ::= "a"')),
    "tag": (
        {"structural_tag": TAG},
        Grammar("structural_tag", json.dumps(TAG, separators=(",", ":"))),
    ),
    "json_object": ({"response_format": {"type": "json_object"}}, Grammar("json_object")),
    "json_schema": ({"response_format": FORMAT}, Grammar("json_schema", TEXT)),
    "json_schema as text-generation servers have it": (
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        Grammar("json_schema", TEXT),
    ),
    "json_schema without a wrapper": (
        {"response_format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
        Grammar("json_schema", TEXT),
    ),
    "any schema of an object": (
        {"response_format": {"type": "json_object", "schema": {}}},
        Grammar("json_object"),
    ),
    "any schema": (
        {"response_format": {"type": "json_schema", "schema": {}}},
        Grammar("json_schema", "{}"),
    ),
    "no schema": (
        {"response_format": {"type": "json_object", "schema": None}},
        Grammar("json_object"),
    ),
    "structural_tag": (
        {"response_format": TAG},
        Grammar("structural_tag", json.dumps(TAG, separators=(",", ":"))),
    ),
}


@pytest.mark.parametrize("name", ASKED)
def test_each_way_to_ask_is_one_grammar(name: str) -> None:
    fields, grammar = ASKED[name]

    assert asked_grammar(**fields) == msgspec.structs.replace(grammar, field=next(iter(fields)))


@pytest.mark.parametrize(
    "form",
    [
        {"type": "text", "schema": SCHEMA},
        {"type": "text", "json_schema": {"schema": SCHEMA}},
        {"schema": SCHEMA},
        {"type": "json_object", "json_schema": {"schema": SCHEMA}},
        {"type": "json_object", "value": SCHEMA},
        {"type": "json_object", "schema": SCHEMA, "json_schema": {"schema": SCHEMA}},
        {"type": "json_schema", "schema": SCHEMA, "json_schema": {"schema": SCHEMA}},
        {"type": "json_schema", "value": SCHEMA},
        {"type": "json_schema", "schema": "{}"},
        {"type": "json_object", "schema": [SCHEMA]},
        {"type": "regex", "value": "a+"},
        {"type": "grammar", "grammar": 'root ::= "a"'},
        {"type": "json"},
    ],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@served(v4=True)
async def test_a_format_that_says_more_than_is_followed_is_refused(
    server: Server, path: str, form: dict[str, Any]
) -> None:
    reply = await server.post(path, {**HI, "prompt": "x", "response_format": form})

    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["param"], "response_format" in error["message"]) == ("response_format", True)
    assert not server.engine.requests


@pytest.mark.parametrize("stream", [False, True])
@served(v4=True)
async def test_a_schema_beside_the_type_is_shown_to_the_model_as_openais_is(
    server: Server, stream: bool
) -> None:
    for form in (FORMAT, {"type": "json_object", "schema": SCHEMA}):
        body = {**HI, "max_tokens": 3, "response_format": form, "stream": stream}
        assert (await server.post(CHAT, body)).status_code == 200

    first, second = server.engine.requests
    assert first.input_ids == second.input_ids
    assert first.sampling.grammar == second.sampling.grammar


def test_text_and_nothing_ask_for_no_grammar() -> None:
    assert asked_grammar() is None
    assert asked_grammar(response_format={"type": "text"}) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"regex": "a", "ebnf": "b"},
        {"json_schema": "{}", "response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema"}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": 3}}},
        {"response_format": {"type": 7}},
    ],
)
def test_what_is_no_one_grammar_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        asked_grammar(**fields)


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("json_schema", {"json_schema": DEEP}),
        ("structural_tag", {"structural_tag": DEEP}),
        ("response_format", {"response_format": {**TAG, "x": DEEP}}),
        (
            "response_format",
            {"response_format": {"type": "json_schema", "json_schema": {"schema": DEEP}}},
        ),
    ],
)
def test_what_is_nested_too_deeply_is_refused(param: str, fields: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="nested too deeply") as refused:
        asked_grammar(**fields)
    assert refused.value.param == param


def test_a_tool_nested_too_deeply_cannot_be_forced() -> None:
    with pytest.raises(BadRequest, match="nested too deeply") as refused:
        forced_call({"f": {"properties": {"a": DEEP}}}, dsml_id=7, parallel=True)
    assert refused.value.param == "tools"


def test_without_xgrammar_the_refusal_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def find(name: str) -> ModuleSpec | None:
        return None

    monkeypatch.setattr("runtime.server.grammars.find_spec", find)

    with pytest.raises(GrammarError, match=r"pip install -e .\.\[grammar\]") as refused:
        asked_grammar(response_format={"type": "json_object"})
    assert (refused.value.status, refused.value.param) == (400, "response_format")
    assert asked_grammar(response_format={"type": "text"}) is None
    with pytest.raises(GrammarError, match="xgrammar"):
        forced_call({"f": {}}, dsml_id=7, parallel=True)
    with pytest.raises(GrammarError, match="a tool that is strict needs xgrammar"):
        strict_calls({"f": {}}, dsml_id=7, parallel=True)


def test_tools_that_cannot_be_forced_are_refused() -> None:
    with pytest.raises(GrammarError, match="'f'"):
        forced_call({"f": {"properties": []}}, dsml_id=7, parallel=True)
    long = {"properties": {"a": {"enum": ["x" * MAX_GRAMMAR_CHARS]}}}
    with pytest.raises(GrammarError, match="too long"):
        forced_call({"f": long}, dsml_id=7, parallel=True)


@served()
async def test_the_grammar_reaches_the_scheduler_from_every_endpoint(server: Server) -> None:
    bodies: list[tuple[str, dict[str, Any]]] = [
        (GENERATE, {"text": "x", "sampling_params": {"json_schema": SCHEMA, "n": 2}}),
        (COMPLETIONS, {"prompt": "x", "response_format": FORMAT}),
        (CHAT, {**HI, "response_format": FORMAT}),
        (CHAT, {**HI, "json_schema": SCHEMA, "stream": True}),
    ]
    for path, body in bodies:
        assert (await server.post(path, body)).status_code == 200

    grammars = [request.sampling.grammar for request in server.engine.requests]
    own = Grammar("json_schema", TEXT, field="json_schema")
    theirs = Grammar("json_schema", TEXT, field="response_format")
    assert grammars == [own, own, theirs, theirs, own]


@pytest.mark.parametrize("path", [GENERATE, COMPLETIONS])
@served()
async def test_a_grammar_of_ten_megabytes_is_refused_at_once(server: Server, path: str) -> None:
    big = "a" * 10_000_000
    native: dict[str, Any] = {"text": "x", "sampling_params": {"regex": big}}

    reply = await server.post(path, native if path == GENERATE else {"prompt": "x", "regex": big})

    assert reply.status_code == 400
    assert str(MAX_GRAMMAR_CHARS) in reply.json()["error"]["message"]
    assert len(reply.content) < 1000
    assert not server.engine.requests


@served()
async def test_a_grammar_that_does_not_compile_is_a_400(server: Server) -> None:
    server.engine.refuse = "grammar"

    reply = await server.post(COMPLETIONS, {"prompt": "x", "regex": "((", "n": 3})

    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["code"], error["param"]) == ("invalid_grammar", "regex")


@served(v4=True)
async def test_with_reasoning_the_grammar_begins_after_it(server: Server) -> None:
    think_end = next(i for i, m in marks_by_id(server.engine.tokenizer).items() if m == THINK_END)
    for effort in ("low", "none"):
        body = {**HI, "response_format": {"type": "json_object"}, "reasoning_effort": effort}
        assert (await server.post(CHAT, body)).status_code == 200

    first, second = (request.sampling.grammar for request in server.engine.requests)
    dsml = next(i for i, m in marks_by_id(server.engine.tokenizer).items() if m == DSML)
    assert first == Grammar("json_object", after=think_end, barred=dsml, field="response_format")
    assert second == Grammar("json_object", field="response_format")


@pytest.mark.parametrize(
    "asked", [{"tool_choice": "required"}, {"response_format": {"type": "json_object"}}]
)
@served(v4=True)
async def test_no_call_is_begun_amid_the_reasoning_before_a_grammar(
    server: Server, asked: dict[str, Any]
) -> None:
    body = {**HI, "tools": [TOOL], "reasoning_effort": "low", **asked}
    assert (await server.post(CHAT, body)).status_code == 200

    [request] = server.engine.requests
    dsml = next(i for i, m in marks_by_id(server.engine.tokenizer).items() if m == DSML)
    assert request.sampling.grammar is not None
    assert request.sampling.grammar.barred == dsml


@pytest.mark.parametrize(
    ("choice", "parallel", "names"),
    [
        ("required", True, ["f", "g"]),
        ("required", False, ["f", "g"]),
        ({"type": "function", "function": {"name": "g"}}, True, ["g"]),
    ],
)
@served(v4=True)
async def test_a_forced_call_is_a_grammar_over_the_prompt_of_a_free_one(
    server: Server, choice: Any, parallel: bool, names: list[str]
) -> None:
    body = {**HI, "tools": [TOOL, OTHER], "reasoning_effort": "none"}
    asked = {**body, "tool_choice": choice, "parallel_tool_calls": parallel}
    assert (await server.post(CHAT, asked)).status_code == 200
    assert (await server.post(CHAT, {**body, "tool_choice": "auto"})).status_code == 200

    forced, free = server.engine.requests
    dsml = next(i for i, m in marks_by_id(server.engine.tokenizer).items() if m == DSML)
    schemas: dict[str, Any] = {"f": SCHEMA, "g": {}}
    tools = {name: schemas[name] for name in names}
    several = parallel and choice == "required"
    assert forced.sampling.grammar == forced_call(tools, dsml_id=dsml, parallel=several)
    assert free.sampling.grammar is None
    assert forced.input_ids == free.input_ids
    assert encoder().marks[dsml] == DSML


@pytest.mark.parametrize("kind", ["json_object", "json_schema", "regex"])
@served(v4=True)
async def test_beside_tools_a_grammar_leaves_room_for_calls(server: Server, kind: str) -> None:
    grammars: dict[str, dict[str, Any]] = {
        "json_object": {"response_format": {"type": "json_object"}},
        "json_schema": {"response_format": FORMAT},
        "regex": {"regex": "a"},
    }
    body = {**HI, **grammars[kind], "tools": [TOOL, OTHER]}
    for more in ({}, {"reasoning_effort": "none"}, {"tool_choice": "none"}):
        assert (await server.post(CHAT, {**body, **more})).status_code == 200

    found = [request.sampling.grammar for request in server.engine.requests]
    ids = {mark: token_id for token_id, mark in marks_by_id(server.engine.tokenizer).items()}
    calls = call_grammar({"f": None, "g": None}, dsml_id=ids[DSML])
    assert [(g.calls, g.after) for g in found if g is not None] == [
        (calls, ids[THINK_END]),
        (calls, None),
        ("", ids[THINK_END]),
    ]


@pytest.mark.parametrize("parallel", [True, False])
@served(v4=True)
async def test_calls_of_strict_tools_are_held_whatever_else_the_answer_is(
    server: Server, parallel: bool
) -> None:
    strict = {**TOOL, "function": {**TOOL["function"], "strict": True}}
    body = {**HI, "tools": [strict, OTHER], "parallel_tool_calls": parallel}
    json_object = {"response_format": {"type": "json_object"}}
    for more in ({}, {"tool_choice": "auto"}, json_object, {"tool_choice": "none"}):
        assert (await server.post(CHAT, {**body, **more})).status_code == 200
    lenient = {**TOOL, "function": {**TOOL["function"], "strict": False}}
    assert (await server.post(CHAT, {**body, "tools": [lenient, OTHER]})).status_code == 200

    ids = {mark: token_id for token_id, mark in marks_by_id(server.engine.tokenizer).items()}
    most = None if parallel else 1
    begun, whole = (
        call_grammar({"f": SCHEMA, "g": None}, dsml_id=ids[DSML], most=most, begun=begun)
        for begun in (True, False)
    )
    unsaid, auto, other, none, free = [r.sampling.grammar for r in server.engine.requests]
    assert unsaid == auto
    assert auto == Grammar("structural_tag", begun, after=ids[DSML], may_end=True, field="tools")
    assert other is not None
    assert (other.kind, other.calls) == ("json_object", whole)
    assert none is None
    assert free is None


@served(v4=True)
async def test_a_strict_tool_that_no_call_can_be_held_to_is_refused(server: Server) -> None:
    function = {"name": "odd", "parameters": {"type": "object", "minProperties": 1}}
    for strict, status in ((True, 400), (None, 200)):
        tool = {"type": "function", "function": {**function, "strict": strict}}
        reply = await server.post(CHAT, {**HI, "tools": [tool]})
        assert reply.status_code == status
        if strict:
            assert reply.json()["error"]["param"] == "tools"
            assert "'odd'" in reply.json()["error"]["message"]
