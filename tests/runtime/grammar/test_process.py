"""A grammar's process: what it allows, what it refuses, and that hostile work ends it alone."""

import contextlib
import json
import random
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema
import msgspec
import numpy as np
import pytest

from runtime.chat.call_grammar import call_grammar
from runtime.chat.marks import DSML, marks_by_id
from runtime.config import LONGEST_GRAMMAR_S, MOST_GRAMMAR_MEMORY
from runtime.grammar.nursery_process import NurseryProcess
from runtime.grammar.vocabulary import token_bytes
from runtime.grammar.wire import (
    Accept,
    Channel,
    Close,
    Compile,
    Compiled,
    Failed,
    FromGrammar,
    Mask,
    Open,
)
from runtime.messages import Grammar
from tests.testing.stand_in.tokenizer import EOS_ID, VOCAB_SIZE, train_tokenizer

TOKENIZER = train_tokenizer()
MEMORY = 1 << 29
WORD_TAG = {
    "type": "structural_tag",
    "format": {"type": "const_string", "value": "word"},
}


def ids_of(mask: FromGrammar) -> set[int]:
    """Return the ids that a mask allows."""
    assert isinstance(mask, Mask), mask
    bits = np.unpackbits(np.frombuffer(mask.bits, dtype=np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


class Process:
    """A grammar's process and what it said last."""

    def __init__(self, nursery: NurseryProcess) -> None:
        self.end = nursery.start()
        self.channel: Channel[FromGrammar] = Channel(self.end, FromGrammar)

    def ask(self, message: Compile | Open | Accept) -> FromGrammar:
        """Return the one answer. Raises EOFError when the process ended."""
        self.channel.send(message)
        got: list[FromGrammar] = []
        while not got:
            got = self.channel.receive()
        [answer] = got
        return answer

    def compile(self, grammar: Grammar, *, limit_s: float = 20.0) -> FromGrammar:
        """Return what it says of a grammar."""
        return self.ask(Compile(grammar, limit_s, MEMORY))

    def allowed(self, message: Open | Accept) -> set[int]:
        """Return the ids that the answer allows."""
        return ids_of(self.ask(message))

    def begin(self, grammar: Grammar) -> set[int]:
        """Compile, open slot 0, and return what may come first."""
        assert self.compile(grammar) == Compiled()
        return self.allowed(Open(0))

    def write(self, text: str) -> set[int]:
        """Accept a text token by token in slot 0; return what may follow."""
        allowed = set[int]()
        for token in TOKENIZER.encode(text).ids:
            allowed = self.allowed(Accept(0, token))
        return allowed


@pytest.fixture
def start(nursery: NurseryProcess) -> Iterator[Callable[[], Process]]:
    """Start processes that end with the test."""
    started: list[Process] = []

    def one() -> Process:
        started.append(Process(nursery))
        return started[-1]

    yield one
    for process in started:
        process.channel.close()


def ids(*texts: str) -> set[int]:
    return {TOKENIZER.get_vocab()[text] for text in texts}


def schema(value: Any) -> Grammar:
    return Grammar("json_schema", json.dumps(value))


def test_only_what_fits_is_allowed_and_the_end_only_at_the_end(
    start: Callable[[], Process],
) -> None:
    process = start()

    assert process.begin(Grammar("regex", "xy?")) == ids("x")
    assert process.write("x") == ids("y") | {EOS_ID}
    assert process.write("y") == {EOS_ID}


def test_outputs_of_one_grammar_do_not_disturb_each_other(start: Callable[[], Process]) -> None:
    process = start()
    first = process.begin(Grammar("regex", "[xy][xy]"))

    assert process.allowed(Open(1)) == first
    process.write("x")
    process.channel.send(Close(1))
    assert process.allowed(Open(2)) == first
    assert process.write("y") == {EOS_ID}


def test_a_control_token_is_reached_by_its_id_only(start: Callable[[], Process]) -> None:
    process = start()
    [dsml] = ids("｜DSML｜")
    parts = [{"type": "const_string", "value": "<"}, {"type": "token", "token": dsml}]
    tag = {"type": "structural_tag", "format": {"type": "sequence", "elements": parts}}

    process.begin(Grammar("structural_tag", json.dumps(tag)))

    assert process.write("<") == {dsml}
    assert process.allowed(Accept(0, dsml)) == {EOS_ID}


def test_a_complaint_about_what_is_not_ascii_is_told(start: Callable[[], Process]) -> None:
    told = start().compile(Grammar("ebnf", "root ::= é"))

    assert isinstance(told, Failed)
    assert told.message.startswith("EBNF ")


def test_free_text_holds_no_control_token(start: Callable[[], Process]) -> None:
    allowed = start().begin(Grammar("regex", r"[\s\S]*"))

    assert EOS_ID in allowed
    assert allowed.isdisjoint(ids("<think>", "</think>", "｜DSML｜"))


def test_a_json_object_is_an_object(start: Callable[[], Process]) -> None:
    process = start()
    first = process.begin(Grammar("json_object"))

    texts = [TOKENIZER.decode([token]) for token in first]
    assert all(text.startswith("{") for text in texts)
    assert EOS_ID in process.write('{"any": [1, {"thing": null}]}')


@pytest.mark.parametrize(
    ("grammar", "answer"),
    [
        (Grammar("json_object"), '{"a": {"b": [1]}}'),
        (Grammar("json_schema", '{"type": "object", "properties": {}}'), "{}"),
        (Grammar("regex", "a|b"), "b"),
        (Grammar("ebnf", 'root ::= "ab"'), "ab"),
        (Grammar("structural_tag", json.dumps(WORD_TAG)), "word"),
    ],
)
def test_an_output_may_be_calls_instead(
    start: Callable[[], Process], grammar: Grammar, answer: str
) -> None:
    process = start()
    [dsml] = [token_id for token_id, mark in marks_by_id(TOKENIZER).items() if mark == DSML]
    calls = call_grammar({"f": None, "g": None}, dsml_id=dsml)
    process.begin(msgspec.structs.replace(grammar, calls=calls))

    assert process.write(answer) & {EOS_ID}
    calling = process.allowed(Open(0))
    for text in (
        "\n\n<", None, "tool_calls>\n<", None, 'invoke name="g">\n<', None,
        'parameter name="x" string="true">a</', None, "parameter>\n</", None,
        "invoke>\n</", None, "tool_calls>",
    ):  # fmt: skip
        assert EOS_ID not in calling
        calling = process.allowed(Accept(0, dsml)) if text is None else process.write(text)
    assert EOS_ID in calling


def test_a_token_that_does_not_follow_ends_the_process(start: Callable[[], Process]) -> None:
    process = start()
    process.begin(Grammar("regex", "a"))

    [wrong] = ids("b")
    assert isinstance(process.ask(Accept(0, wrong)), Failed)
    with pytest.raises(EOFError):
        process.channel.receive()


REFUSED: dict[str, tuple[Grammar, str]] = {
    "regex": (Grammar("regex", "(("), "parenthesis"),
    "backreference": (Grammar("regex", r"(a)\1"), "a backreference"),
    "lookahead": (Grammar("regex", "(?=a)b"), "'(?=', a look-ahead"),
    "no JSON": (Grammar("json_schema", "{"), "no JSON"),
    "schema of a list": (schema([]), "an object or a boolean"),
    "impossible schema": (schema(False), "cannot accept any value"),
    "empty range": (
        schema({"type": "integer", "minimum": 5, "maximum": 3}),
        "no number fits 'minimum'",
    ),
    "unknown type": (schema({"type": "float"}), "Unsupported type"),
    "missing definition": (schema({"$ref": "#/$defs/x"}), "Cannot find"),
    "foreign definition": (schema({"$ref": "http://x/y"}), "'http://x/y'"),
    "not enforced": (schema({"not": {}}), "cannot be enforced"),
    "silently ignored": (schema({"type": "integer", "multipleOf": 10**6 + 3}), "multipleOf"),
    "overlapping oneOf": (
        schema({"oneOf": [{"type": "integer"}, {"type": "number"}]}),
        "'oneOf' cannot be enforced",
    ),
    "two of allOf": (schema({"allOf": [{"minimum": 3}, {"type": "integer"}]}), "allOf"),
    "ebnf": (Grammar("ebnf", "root ::= ("), "EBNF"),
    "structural tag": (
        Grammar("structural_tag", '{"type": "structural_tag"}'),
        "Structural tag must have a format field",
    ),
    "POSIX class": (Grammar("regex", "[[:alpha:]]+"), "POSIX class [:alpha:]"),
    "huge bound": (schema({"type": "integer", "minimum": 10**400}), "'minimum' must be below 2^63"),
    "huge float": (Grammar("json_schema", '{"minimum": 1e999}'), "number that is too large"),
    "endless": (schema({"$ref": "#"}), "leads back to itself alone"),
    "pattern and length": (schema({"pattern": "(ab)+", "maxLength": 3}), "beside the pattern"),
    "left recursion": (Grammar("ebnf", 'root ::= root "a" | root'), "no token"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_served_is_refused_with_its_reason(
    start: Callable[[], Process], name: str
) -> None:
    grammar, reason = REFUSED[name]
    process = start()

    answer = process.compile(grammar)
    if answer == Compiled():
        answer = process.ask(Open(0))

    assert isinstance(answer, Failed)
    assert reason in answer.message
    assert ".cc:" not in answer.message
    assert "Check failed" not in answer.message
    # What the compiler would do instead, it does not.
    assert "ignoring" not in answer.message
    assert "falling back" not in answer.message


DEEP = 3000
HOSTILE: dict[str, Grammar] = {
    "wide": schema({"type": "object", "properties": {f"p{i}": {} for i in range(20_000)}}),
    "deep schema": Grammar("json_schema", '{"items":' * DEEP + "{}" + "}" * DEEP),
    "deep regex": Grammar("regex", "(" * 50_000 + "a" + ")" * 50_000),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_work_ends_its_process_in_time(start: Callable[[], Process], name: str) -> None:
    bystander, process = start(), start()
    bystander.begin(Grammar("regex", "ab"))

    # Refused, or killed: too long, too much memory, or too deep.
    with contextlib.suppress(EOFError):
        assert isinstance(process.compile(HOSTILE[name], limit_s=1.5), Failed)

    assert bystander.write("ab") == {EOS_ID}


def test_outputs_that_wait_give_a_grammar_no_more_time(start: Callable[[], Process]) -> None:
    process = start()
    begun = time.monotonic()
    wait = [Open(slot) for slot in range(100)]
    process.channel.send(Compile(HOSTILE["wide"], 1.5, MEMORY), *wait)
    with contextlib.suppress(EOFError):
        while not any(isinstance(one, Failed) for one in process.channel.receive()):
            pass

    assert time.monotonic() - begun < 75


def test_the_widest_limits_of_the_flags_can_be_set(start: Callable[[], Process]) -> None:
    grammar = Grammar("regex", "ab")

    assert start().ask(Compile(grammar, LONGEST_GRAMMAR_S, MOST_GRAMMAR_MEMORY)) == Compiled()


def compiled_soonest(start: Callable[[], Process], grammar: Grammar) -> Process:
    """Return a process with a grammar, and a limit that is little more than it takes here."""
    for limit_s in (0.2, 2.0, 20.0):
        process = start()
        with contextlib.suppress(EOFError):
            assert process.compile(grammar, limit_s=limit_s) == Compiled()
            return process
    raise AssertionError("it does not compile")


def test_a_mask_that_takes_too_long_ends_the_process(start: Callable[[], Process]) -> None:
    """Each of these letters can be read in more ways than the one before."""
    rules = 'a ::= a a | "a" | "" | b b b\nb ::= a | b a | "a"*'
    ambiguous = Grammar("ebnf", f"root ::= {'a ' * 300}\n{rules}")
    process = compiled_soonest(start, ambiguous)
    process.ask(Open(0))

    [letter] = ids("a")

    def write_on() -> None:
        for _ in range(1000):
            process.ask(Accept(0, letter))

    with pytest.raises(EOFError):
        write_on()


def test_masks_that_nobody_reads_cost_their_process_no_time(start: Callable[[], Process]) -> None:
    process, count, limit_s = start(), 1500, 0.5
    assert process.compile(Grammar("regex", "ab"), limit_s=limit_s) == Compiled()
    process.end.setblocking(False)

    for slot in range(count):
        process.channel.send(Open(slot))
    time.sleep(1.2 * limit_s)

    got: list[FromGrammar] = []
    while len(got) < count:
        process.channel.flush()
        got += process.channel.receive()
    assert [mask.slot for mask in got if isinstance(mask, Mask)] == list(range(count))


def test_memory_is_limited(start: Callable[[], Process]) -> None:
    process = start()
    wide = {"type": "object", "properties": {f"p{i}": {} for i in range(3_000)}}

    with contextlib.suppress(EOFError):
        answer = process.ask(Compile(schema(wide), 60.0, 1 << 20))
        assert isinstance(answer, Failed)


@pytest.mark.parametrize(
    "grammar",
    [
        schema({"type": "string", "maxLength": 12}),
        schema(
            {
                "type": "object",
                "propertyNames": {"maxLength": 4},
                "additionalProperties": {"type": "null"},
                "maxProperties": 2,
            }
        ),
        Grammar("regex", r"[\s\S]{1,12}"),
        Grammar("regex", r"[^a-z]{1,12}"),
    ],
)
def test_whatever_bytes_come_the_output_is_text_of_its_kind(
    start: Callable[[], Process], grammar: Grammar
) -> None:
    """Single bytes are preferred, so that characters are spelt in pieces."""
    spelling = token_bytes(TOKENIZER, VOCAB_SIZE)
    process, pick = start(), random.Random(0)
    assert process.compile(grammar) == Compiled()

    for slot in range(150):
        allowed, text = process.allowed(Open(slot)), b""
        while EOS_ID not in allowed and len(text) < 4000:
            some = [t for t in allowed if len(spelling[t]) == 1 and not spelling[t].isascii()]
            token = pick.choice(some if some and pick.random() < 0.7 else sorted(allowed))
            text += spelling[token]
            allowed = process.allowed(Accept(slot, token))
        written = text.decode()
        if grammar.kind == "json_schema":
            jsonschema.validate(json.loads(written), json.loads(grammar.text))
        else:
            assert re.fullmatch(grammar.text, written)
