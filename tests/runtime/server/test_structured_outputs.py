"""Tests of runtime.server.structured_outputs: vLLM's way to ask for a grammar."""

import json
from typing import Any

import pytest

from runtime.errors import BadRequest
from runtime.server.structured_outputs import StructuredOutputs
from tests.runtime.server.engine import Server, served

SCHEMA = {"type": "object"}


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        ({"json": SCHEMA}, "json_schema", '{"type":"object"}'),
        ({"json": json.dumps(SCHEMA)}, "json_schema", json.dumps(SCHEMA)),
        ({"regex": "a+"}, "regex", "a+"),
        ({"choice": ["yes", 'say "é"']}, "ebnf", r'root ::= "yes" | "say \"é\""'),
        ({"grammar": 'root ::= "a"'}, "ebnf", 'root ::= "a"'),
        ({"json_object": True, "regex": None}, "json_object", ""),
        ({"structural_tag": "{}"}, "structural_tag", "{}"),
    ],
)
def test_each_field_is_a_grammar(given: Any, kind: str, text: str) -> None:
    grammar = StructuredOutputs(**given).as_grammar()

    assert grammar is not None
    assert (grammar.kind, grammar.text) == (kind, text)


def test_none_is_no_grammar_and_several_are_refused() -> None:
    assert StructuredOutputs(json_object=False).as_grammar() is None
    for given in (StructuredOutputs(regex="a", choice=["a"]), StructuredOutputs(choice=[])):
        with pytest.raises(BadRequest, match="structured_outputs"):
            given.as_grammar()


@served(v4=True)
async def test_chats_and_completions_take_it_beside_no_other_grammar(server: Server) -> None:
    asked = {"structured_outputs": {"choice": ["a"]}}
    chat = {"messages": [{"role": "user", "content": "hi"}], **asked}
    for path, body in (
        ("/v1/chat/completions", chat),
        ("/v1/completions", {"prompt": "a", **asked}),
    ):
        assert (await server.post(path, body)).status_code == 200
        grammar = server.engine.requests[-1].sampling.grammar
        assert grammar is not None
        assert (grammar.text, grammar.field) == ('root ::= "a"', "structured_outputs")

    for more in ({"regex": "a"}, {"structured_outputs": {"choices": ["a"]}}):
        refused = await server.post("/v1/chat/completions", {**chat, **more})
        assert refused.status_code == 400
        assert "structured_outputs" in refused.json()["error"]["message"]
