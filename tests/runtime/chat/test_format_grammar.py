"""Forced calls of every family: what a grammar lets a model write is what the parser reads."""

import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest
from xgrammar import CompiledGrammar, GrammarCompiler, GrammarMatcher, TokenizerInfo, VocabType

from runtime.chat.call_writer import CallPiece
from runtime.chat.format_grammar import format_calls, opening_id
from runtime.errors import GrammarError
from runtime.grammar.structural_tags import prepare_tag
from runtime.grammar.vocabulary import token_bytes
from tests.runtime.chat.families import (
    FAMILIES,
    end_id,
    family_format,
    family_tokenizer,
    marked,
    parsed,
    text_of,
)

VOCAB_SIZE = 320
TOOLS: dict[str, Any] = {
    "weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 5},
            "days": {"type": "integer", "minimum": 1, "maximum": 14},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
    },
    "noop": {"type": "object", "properties": {}, "additionalProperties": False},
}


def compiled(name: str, **options: Any) -> CompiledGrammar:
    """Return a family's calls, compiled as a grammar's process compiles them."""
    info = TokenizerInfo(
        token_bytes(family_tokenizer(name), VOCAB_SIZE),
        VocabType.RAW,
        vocab_size=VOCAB_SIZE,
        stop_token_ids=[end_id(name)],
    )
    tag = json.loads(format_calls(family_format(name), TOOLS, **options))
    prepare_tag(tag)
    compiler = GrammarCompiler(info, max_threads=1, cache_enabled=False)
    return compiler.compile_structural_tag(json.dumps(tag))


def written(name: str, grammar: CompiledGrammar, seed: int) -> list[int]:
    """Return a random output, ended as soon as it may."""
    matcher, pick = GrammarMatcher(grammar), random.Random(seed)
    bits = np.zeros((1, VOCAB_SIZE // 32), dtype=np.int32)
    output: list[int] = []
    while len(output) < 2000:
        matcher.fill_next_token_bitmask(bits)
        flat = np.unpackbits(bits.view(np.uint8), bitorder="little")
        allowed = [int(i) for i in np.flatnonzero(flat)]
        if end_id(name) in allowed and pick.random() < 0.5:
            return output
        token = pick.choice([i for i in allowed if i != end_id(name)] or allowed)
        if token == end_id(name):
            return output
        output.append(token)
        assert matcher.accept_token(token)
    raise AssertionError("an output without an end")


@pytest.mark.parametrize("name", FAMILIES)
def test_every_forced_output_is_calls_that_fit_their_schemas(name: str) -> None:
    grammar = compiled(name, most=3)
    counts: set[int] = set()
    for seed in range(6):
        text = text_of(name, written(name, grammar, seed))

        parts = parsed(name, [text], tools=TOOLS)

        assert parts, text
        for part in parts:
            assert isinstance(part, CallPiece), (text, part)
            assert part.ended
            jsonschema.validate(json.loads(part.arguments), TOOLS[str(part.name)])
        counts.add(len(parts))
    assert counts <= {1, 2, 3}
    assert (max(counts) == 1) == (name == "gpt_oss")


@pytest.mark.parametrize("name", FAMILIES)
def test_without_parallel_calls_there_is_one(name: str) -> None:
    grammar = compiled(name, most=1)

    for seed in range(3):
        text = text_of(name, written(name, grammar, seed))
        assert len(parsed(name, [text], tools=TOOLS)) == 1


def takes(name: str, grammar: CompiledGrammar, text: str) -> bool:
    """Whether a marked text is a whole output."""
    ids, matcher = family_format(name).ids, GrammarMatcher(grammar)
    for char in text:
        tokens = [ids[char]] if char in ids else family_tokenizer(name).encode(char).ids
        if not all(matcher.accept_token(token) for token in tokens):
            return False
    return matcher.accept_token(end_id(name))


GOOD = '{"city": "Oslo", "days": 3}'
BAD = ['{"city": "Oslo"}', '{"city": 1, "days": 3}', "[]", '{"city": "Oslo", "days": 3', "{}}"]
CALLS = {
    "qwen3": '<tool_call>\n{"name": "weather", "arguments": ARGS}\n</tool_call>',
    "llama": '{"name": "weather", "parameters": ARGS}',
    "mistral": '[TOOL_CALLS] [{"name": "weather", "arguments": ARGS}]',
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n"
    "```json\nARGS\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "deepseek_v31": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>ARGS"
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "gpt_oss": "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>ARGS",
}


@pytest.mark.parametrize("name", CALLS)
def test_a_grammar_takes_the_published_form_and_nothing_that_does_not_parse(name: str) -> None:
    grammar = compiled(name)

    assert takes(name, grammar, marked(name, CALLS[name].replace("ARGS", GOOD)))
    for bad in BAD:
        assert not takes(name, grammar, marked(name, CALLS[name].replace("ARGS", bad))), bad
    other = CALLS[name].replace("weather", "other").replace("ARGS", GOOD)
    assert not takes(name, grammar, marked(name, other))
    assert not takes(name, grammar, marked(name, "so " + CALLS[name].replace("ARGS", GOOD)))


def test_a_mark_that_is_a_token_cannot_be_spelt() -> None:
    text = CALLS["qwen3"].replace("ARGS", GOOD)

    assert not takes("qwen3", compiled("qwen3"), text)
    assert takes("smol", compiled("smol"), text)


def test_reasoning_may_stand_before_a_forced_call() -> None:
    calls = CALLS["qwen3"].replace("ARGS", GOOD)
    text = marked("qwen3", f"<think>\nhm\n</think>\n\n{calls}")

    assert takes("qwen3", compiled("qwen3", thinks=True), text)
    assert not takes("qwen3", compiled("qwen3"), text)
    # It has an end: no end token may come amid the reasoning.
    begun = marked("qwen3", "<think>\nhm")
    assert not takes("qwen3", compiled("qwen3", thinks=True), begun)
    analysis = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
    whole = analysis + CALLS["gpt_oss"].replace("ARGS", GOOD)
    assert takes("gpt_oss", compiled("gpt_oss", thinks=True), marked("gpt_oss", whole))


@pytest.mark.parametrize("name", ["qwen3", "mistral", "deepseek_v3", "deepseek_v31"])
def test_a_call_may_have_begun(name: str) -> None:
    text = marked(name, CALLS[name].replace("ARGS", GOOD))
    opening = opening_id(family_format(name))
    assert opening == family_format(name).ids[text[0]]

    assert takes(name, compiled(name, begun=True), text[1:])


def test_only_tokens_open_calls_that_a_grammar_can_wait_for() -> None:
    assert opening_id(family_format("llama")) is None
    assert opening_id(family_format("smol")) is None
    assert opening_id(family_format("gpt_oss")) is None


def test_a_tool_that_is_not_strict_takes_any_object() -> None:
    tag = format_calls(family_format("qwen3"), {"f": None, "g": {}})

    assert tag.count('"json_schema":{"type":"object"}') == 2 * 2


@pytest.mark.parametrize("schema", [{"type": "string"}, [], "x"])
def test_arguments_that_are_no_object_are_refused(schema: Any) -> None:
    with pytest.raises(GrammarError, match="'f'"):
        format_calls(family_format("qwen3"), {"f": schema})


def test_a_name_that_would_end_early_is_refused_where_it_stands_bare() -> None:
    assert format_calls(family_format("qwen3"), {'a"b c': {}})
    with pytest.raises(GrammarError, match="cannot name"):
        format_calls(family_format("deepseek_v31"), {"a b": {}})


def test_schemas_that_are_longer_than_a_grammar_are_refused() -> None:
    schema = {"type": "object", "description": "x" * 300_000}

    with pytest.raises(GrammarError, match="too long"):
        format_calls(family_format("qwen3"), {"f": schema})
