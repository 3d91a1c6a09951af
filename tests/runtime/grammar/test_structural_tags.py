"""Schemas and patterns inside a structural tag are rules of ours, or refused with their place."""

import json
import re
from typing import Any

import pytest
import xgrammar

from runtime.errors import GrammarError
from runtime.grammar.structural_tags import prepare_tag
from tests.runtime.grammar.matching import compiled_tag, takes


def tag(*parts: dict[str, Any]) -> dict[str, Any]:
    elements = [{"type": "const_string", "value": "<"}, *parts]
    return {"type": "structural_tag", "format": {"type": "sequence", "elements": elements}}


def compile_tag(*parts: dict[str, Any]) -> xgrammar.CompiledGrammar:
    whole = tag(*parts)
    prepare_tag(whole)
    return compiled_tag(json.dumps(whole))


def schema(rules: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": rules, **more}


def test_bounds_hold_inside_a_tag() -> None:
    grammar = compile_tag(schema({"type": "string", "maxLength": 129}))

    assert takes(grammar, f'<"{"a" * 129}"')
    assert not takes(grammar, f'<"{"a" * 130}"')
    assert not takes(grammar, '<"a"b"')


def test_counts_of_a_pattern_hold_inside_a_tag() -> None:
    grammar = compile_tag({"type": "regex", "pattern": r"[\s\S]{3,500}"})

    assert [n for n in (2, 3, 500, 501) if takes(grammar, "<" + '"' * n)] == [3, 500]


def test_texts_to_choose_from_share_their_beginnings() -> None:
    texts = [f"the option number {k} of all" for k in range(2000)]
    either = {"type": "or", "elements": [{"type": "const_string", "value": t} for t in texts]}
    whole = tag(either)
    prepare_tag(whole)

    assert len(json.dumps(whole)) < 1500
    assert takes(compile_tag(either), f"<{texts[77]}")
    assert not takes(compile_tag(either), f"<{texts[77]}.")


def test_other_parts_are_left_as_they_are() -> None:
    parts: list[dict[str, Any]] = [
        {"type": "or", "elements": [{"type": "const_string", "value": "a"}, {"type": "any_text"}]},
        {"type": "grammar", "grammar": 'root ::= "a"'},
    ]
    whole = tag(*parts)

    prepare_tag(whole)

    assert whole == tag(*parts)


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        (schema({"not": {}}), "#: the schema keyword 'not'"),
        (
            schema({"not": {}}, place="the parameter 'a'"),
            "the parameter 'a': #: the schema keyword",
        ),
        ({"type": "regex", "pattern": "(?=a)", "place": "here"}, "here: the pattern has '(?='"),
        ({"type": "regex", "pattern": "[[:alpha:]]"}, "POSIX"),
        (schema([]), "an object or a boolean"),
        (
            schema({"properties": {"a": {"maxLength": 3}}}, style="qwen_xml"),
            "#/properties/a: the schema keyword 'maxLength' cannot be enforced with style",
        ),
        (
            {"type": "qwen_xml_parameter", "json_schema": {"minProperties": 1}},
            "'minProperties' cannot",
        ),
        (
            schema({"minItems": 1}, any_order=True),
            "'minItems' cannot be enforced with these options",
        ),
    ],
)
def test_what_cannot_be_enforced_is_refused(part: dict[str, Any], reason: str) -> None:
    with pytest.raises(GrammarError, match=re.escape(reason)):
        prepare_tag(tag(part))


def test_other_styles_are_the_compilers_where_it_holds_them() -> None:
    rules = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    whole = tag({"type": "qwen_xml_parameter", "json_schema": rules})

    prepare_tag(whole)

    assert whole["format"]["elements"][1]["type"] == "qwen_xml_parameter"
    assert takes(compiled_tag(json.dumps(whole)), "<<parameter=a>3</parameter>")
