"""Forced calls: what the structural tag lets a model write is what the parser reads as calls."""

import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest
from xgrammar import CompiledGrammar, GrammarCompiler, GrammarMatcher, TokenizerInfo, VocabType

from runtime.chat.answer_parser import AnswerParser
from runtime.chat.call_grammar import call_grammar, most_forced_calls
from runtime.chat.call_writer import CallPiece
from runtime.chat.marks import DSML, marks_by_id
from runtime.errors import GrammarError
from runtime.grammar.structural_tags import prepare_tag
from runtime.grammar.vocabulary import token_bytes
from runtime.tokenizer.detokenizer import Detokenizer
from tests.testing.stand_in.tokenizer import EOS_ID, VOCAB_SIZE, train_tokenizer

TOKENIZER = train_tokenizer()
MARKS = marks_by_id(TOKENIZER)
[DSML_ID] = [token_id for token_id, mark in MARKS.items() if mark == DSML]
TOOLS: dict[str, Any] = {
    "weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "where", "minLength": 1, "maxLength": 9},
            "unit": {"type": "string", "enum": ["°C", "°F"]},
            "code": {"type": "string", "pattern": "[A-Z]{2}[0-9]{3}"},
            "days": {"type": "integer", "minimum": 1, "maximum": 14},
            "area": {"$ref": "#/$defs/area"},
            "exact": {"type": ["boolean", "null"]},
        },
        "required": ["city", "days", "exact"],
        "$defs": {
            "area": {
                "type": "object",
                "properties": {"km": {"type": "number", "minimum": 0, "maximum": 9}},
                "required": ["km"],
            }
        },
    },
    "noop": {},
}


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    info = TokenizerInfo(
        token_bytes(TOKENIZER, VOCAB_SIZE),
        VocabType.RAW,
        vocab_size=VOCAB_SIZE,
        stop_token_ids=[EOS_ID],
    )
    return GrammarCompiler(info, max_threads=1)


def compiled_tag(compiler: GrammarCompiler, tag: str) -> CompiledGrammar:
    """Return a tag compiled as a grammar's process compiles it."""
    decoded = json.loads(tag)
    prepare_tag(decoded)
    return compiler.compile_structural_tag(json.dumps(decoded))


def written(compiled: CompiledGrammar, seed: int) -> list[int]:
    """Return a random output, ended as soon as it may."""
    matcher, pick = GrammarMatcher(compiled), random.Random(seed)
    bits = np.zeros((1, VOCAB_SIZE // 32), dtype=np.int32)
    output: list[int] = []
    while len(output) < 3000:
        matcher.fill_next_token_bitmask(bits)
        flat = np.unpackbits(bits.view(np.uint8), bitorder="little")
        allowed = [int(i) for i in np.flatnonzero(flat)]
        if EOS_ID in allowed:
            return output
        token = pick.choice(allowed)
        output.append(token)
        assert matcher.accept_token(token)
    raise AssertionError("no end in sight")


def calls(tokens: list[int]) -> list[CallPiece]:
    """Return what the parser makes of an answer, which must be calls alone."""
    detokenizer = Detokenizer(TOKENIZER, frozenset(), MARKS)
    parser = AnswerParser(reasoning=False, tools=TOOLS)
    parts = parser.push(detokenizer.push(tokens) + detokenizer.finish()) + parser.finish()
    found = [part for part in parts if isinstance(part, CallPiece)]
    assert len(found) == len(parts), parts
    return found


def test_every_output_is_valid_calls(compiler: GrammarCompiler) -> None:
    tag = call_grammar(TOOLS, dsml_id=DSML_ID)
    compiled = compiled_tag(compiler, tag)

    names: set[str] = set()
    counts: set[int] = set()
    for seed in range(40):
        found = calls(written(compiled, seed))
        counts.add(len(found))
        for call in found:
            assert call.name is not None
            names.add(call.name)
            jsonschema.validate(json.loads(call.arguments), TOOLS[call.name] or {"type": "object"})

    assert names == set(TOOLS)
    assert 0 not in counts


def test_without_parallel_calls_there_is_one(compiler: GrammarCompiler) -> None:
    tag = call_grammar(TOOLS, dsml_id=DSML_ID, most=1)
    compiled = compiled_tag(compiler, tag)

    assert {len(calls(written(compiled, seed))) for seed in range(15)} == {1}


def feed(matcher: GrammarMatcher, text: str) -> bool:
    """Whether the matcher takes a text in which `|` is the mark."""
    first, *others = text.split("|")
    return all(
        [
            not first or matcher.accept_string(first),
            *(
                matcher.accept_token(DSML_ID) and (not part or matcher.accept_string(part))
                for part in others
            ),
        ]
    )


FREE: dict[str, Any] = {"noop": None, "weather": None}
ODD = '<|parameter name="a" string="false">{no JSON</|parameter>\n'


def test_free_calls_are_of_tools_that_are_there(compiler: GrammarCompiler) -> None:
    tag = call_grammar(FREE, dsml_id=DSML_ID)
    matcher = GrammarMatcher(compiled_tag(compiler, tag))

    assert feed(matcher, "\n\n<|tool_calls>\n<|")
    assert not matcher.accept_string('invoke name="other">')
    assert feed(matcher, f'invoke name="weather">\n{ODD}{ODD}')
    assert not matcher.accept_token(EOS_ID)
    assert feed(matcher, '</|invoke>\n<|invoke name="noop">\n</|invoke>\n</|tool_calls>')
    assert matcher.accept_token(EOS_ID)


def test_a_call_after_a_free_one_is_held_to_its_schema(compiler: GrammarCompiler) -> None:
    tools = {"weather": TOOLS["weather"], "noop": None}
    compiled = compiled_tag(compiler, call_grammar(tools, dsml_id=DSML_ID))
    free = f'\n\n<|tool_calls>\n<|invoke name="noop">\n{ODD}</|invoke>\n<|invoke name="'

    assert feed(GrammarMatcher(compiled), free + 'noop">\n' + ODD)
    assert not feed(GrammarMatcher(compiled), free + 'weather">\n' + ODD)
    city = '<|parameter name="city" string="true">Oslo</|parameter>\n<|parameter name="'
    assert feed(GrammarMatcher(compiled), f'{free}weather">\n{city}days" string="false">3</|')
    assert not feed(GrammarMatcher(compiled), f'{free}weather">\n{city}days" string="false">0')


def test_a_block_may_have_begun(compiler: GrammarCompiler) -> None:
    tag = call_grammar(TOOLS, dsml_id=DSML_ID, most=1, begun=True)
    matcher = GrammarMatcher(compiled_tag(compiler, tag))

    assert feed(matcher, 'tool_calls>\n<|invoke name="noop">\n</|invoke>\n</|tool_calls>')
    assert matcher.accept_token(EOS_ID)


def test_the_mark_cannot_be_spelt(compiler: GrammarCompiler) -> None:
    compiled = compiled_tag(compiler, call_grammar(TOOLS, dsml_id=DSML_ID, most=1))
    matcher = GrammarMatcher(compiled)

    assert matcher.accept_string("\n\n<")
    assert not matcher.accept_string("｜")
    assert matcher.accept_token(DSML_ID)


def test_a_string_may_hold_closing_tags_of_its_own(compiler: GrammarCompiler) -> None:
    tools = {"write": {"properties": {"html": {"type": "string"}}, "required": ["html"]}}
    matcher = GrammarMatcher(compiled_tag(compiler, call_grammar(tools, dsml_id=DSML_ID, most=1)))

    for text in (
        "\n\n<", None, "tool_calls>\n<", None, 'invoke name="write">\n<', None,
        'parameter name="html" string="true"><p>"x" </b> </p></', None, "parameter>\n</", None,
        "invoke>\n</", None, "tool_calls>",
    ):  # fmt: skip
        done = matcher.accept_token(DSML_ID) if text is None else matcher.accept_string(text)
        assert done, text
    assert matcher.accept_token(EOS_ID)


TREE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "children": {"type": "array", "items": {"$ref": "#"}},
        "last": {"$ref": "#/$defs/node"},
    },
    "required": ["children"],
    "additionalProperties": False,
    "$defs": {"node": {"type": ["integer", "null"]}},
}
LIST: dict[str, Any] = {
    "properties": {"children": {"items": {"$ref": "#/properties/n"}}, "n": {"type": "integer"}},
    "required": ["children"],
}


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        (TREE, '[{"children": []}]', "[[], [[]]]"),
        (TREE, '[{"children": [], "last": null}]', '[{"children": [], "last": "a"}]'),
        (LIST, "[1, 2]", '["a"]'),
        ({"$ref": "#/$defs/tree", "$defs": {"tree": TREE, **TREE["$defs"]}}, "[]", "[1]"),
    ],
)
def test_references_lead_from_the_root_of_all_arguments(
    compiler: GrammarCompiler, schema: dict[str, Any], right: str, wrong: str
) -> None:
    tag = call_grammar({"f": schema}, dsml_id=DSML_ID, most=1)
    compiled = compiled_tag(compiler, tag)

    def takes(value: str) -> bool:
        matcher = GrammarMatcher(compiled)
        for text in (
            "\n\n<", None, "tool_calls>\n<", None, 'invoke name="f">\n<', None,
            f'parameter name="children" string="false">{value}</', None, "parameter>\n",
        ):  # fmt: skip
            if not (matcher.accept_token(DSML_ID) if text is None else matcher.accept_string(text)):
                return False
        return True

    assert takes(right)
    assert not takes(wrong)


def test_definitions_stand_only_where_they_are_referred_to() -> None:
    shared = {f"d{i}": {"type": "array", "items": {"type": "integer"}} for i in range(300)}
    plain = {f"n{i}": {"type": "integer"} for i in range(300)}
    schema = {"type": "object", "properties": plain, "$defs": shared}

    text = call_grammar({"many": schema}, dsml_id=DSML_ID)

    assert "$defs" not in text
    schema["properties"] = {name: {"$ref": "#/$defs/d0"} for name in plain}
    with pytest.raises(GrammarError, match="too long to hold a call to"):
        call_grammar({"many": schema}, dsml_id=DSML_ID)


def test_a_parameter_whose_name_would_end_early_is_refused() -> None:
    tools = {"say": {"properties": {'tone" string="true">': {"type": "string"}}}}

    with pytest.raises(GrammarError, match=r"'say'.* ends a name") as refusal:
        call_grammar(tools, dsml_id=DSML_ID, most=1)
    assert refusal.value.param == "tools"


@pytest.mark.parametrize(
    "more",
    [
        {"enum": ["kind", None]},
        {"enum": ["kind", "stern"], "maxLength": 4},
        {"enum": ["kind", "stern"], "pattern": "^k"},
        {"enum": ["kind", "stern"], "const": "kind"},
        {"minLength": 2.0},
        {"maxLength": True},
        {"minLength": -1},
        {"minLength": 3, "maxLength": 2},
    ],
)
def test_a_string_of_which_more_is_said_is_held_as_json(more: dict[str, Any]) -> None:
    schema = {"type": "string", **more}
    tools = {"say": {"type": "object", "properties": {"tone": schema}, "required": ["tone"]}}

    tag = call_grammar(tools, dsml_id=DSML_ID, most=1)

    held = {"type": "json_schema", "json_schema": schema}
    held["place"] = "the parameter 'tone' of tool 'say'"
    assert json.dumps(held) in json.dumps(json.loads(tag))


def test_an_empty_pattern_holds_a_string_to_nothing() -> None:
    def tag(schema: dict[str, Any]) -> str:
        return call_grammar({"say": {"properties": {"it": schema}}}, dsml_id=DSML_ID)

    assert tag({"type": "string", "pattern": ""}) == tag({"type": "string"})


@pytest.mark.parametrize("bound", [128, 129, 1000])
def test_a_plain_string_holds_its_bounds(compiler: GrammarCompiler, bound: int) -> None:
    rules = {"type": "string", "maxLength": bound}
    tools = {"say": {"properties": {"it": rules}, "required": ["it"]}}
    compiled = compiled_tag(compiler, call_grammar(tools, dsml_id=DSML_ID, most=1))
    head = '\n\n<|tool_calls>\n<|invoke name="say">\n<|parameter name="it" string="true">'

    assert feed(GrammarMatcher(compiled), head + '"\n' * (bound // 2) + "</|")
    assert not feed(GrammarMatcher(compiled), head + "a" * (bound + 1) + "</|")


@pytest.mark.parametrize(
    ("tools", "most"),
    [
        ({"f": {}}, 1),
        ({"f": {}, "g": {"type": "object", "properties": {}}}, 2),
        ({"f": {}, "g": {"properties": {"a": True}}}, 16),
        ({"f": {"required": ["a"]}}, 16),
        ({f"f{k}": {} for k in range(40)}, 16),
        ({"f": {"anyOf": []}}, 16),
    ],
)
def test_forced_calls_are_bounded_and_do_not_only_repeat_each_other(
    tools: dict[str, Any], most: int
) -> None:
    assert most_forced_calls(tools) == most


def test_an_answer_may_have_several_calls_up_to_a_number(compiler: GrammarCompiler) -> None:
    tag = call_grammar({"noop": {}}, dsml_id=DSML_ID, most=3)
    compiled = compiled_tag(compiler, tag)
    call = '<|invoke name="noop">\n</|invoke>\n'

    def ends(count: int) -> bool:
        matcher = GrammarMatcher(compiled)
        text = f"\n\n<|tool_calls>\n{call * count}</|tool_calls>"
        return feed(matcher, text) and matcher.accept_token(EOS_ID)

    assert [count for count in range(6) if ends(count)] == [1, 2, 3]


def test_what_is_wrong_with_a_parameter_is_said_with_its_name() -> None:
    schema = {"type": "array", "items": {"not": {}}}
    tag = json.loads(call_grammar({"f": {"properties": {"a": schema}}}, dsml_id=DSML_ID))

    with pytest.raises(GrammarError, match=r"^the parameter 'a' of tool 'f': #/items: .*'not'"):
        prepare_tag(tag)
