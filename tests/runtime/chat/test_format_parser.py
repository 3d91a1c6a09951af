"""Answers of every family: what was rendered is parsed again, wherever the pieces are cut."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.chat.answer_parser import Text
from runtime.chat.call_writer import CallPiece, InvalidCall
from runtime.chat_template import Message
from tests.runtime.chat.families import (
    FAMILIES,
    TOOLS,
    assistant,
    end_id,
    family_encoder,
    family_format,
    family_tokenizer,
    marked,
    parsed,
    shown_tools,
    text_of,
)

ONE = [("get_weather", {"city": 'Oslo "é" }</tool_call>', "days": 2})]
TWO = [*ONE, ("noop", {})]
USER = Message("user", "hi")
SINGLE = ("gpt_oss",)  # a call ends the answer


def rendered_answer(name: str, turn: Message) -> str:
    """Return what a model would have written to be rendered as this turn, marked."""
    encoder, tools = family_encoder(name), shown_tools()
    prompt = encoder.encode([USER], tools=tools, variables=_quiet(name))
    whole = encoder.encode([USER, turn], tools=tools, open_turn=False, variables=_quiet(name))
    begun = next((k for k, (a, b) in enumerate(zip(prompt, whole, strict=False)) if a != b), None)
    answer = whole[len(prompt) if begun is None else begun :]
    ends = {end_id(name), family_tokenizer(name).token_to_id("<|call|>")}
    stop = next(k for k, i in enumerate(answer) if i in ends)
    return text_of(name, answer[:stop])


def _quiet(name: str) -> dict[str, Any]:
    return {"thinking": True} if name == "deepseek_v31" else {}


def calls_of(parts: list[Any]) -> list[tuple[str | None, Any]]:
    return [(p.name, json.loads(p.arguments)) for p in parts if isinstance(p, CallPiece)]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("calls", [ONE, TWO], ids=["one", "two"])
def test_calls_that_a_template_renders_are_parsed_again(name: str, calls: Any) -> None:
    form = family_format(name)
    assert form.calls is not None
    calls = calls[:1] if name in SINGLE else calls
    given = [
        (tool, args if form.calls.arguments == "object" else json.dumps(args, ensure_ascii=False))
        for tool, args in calls
    ]
    text = rendered_answer(name, assistant(None, given))

    parts = parsed(name, [text])

    assert calls_of(parts) == calls
    assert all(isinstance(part, CallPiece) and part.ended for part in parts)


@pytest.mark.parametrize("name", ["qwen3", "deepseek_v3", "deepseek_v31", "gpt_oss"])
def test_reasoning_and_content_are_parsed_again(name: str) -> None:
    text = rendered_answer(name, assistant("so it is", [], "because"))
    reasoning = family_format(name).reasons(
        family_encoder(name).encode([USER], variables=_quiet(name))
    )
    assert reasoning == name.startswith("deepseek")

    parts = parsed(name, [text], reasoning=reasoning)

    if name == "gpt_oss":
        assert parts == [Text("reasoning", "because"), Text("content", "so it is")]
        joined = parsed(name, [text], separate=False)
        assert joined == [Text("content", "becauseso it is")]
    else:
        assert parts == [Text("reasoning", "because"), Text("content", "so it is")]


def call(name: str = "get_weather", arguments: str = '{"city": "Oslo"}') -> str:
    return f'{{"name": "{name}", "arguments": {arguments}}}'


WHOLE = CallPiece("get_weather", '{"city": "Oslo"}', True)
UNKNOWN = InvalidCall("f", "there is no such tool")
OPEN, CLOSE = "<tool_call>\n", "\n</tool_call>"
ANSWERS: dict[str, tuple[str, str, list[Any]]] = {
    "content before and after": (
        "qwen3",
        f"a\n{OPEN}{call()}{CLOSE}\nb",
        [Text("content", "a"), WHOLE, Text("content", "\nb")],
    ),
    "a call that ends the reasoning": (
        "qwen3",
        f"<think>\nhm {OPEN}{call()}{CLOSE}",
        [Text("reasoning", "hm "), WHOLE],
    ),
    "arguments before the name": (
        "qwen3",
        OPEN + '{"arguments": {"city": "Oslo"}, "name": "get_weather"}' + CLOSE,
        [WHOLE],
    ),
    "arguments as a string": (
        "qwen3",
        OPEN + call(arguments='"{\\"city\\": \\"Oslo\\"}"') + CLOSE,
        [WHOLE],
    ),
    "no arguments": (
        "smol", '<tool_call>{"name": "noop"}</tool_call>', [CallPiece("noop", "{}", True)],
    ),
    "no call at all": (
        "qwen3",
        f"{OPEN}oops{CLOSE}",
        [Text("content", "<tool_call>\noops\n</tool_call>")],
    ),
    "two opening marks": (
        "qwen3",
        f"<tool_call>{OPEN}{call()}{CLOSE}",
        [Text("content", "<tool_call>"), WHOLE],
    ),
    "a tool that is not there": ("qwen3", OPEN + call("f") + CLOSE, [UNKNOWN]),
    "an answer cut before the call is certain": (
        "smol", f'so\n<tool_call>{call()[:12]}', [Text("content", 'so\n<tool_call>{"name": "ge')],
    ),
    "an answer cut amid the arguments": (
        "qwen3",
        OPEN + call()[:-4],
        [
            CallPiece("get_weather", '{"city": "Osl'),
            InvalidCall("get_weather", "the answer ended inside this call", begun=True),
        ],
    ),
    "arguments that are no JSON": (
        "qwen3",
        OPEN + call(arguments='{"city": Oslo}') + CLOSE,
        [
            CallPiece("get_weather", '{"city": Oslo'),
            InvalidCall("get_weather", "the call's arguments are no JSON object", begun=True),
        ],
    ),
    "a list of arguments": (
        "smol",
        f"<tool_call>{call(arguments='[1]')}",
        [Text("content", f"<tool_call>{call(arguments='[1]')}")],
    ),
    "JSON that is no call": (
        "llama", '{"city": "Oslo"}', [Text("content", '{"city": "Oslo"}')],
    ),
    "a bare call of no known tool": ("llama", call("f"), [Text("content", call("f"))]),
    "a bare call behind text": ("llama", f"so {call()}", [Text("content", f"so {call()}")]),
    "a call behind the tag": (
        "llama",
        f"so <|python_tag|>{call()}",
        [Text("content", "so "), WHOLE],
    ),
    "code behind the tag": (
        "llama",
        "<|python_tag|>print(1)",
        [Text("content", "<|python_tag|>print(1)")],
    ),
    "named calls": (
        "mistral",
        '[TOOL_CALLS]noop[ARGS]{}[TOOL_CALLS]get_weather[CALL_ID]7[ARGS]{"city": "Oslo"}',
        [CallPiece("noop", "{}", True), WHOLE],
    ),
    "a list without an end": ("mistral", f"[TOOL_CALLS] [{call()}", [WHOLE]),
    "a fence left out": (
        "deepseek_v3",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n"
        '{"city": "Oslo"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        [WHOLE],
    ),
    "a block that is none": (
        "deepseek_v31",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁call▁end｜>",
        [Text("content", "<｜tool▁call▁begin｜>f<｜tool▁call▁end｜>")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ANSWERS)
def test_answers_are_read(case: str) -> None:
    name, text, expected = ANSWERS[case]

    assert parsed(name, [marked(name, text)]) == expected


@pytest.mark.parametrize("case", ANSWERS)
@settings(max_examples=12, deadline=None, database=None, derandomize=True)
@given(data=st.data())
def test_the_pieces_of_a_stream_change_nothing(case: str, data: st.DataObject) -> None:
    name, text, expected = ANSWERS[case]
    text = marked(name, text)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    torn = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]

    assert parsed(name, torn) == expected
    assert parsed(name, list(text)) == expected


PIECES = [
    *("<tool_call>", "</tool_call>", "<think>", "</think>", '{"name": "noop", "arguments": ', "{}"),
    *("}", '{"name": ', '"get_weather", ', '"arguments": ', '{"city": "x"}', "\n", "[", "; ", "a"),
    *("<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "noop", "<｜tool▁calls▁begin｜>", "<|channel|>"),
    *("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "```json\n", "function"),
    *("<|message|>", "<|start|>", "<|end|>", "assistant to=functions.noop", "analysis", '"', "\\"),
]


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=40, deadline=None, database=None, derandomize=True)
@given(words=st.lists(st.sampled_from(PIECES), max_size=14), begun=st.booleans())
def test_whatever_a_model_writes_is_read_the_same_in_pieces(
    name: str, words: list[str], begun: bool
) -> None:
    text = marked(name, "".join(words))
    whole = parsed(name, [text], reasoning=begun)
    channels = family_format(name).parser(reasoning=begun, tools=TOOLS).channels

    assert parsed(name, list(text), reasoning=begun) == whole
    runs = [run for char in text for run in channels.push(char)] + list(channels.finish())
    assert "".join(run.text for run in runs) == text
    for part in whole:
        if isinstance(part, CallPiece) and part.ended:
            assert part.name in TOOLS
            assert isinstance(json.loads(part.arguments), dict)


@pytest.mark.parametrize("name", ["qwen3", "llama", "mistral"])
def test_without_tools_calls_are_text(name: str) -> None:
    text = call()

    assert parsed(name, [text], tools=None) == [Text("content", text)]


def test_of_calls_that_must_not_be_parallel_the_first_one_counts() -> None:
    text = marked("qwen3", f"{OPEN}{call()}{CLOSE}\n{OPEN}{call('noop', '{}')}{CLOSE}")

    parts = parsed("qwen3", list(text), parallel=False)

    assert parts == [WHOLE, InvalidCall("noop", "parallel_tool_calls is false")]


def test_arguments_stream_as_they_come_but_for_their_end() -> None:
    parser = family_format("qwen3").parser(reasoning=False, tools=TOOLS)
    parser.push(marked("qwen3", "<tool_call>") + '{"name": "get_weather", "arguments": {"city": ')

    assert parser.push('"Os') == [CallPiece(None, '"Os')]
    assert parser.push('lo"}') == [CallPiece(None, 'lo"')]
    assert parser.push("}") == [CallPiece(None, "}", ended=True)]
