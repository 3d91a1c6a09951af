"""Conversations from a seed, in the shape of a chat request, and answers to them.

They are made to be hard: text full of what looks like control tokens and markup, of characters
that byte-level tokens tear, and of the newlines and brackets the format itself uses.
"""

import json
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any

from jsonschema import Draft202012Validator
from tokenizers import Tokenizer

from runtime.chat.answer_parser import AnswerParser, Part, Text
from runtime.chat.call_writer import CallPiece, InvalidCall
from runtime.chat.chat_prompt import ChatPrompt
from runtime.chat.v4_encoder import V4Encoder
from runtime.tokenizer.detokenizer import Detokenizer
from tests.testing.stand_in.tokenizer import EOS_ID, SPECIALS, train_tokenizer

Json = dict[str, Any]

_PIECES = (
    *SPECIALS, "<｜DSML｜tool_calls>", "</｜DSML｜parameter>", '<｜DSML｜invoke name="f">',
    "<tool_result>", "<", "</", ">", "\n", "\n\n", "\n\n<", "｜", "DSML", "think>", '"', "\\",
    "{", "}", '{"a": 1}', " ", "word", "the book", "é", "ß", "你好", "😀", "👩‍👩‍👧", "\u2581",
    "\x00", "\t", "0", "1.5", "null", "\U000f0000",
)  # fmt: skip
_NAMES = ("f", "look_up", "Write-File", "g2")
_KEYS = ("x", "s", "path", "a b", 'q"uote', "über", "名", "arguments")
_EFFORTS = (None, None, "minimal", "low", "medium", "high", "xhigh", "max")
_SCHEMAS: tuple[Json, ...] = (
    {"type": "string"}, {"type": "integer"}, {"type": "number"}, {"type": "boolean"},
    {"type": "object"}, {"type": "array"}, {"type": ["string", "null"]}, {},
    {"anyOf": [{"type": "string"}, {"type": "array"}]},
)  # fmt: skip


@dataclass(slots=True)
class Answer:
    """What an assistant says: the parts that a parser should find."""

    reasoning: str = ""
    content: str = ""
    calls: list[tuple[str, Json]] = field(default_factory=list)


@cache
def tokenizer() -> Tokenizer:
    """Return a tokenizer that knows V4."""
    return train_tokenizer()


@cache
def encoder() -> V4Encoder:
    """Return its encoder."""
    return V4Encoder(tokenizer())


def text(random: Random, *, most: int = 6) -> str:
    """Return up to `most` pieces of text."""
    return "".join(random.choice(_PIECES) for _ in range(random.randint(0, most)))


def value(random: Random, depth: int = 0) -> Any:
    """Return a JSON value."""
    kind = random.randint(0, 7 if depth < 2 else 5)
    match kind:
        case 0 | 1:
            return text(random)
        case 2:
            return random.randint(-(1 << 40), 1 << 40)
        case 3:
            return random.random() * 10 ** random.randint(-5, 5)
        case 4:
            return random.choice([True, False])
        case 5:
            return None
        case 6:
            return [value(random, depth + 1) for _ in range(random.randint(0, 3))]
        case _:
            return {key: value(random, depth + 1) for key in random.sample(_KEYS, 2)}


def fitting_value(random: Random, schema: Json) -> Any:
    """Return a JSON value that a schema of `tools` allows."""
    while True:
        found = value(random)
        if Draft202012Validator(schema).is_valid(found):
            return found


def tools(random: Random) -> list[Json]:
    """Return one to three tool definitions."""
    made: list[Json] = []
    for name in random.sample(_NAMES, random.randint(1, 3)):
        properties: Json = {key: random.choice(_SCHEMAS) for key in _KEYS}
        function: Json = {"name": name, "parameters": {"type": "object", "properties": properties}}
        if random.random() < 0.5:
            function["description"] = text(random)
        made.append({"type": "function", "function": function})
    return made


def answer(random: Random, offered: list[Json], *, thinking: bool) -> Answer:
    """Return an answer; it calls only what is offered, with what that takes."""
    made = Answer(content=text(random))
    if thinking:
        made.reasoning = text(random)
    if offered and random.random() < 0.6:
        for _ in range(random.randint(1, 3)):
            function = random.choice(offered)["function"]
            known = function["parameters"]["properties"]
            keys = random.sample(_KEYS, random.randint(0, 3))
            arguments = {key: fitting_value(random, known[key]) for key in keys}
            made.calls.append((function["name"], arguments))
    return made


def message(said: Answer, first_id: int) -> Json:
    """Return an answer as a message of the history."""
    made: Json = {"role": "assistant", "content": said.content}
    if said.reasoning:
        made["reasoning_content"] = said.reasoning
    if said.calls:
        made["tool_calls"] = [
            {
                "id": f"call_{first_id + k}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
            }
            for k, (name, arguments) in enumerate(said.calls)
        ]
    return made


def results(random: Random, said: Json) -> list[Json]:
    """Return the tools' answers to a message, in any order."""
    calls = [call["id"] for call in said.get("tool_calls", [])]
    random.shuffle(calls)
    return [{"role": "tool", "tool_call_id": c, "content": text(random)} for c in calls]


def conversation(random: Random) -> Json:
    """Return a request whose last message is a user's or a tool's."""
    request: Json = {"messages": []}
    thinking = random.random() < 0.7
    if not thinking or random.random() < 0.5:
        request["thinking"] = {"type": "enabled" if thinking else "disabled"}
    effort = random.choice(_EFFORTS)
    if effort is not None:
        request["reasoning_effort"] = effort
    offered = tools(random) if random.random() < 0.6 else []
    if offered:
        request["tools"] = offered
    messages: list[Json] = request["messages"]
    if random.random() < 0.5:
        messages.append({"role": "system", "content": text(random)})
    for turn in range(random.randint(0, 3)):
        messages.append({"role": "user", "content": text(random)})
        said = message(answer(random, offered, thinking=thinking), 10 * turn)
        messages += [said, *results(random, said)]
    if messages[-1:] == [] or messages[-1]["role"] != "tool" or random.random() < 0.5:
        messages.append({"role": "user", "content": text(random)})
    return request


def written(random: Random, request: Json, said: Answer) -> tuple[ChatPrompt, list[int]]:
    """Return the prompt of `request`, and the tokens by which a model would give this answer."""
    prompt = encoder().encode(request)
    told = message(said, 1000)
    follow = results(random, told)
    if not follow and "tools" in request:
        follow = [{"role": "user", "content": ""}]  # tools keep the reasoning, and refuse prefixes
    elif not follow:
        told["prefix"] = True
    whole = encoder().encode({**request, "messages": [*request["messages"], told, *follow]})
    start = len(prompt.token_ids)
    assert whole.token_ids[:start] == prompt.token_ids
    rest = whole.token_ids[start:]
    return prompt, rest[: rest.index(EOS_ID)] if EOS_ID in rest else rest


def marked(ids: list[int]) -> str:
    """Return the text of tokens with marks where control tokens stood."""
    detokenizer = Detokenizer(tokenizer(), frozenset(range(len(SPECIALS))), encoder().marks)
    return detokenizer.push(ids) + detokenizer.finish()


def parser(prompt: ChatPrompt) -> AnswerParser:
    """Return a parser of the answer to a prompt."""
    return AnswerParser(reasoning=prompt.reasoning, tools=prompt.tools)


def collected(parts: list[Part]) -> tuple[Answer, list[InvalidCall]]:
    """Return the answer that parts make, arguments of whole calls decoded, and what is invalid."""
    found, invalid, written = Answer(), list[InvalidCall](), ["", ""]
    for part in parts:
        match part:
            case Text("reasoning", more):
                found.reasoning += more
            case Text(_, more):
                found.content += more
            case CallPiece(name, arguments, ended):
                written = (
                    [written[0], written[1] + arguments] if name is None else [name, arguments]
                )
                if ended:
                    decoded = json.loads(written[1], parse_constant=_refuse)
                    found.calls.append((written[0], decoded))
            case InvalidCall():
                invalid.append(part)
    return found, invalid


def _refuse(constant: str) -> None:
    raise ValueError(constant)
