"""Tests of runtime.chat.call_writer: arguments as they come, and arguments in a wrapper."""

import json
from random import Random
from typing import Any

import pytest

from runtime.chat.answer_parser import AnswerParser, Part
from runtime.chat.call_writer import CallPiece, CallWriter, InvalidCall
from runtime.chat.marks import DSML
from tests.runtime.chat.schemas import near_value, random_root, random_schema

CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}}
COUNT = {"properties": {"count": {"type": "integer"}, "note": {"type": "string"}},
         "required": ["count"]}  # fmt: skip
LIST = {"properties": {"items": {"type": "array", "items": {"type": "integer"}}}}
PAIR = {"properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
DECLARED = {"properties": {"arguments": {"type": "integer"}}}
NAMES = ("a", "b", "c", 'q"uote', 'p">x', "arguments", "über")
TEXTS = ("<", "</", ">", '"', "\\", "\n", "@", "<b>", "é", "word ", "😀", "</parameter>", "{", "1")


def writer(schema: Any, *parameters: tuple[str, str, bool]) -> list[CallPiece | InvalidCall]:
    """Write a call with these names and texts."""
    call = CallWriter("f", schema)
    found: list[CallPiece | InvalidCall] = []
    for name, text, is_text in parameters:
        found += call.open(name, is_text=is_text)
        found += call.add(text)
    return [*found, *call.close("")]


def arguments(pieces: list[CallPiece | InvalidCall]) -> Any:
    """Return the arguments of one whole call, decoded."""
    assert pieces[0].name == "f"
    assert [p.ended for p in pieces if isinstance(p, CallPiece)][-1]
    return json.loads("".join(p.arguments for p in pieces if isinstance(p, CallPiece)))


def random_call(random: Random) -> tuple[Any, str]:
    """Return the schema of a tool, and a call of it; "@" stands for the mark."""
    schema: Any = random_root(random)
    if random.random() < 0.8:
        properties = {n: random_schema(random) for n in random.sample(NAMES, random.randint(0, 3))}
        schema = {"type": "object", "properties": properties, "$defs": schema["$defs"]}
    written: list[str] = []
    for _ in range(random.randint(0, 3)):
        value: Any = near_value(random)
        if random.random() < 0.4:
            value = "".join(random.choice(TEXTS) for _ in range(random.randint(0, 6)))
        text = value if isinstance(value, str) else json.dumps(value)
        kind = random.choice([' string="true"', ' string="false"', "", " string=true"])
        end = random.choice(["</@parameter>\n"] * 4 + [""])
        written.append(f'<@parameter name="{random.choice(NAMES)}"{kind}>{text}{end}')
    body = random.choice(["\n", "\n", '{"a": "1"}', '{"arguments": {"b": 1}}'])
    return schema, f'\n\n<@tool_calls>\n<@invoke name="f">{body}{"".join(written)}</@invoke>\n'


def parts_of(schema: Any, pieces: list[str]) -> list[Part]:
    parser = AnswerParser(reasoning=False, tools={"f": schema})
    said = [part for piece in pieces for part in parser.push(piece.replace("@", DSML))]
    return said + parser.finish()


def told(parts: list[Part]) -> tuple[str, list[InvalidCall]]:
    """Return the text of all arguments, and what is invalid."""
    text = "".join(part.arguments for part in parts if isinstance(part, CallPiece))
    return text, [part for part in parts if isinstance(part, InvalidCall)]


def test_the_pieces_of_a_call_are_its_arguments_wherever_they_are_cut() -> None:
    whole_calls = 0
    for seed in range(400):
        random = Random(seed)
        schema, text = random_call(random)
        cuts = sorted(random.choices(range(len(text) + 1), k=3))
        torn = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]

        whole, invalid = told(parts_of(schema, [text]))

        assert told(parts_of(schema, list(text))) == (whole, invalid), seed
        assert told(parts_of(schema, torn)) == (whole, invalid), seed
        if not invalid:
            assert isinstance(json.loads(whole), dict), seed
            whole_calls += 1
    assert whole_calls > 250


def test_what_has_gone_out_stays_and_is_no_json_before_the_calls_end() -> None:
    for seed in range(50):
        schema, text = random_call(Random(seed))
        whole, _ = told(parts_of(schema, [text]))
        end = text.rindex("</@invoke>") + len("</@invoke>")
        for cut in range(end):
            so_far, invalid = told(parts_of(schema, [text[:cut]]))
            assert whole.startswith(so_far), (seed, cut)
            if invalid and so_far:
                with pytest.raises(json.JSONDecodeError):
                    json.loads(so_far)


def test_a_string_goes_out_as_it_comes() -> None:
    call = CallWriter("f", CITY)
    assert list(call.open("city", is_text=True)) == [CallPiece("f", '{"city": "')]
    assert list(call.add('a"')) == [CallPiece(None, 'a\\"')]
    assert list(call.add("\n")) == [CallPiece(None, "\\n")]
    assert list(call.close("")) == [CallPiece(None, '"'), CallPiece(None, "}", ended=True)]


def test_another_value_goes_out_when_it_is_closed() -> None:
    call = CallWriter("f", COUNT)
    assert list(call.open("count", is_text=False)) == [CallPiece("f", "")]
    assert list(call.add("12")) == []
    assert list(call.add("3")) == []
    assert list(call.close_value()) == [CallPiece(None, '{"count": 123')]
    assert list(call.open("other", is_text=False)) == []


@pytest.mark.parametrize(
    ("schema", "text", "is_text", "expected"),
    [
        (CITY, "Paris", True, {"city": "Paris"}),
        (CITY, "Paris", False, {"city": "Paris"}),
        (CITY, "12345", False, {"city": "12345"}),
        (CITY, "a city of a long name", True, {"city": "a city of a long name"}),
        (CITY, "", True, {}),
        (CITY, "null", False, {}),
        (CITY, "{}", False, {}),
        (CITY, '{"city": 7}', False, {"city": "7"}),
        (CITY, '{"city": 7}', True, {"city": "7"}),
        (CITY, r'"{\"city\": \"x\"}"', False, {"city": "x"}),
        (CITY, '{"arguments": {"city": "x"}}', False, {"city": "x"}),
        (CITY, '{"arguments": 7}', False, {"city": "7"}),
        (COUNT, "7", True, {"count": 7}),
        (COUNT, "seven", True, {"arguments": "seven"}),
        (LIST, "[1, 2]", False, {"items": [1, 2]}),
        (LIST, '["1"]', True, {"items": [1]}),
        (PAIR, "7", False, {"arguments": 7}),
        (PAIR, '{"a": "1", "b": 2.50}', False, {"a": 1, "b": 2.5}),
        (None, "7", False, {"arguments": 7}),
        (DECLARED, "7", True, {"arguments": 7}),
    ],
    ids=str,
)
def test_arguments_are_taken_out_of_a_wrapper(
    schema: Any, text: str, is_text: bool, expected: Any
) -> None:
    assert arguments(writer(schema, ("arguments", text, is_text))) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('{"input": "Paris"}', {"city": "Paris"}),
        ('{"arguments": {"city": 5}}', {"city": "5"}),
        ('{"arguments": {"input": {"city": 5}}}', {"input": {"city": 5}}),
        ('{"city": 5, "arguments": 1}', {"city": "5", "arguments": 1}),
    ],
)
def test_arguments_are_taken_out_of_a_body(body: str, expected: Any) -> None:
    assert arguments(list(CallWriter("f", CITY).close(body))) == expected


def test_numbers_in_a_wrapper_keep_their_spelling() -> None:
    [piece] = writer({}, ("arguments", '{"x": 1.50e3}', False))

    assert piece == CallPiece("f", '{"x": 1.50e3}', ended=True)


def test_what_another_parameter_follows_is_no_wrapper() -> None:
    found = writer(CITY, ("arguments", '{"a": 1}', False), ("city", "x", True))

    assert arguments(found) == {"arguments": {"a": 1}, "city": "x"}
    assert arguments(writer(CITY, ("city", "x", True), ("input", "1", False))) == {
        "city": "x", "input": 1,
    }  # fmt: skip


def test_without_a_kind_the_schema_says_it() -> None:
    call = CallWriter("f", {"properties": {"s": {"type": "string"}}})

    assert list(call.open("s", is_text=None)) == [CallPiece("f", '{"s": "')]
