"""Stop strings and log-probabilities against what a client of a chat is shown, over the routes."""

import asyncio
import json
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from runtime.messages import unpack_ids
from tests.runtime.server.engine import Server, served

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
Json = dict[str, Any]

SCHEMA: Json = {"type": "object", "properties": {"s": {"type": "string"}}}
HI: Json = {"messages": [{"role": "user", "content": "hi"}]}
TOOLS: Json = {"tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]}
CALL = (
    '\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n'
    '<｜DSML｜parameter name="s" string="true">a small\n\nword</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
)
WORDS = ("small", "a ", "word", "\n", "\n\n", "<", "</", ">", "stop", "é", "你好", "def", ". ")
STOPS = ("small", "\n\n", "\n", "<", "\n<", "stop", "</", "d\n\n", "好", "éa", "tool", "invoke")


class Answer:
    """One answer as a client sees it, of either dialect, streamed or not."""

    def __init__(self) -> None:
        self.reasoning = ""
        self.content = ""
        self.arguments: list[str] = []
        self.finish: str | None = None
        self.stop: Any = None
        self.logprobs: dict[str, list[Json]] = {"content": [], "reasoning_content": []}

    def take(self, message: Json) -> None:
        """Take a message or a delta of a chat."""
        self.reasoning += message.get("reasoning_content") or ""
        self.content += message.get("content") or ""
        for call in message.get("tool_calls") or []:
            if "id" in call:
                self.arguments.append("")
            self.arguments[-1] += call["function"]["arguments"]

    def end(self, choice: Json) -> None:
        """Take what is beside the message of a choice."""
        for name, entries in self.logprobs.items():
            entries += (choice["logprobs"] or {}).get(name, [])
        if choice["finish_reason"] is not None:
            self.finish, self.stop = choice["finish_reason"], choice["matched_stop"]

    @property
    def calls(self) -> list[Any]:
        """The arguments of the calls."""
        return [json.loads(arguments) for arguments in self.arguments]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Answer) and vars(self) == vars(other)

    def __repr__(self) -> str:
        return repr(vars(self))


async def gathered(server: Server, body: Json) -> tuple[list[Answer], int]:
    """Return the choices of a chat, and its completion tokens."""
    reply = await server.post(CHAT, body)
    assert reply.status_code == 200, reply.text
    answers: list[Answer] = []
    for choice in reply.json()["choices"]:
        answers.append(Answer())
        answers[-1].take(choice["message"])
        answers[-1].end(choice)
    return answers, reply.json()["usage"]["completion_tokens"]


async def streamed(server: Server, body: Json) -> tuple[list[Answer], int]:
    """Return the same of a stream."""
    options = {"stream_options": {"include_usage": True}}
    *chunks, usage, _ = await server.events(CHAT, {**body, **options})
    answers = [Answer() for _ in range(body.get("n", 1))]
    for chunk in chunks:
        [choice] = chunk["choices"]
        assert choice["logprobs"] is None or any(choice["logprobs"].values())
        answers[choice["index"]].take(choice["delta"])
        answers[choice["index"]].end(choice)
    return answers, usage["usage"]["completion_tokens"]


async def anthropic(server: Server, body: Json, *, stream: bool) -> tuple[Answer, int]:
    """Return the answer to the same chat from `/v1/messages`."""
    asked = {"model": "default", "max_tokens": 2000, "messages": HI["messages"], "stream": stream}
    if "tools" in body:
        asked["tools"] = [{"name": "f", "input_schema": SCHEMA}]
    reply = await server.post(MESSAGES, {**asked, "stop_sequences": body.get("stop")})
    assert reply.status_code == 200, reply.text
    answer, blocks = Answer(), list[Json]()
    if not stream:
        whole = reply.json()
        blocks, last, usage = whole["content"], whole, whole["usage"]
    else:
        lines = [line for line in reply.text.split("\n") if line.startswith("data: ")]
        events = [json.loads(line.removeprefix("data: ")) for line in lines]
        for event in events:
            if event["type"] == "content_block_start":
                blocks.append({**event["content_block"], "input": ""})
            elif event["type"] == "content_block_delta":
                _extend(blocks[-1], event["delta"])
        end = events[-2]
        last, usage = end["delta"], end["usage"]
    for block in blocks:
        match block["type"]:
            case "thinking":
                answer.reasoning += block["thinking"]
            case "text":
                answer.content += block["text"]
            case _:
                value = block["input"]
                answer.arguments.append(value if isinstance(value, str) else json.dumps(value))
    answer.finish, answer.stop = last["stop_reason"], last["stop_sequence"]
    return answer, usage["output_tokens"]


def _extend(block: Json, delta: Json) -> None:
    for name in ("text", "thinking"):
        block[name] = block.get(name, "") + delta.get(name, "")
    block["input"] += delta.get("partial_json", "")


def cut(content: str, stops: Sequence[str]) -> tuple[str, str] | None:
    """Return `content` before the first stop string to be complete, and that string."""
    found = [(content.find(s) + len(s), -len(s), s) for s in stops if s in content]
    if not found:
        return None
    end, length, stop = min(found)
    return content[: end + length], stop


def tokens_up_to(server: Server, text: str) -> int:
    """Return how many tokens of the answer there are when `text` of it is complete."""
    ids = server.engine.tokenizer.encode(server.engine.reply, add_special_tokens=False).ids
    decode = server.engine.tokenizer.decode
    texts = (decode(ids[:k], skip_special_tokens=False) for k in range(len(ids) + 1))
    return next(k for k, said in enumerate(texts) if said.startswith(text))


def bytes_of(entries: list[Json]) -> bytes:
    """Return the bytes of the tokens of log-probabilities."""
    return bytes(byte for entry in entries for byte in entry["bytes"])


def cover(entries: list[Json], text: str) -> bool:
    """Say whether the tokens of log-probabilities are those of `text`; the last may go on."""
    data = text.encode()
    return bytes_of(entries).startswith(data) and len(bytes_of(entries[:-1])) < max(len(data), 1)


@pytest.mark.parametrize("seed", range(8))
@served(v4=True)
async def test_a_stop_string_is_searched_in_the_content_alone(server: Server, seed: int) -> None:
    random = Random(seed)
    reasoning, content = ("".join(random.choices(WORDS, k=6)) for _ in range(2))
    # Some end as if markup began.
    content += random.choice(["", "\n", "\n\n<", "d"])
    stops = random.sample(STOPS, random.randint(1, 3))
    server.engine.reply = f"{reasoning}</think>{content}{CALL if seed % 4 else ''}"
    server.engine.step = random.choice([1, 2, 5, 1000])
    body = {**HI, **TOOLS, "stop": stops, "n": 2, "logprobs": True}
    found = cut(content, stops)

    (answer, twin), tokens = await gathered(server, body)

    assert answer == twin
    assert answer.reasoning == reasoning
    if found is None:
        assert answer.content == content
        assert len(answer.calls) == (seed % 4 > 0)
        assert isinstance(answer.stop, int)
    else:
        assert (answer.content, answer.stop, answer.calls) == (*found, [])
        assert answer.finish == "stop"
        upto = f"{reasoning}</think>{''.join(found)}"
        assert tokens == 2 * tokens_up_to(server, upto)
    assert bytes_of(answer.logprobs["reasoning_content"]) == reasoning.encode()
    assert cover(answer.logprobs["content"], answer.content)

    assert await streamed(server, body) == ([answer, answer], tokens)
    for stream in (False, True):
        message, output_tokens = await anthropic(server, body, stream=stream)
        assert (message.reasoning, message.content) == (answer.reasoning, answer.content)
        assert message.calls == answer.calls
        assert output_tokens == tokens / 2
        ends = "tool_use" if answer.calls else "end_turn"
        assert message.finish == (ends if found is None else "stop_sequence")
        assert message.stop == (None if found is None else found[1])


@pytest.mark.parametrize("step", [1, 3, 1000])
@served(v4=True)
async def test_what_is_no_content_is_no_stop_string(server: Server, step: int) -> None:
    server.engine.reply, server.engine.step = f"a small\n\nwhy f</think>so{CALL}", step
    stops = ["\n\n", "\n", "small", "f", "invoke", "｜DSML｜", "</think>", "so\n\n<", "why fso"]
    body = {**HI, **TOOLS, "stop": stops}

    [answer], _ = await gathered(server, body)

    assert (answer.content, answer.reasoning) == ("so", "a small\n\nwhy f")
    assert answer.calls == [{"s": "a small\n\nword"}]
    assert answer.finish == "tool_calls"
    assert not server.engine.stopped
    assert (await streamed(server, body))[0] == [answer]
    for stream in (False, True):
        message, _ = await anthropic(server, body, stream=stream)
        assert (message.content, message.calls) == (answer.content, answer.calls)
        assert (message.finish, message.stop) == ("tool_use", None)


@pytest.mark.parametrize("stop", ["ell", "k>h", "think>", "why", "y</think"])
@served(v4=True)
async def test_reasoning_that_is_content_is_searched_with_its_end(
    server: Server, stop: str
) -> None:
    server.engine.reply = "why</think>hello"
    body = {**HI, "separate_reasoning": False, "stop": stop, "logprobs": True}

    [answer], _ = await gathered(server, body)

    assert (answer.content, answer.stop) == ("why</think>hello".partition(stop)[0], stop)
    assert answer.logprobs["reasoning_content"] == []
    assert cover(answer.logprobs["content"], answer.content)
    assert (await streamed(server, body))[0] == [answer]


@served(v4=True)
async def test_the_engine_is_stopped_where_the_content_ends(server: Server) -> None:
    server.engine.reply = "a stop</think>so. stop" + " and on" * 50

    for body in ({**HI, "stop": "stop"}, {**HI, **TOOLS, "stop": "stop"}):
        await gathered(server, body)
        await streamed(server, body)

    assert server.engine.stopped == [request.request_id for request in server.engine.requests]
    assert not server.engine.aborted


@served(v4=True)
async def test_a_stop_string_can_stay_in_the_content(server: Server) -> None:
    server.engine.reply = "so</think>and so\n\non"
    body = {**HI, **TOOLS, "stop": ["so", "so\n\n"], "no_stop_trim": True, "logprobs": True}

    [answer], _ = await gathered(server, body)

    assert (answer.content, answer.reasoning, answer.stop) == ("and so", "so", "so")
    assert bytes_of(answer.logprobs["content"]) == b"and so"
    assert (await streamed(server, body))[0] == [answer]


@served(v4=True)
async def test_a_stop_string_counts_from_the_least_number_of_tokens_on(server: Server) -> None:
    server.engine.reply = "why</think>a stop, then\n\nmore stop"
    least = tokens_up_to(server, "why</think>a stop, then\n")
    body = {**HI, **TOOLS, "min_tokens": least + 1}

    first, _ = await gathered(server, {**body, "stop": ["stop"]})
    # Whether "\n\n" is content turns out later than it is complete.
    second, tokens = await gathered(server, {**body, "stop": ["\n\n"]})

    assert first[0].content == "a stop, then\n\nmore "
    assert second[0].content == "a stop, then"
    assert tokens == least + 1


@served(v4=True)
async def test_tokens_come_with_their_text_where_a_stop_string_is_possible(server: Server) -> None:
    server.engine.reply, server.engine.step = "why</think>one\n\ntwo", 1
    body = {**HI, **TOOLS, "stop": ["\n\n"], "return_token_ids": True}

    whole = (await server.post(CHAT, body)).json()
    *chunks, _ = await server.events(CHAT, body)

    ids = [i for chunk in chunks for i in chunk["choices"][0].get("token_ids", [])]
    assert whole["choices"][0]["token_ids"] == ids
    assert server.engine.tokenizer.decode(ids, skip_special_tokens=False) == "why</think>one\n\n"
    assert whole["usage"]["completion_tokens"] == len(ids)


@served(v4=True)
async def test_log_probabilities_have_the_channel_of_their_text(server: Server) -> None:
    for step in (1, 4, 1000):
        server.engine.reply, server.engine.step = f"why é</think>so 你好{CALL}", step
        for top in (0, 2):
            body = {**HI, **TOOLS, "logprobs": True, "top_logprobs": top, "n": 2}

            answers, _ = await gathered(server, body)

            for choice in answers:
                assert (choice.content, choice.reasoning) == ("so 你好", "why é")
                content, reasoning = choice.logprobs.values()
                assert bytes_of(content) == choice.content.encode()
                assert bytes_of(reasoning) == choice.reasoning.encode()
                for entries in choice.logprobs.values():
                    assert {len(entry["top_logprobs"]) for entry in entries} == {top}
            assert (await streamed(server, body))[0] == answers


@served(v4=True)
async def test_without_reasoning_the_layout_is_openais(server: Server) -> None:
    body = {**HI, "reasoning_effort": "none", "logprobs": True}

    choice = (await server.post(CHAT, body)).json()["choices"][0]

    assert choice["logprobs"].keys() == {"content", "refusal"}
    assert choice["message"]["content"] == "hello"
    assert bytes_of(choice["logprobs"]["content"]) == b"hello"


@served(v4=True)
async def test_of_a_continued_answer_only_the_new_text_is_searched(server: Server) -> None:
    server.engine.reply = "to be continued, to be ended"
    begun = [*HI["messages"], {"role": "assistant", "content": "to be", "prefix": True}]
    body = {"messages": begun, "stop": "to be e", "reasoning_effort": "none", "logprobs": True}

    [answer], _ = await gathered(server, body)

    assert (answer.content, answer.stop) == ("to be continued, ", "to be e")
    assert (await streamed(server, body))[0] == [answer]


@served()
async def test_with_a_template_all_text_is_content(server: Server) -> None:
    server.engine.reply = "why</think>so\n\n<｜DSML｜ on"
    for stop in ("</think>", "\n\n", "｜DSML"):
        body = {**HI, "stop": stop, "logprobs": True}

        [answer], _ = await gathered(server, body)

        assert (answer.content, answer.stop) == (server.engine.reply.partition(stop)[0], stop)
        assert bytes_of(answer.logprobs["content"]) == answer.content.encode()
        assert (await streamed(server, body))[0] == [answer]


@pytest.mark.parametrize("path", ["/generate", "/v1/completions"])
@served(v4=True)
async def test_raw_text_is_searched_as_it_is(server: Server, path: str) -> None:
    server.engine.reply = f"why\n\nso</think>so{CALL}"
    sampling = {"sampling_params": {"stop": ["\n\n"], "max_new_tokens": 99}}
    body = {"text": "hi", **sampling, "prompt": "hi", "stop": ["\n\n"], "max_tokens": 99}
    fields = (
        ("text", "sampling_params") if path == "/generate" else ("prompt", "stop", "max_tokens")
    )

    reply = (await server.post(path, {name: body[name] for name in fields})).json()

    assert (reply["text"] if path == "/generate" else reply["choices"][0]["text"]) == "why"


@served(v4=True)
async def test_a_stop_string_is_not_in_the_next_turns_prompt(server: Server) -> None:
    page = "the same page again. " * 40
    server.engine.reply = f"why END</think>{page}END"

    [answer], _ = await gathered(server, {**HI, "stop": "END"})
    while len(server.engine.requests) < 2:
        await asyncio.sleep(0)

    assert (answer.content, answer.stop) == (page, "END")
    ids = unpack_ids(server.engine.requests[1].input_ids).tolist()
    text = server.engine.tokenizer.decode(ids, skip_special_tokens=False)
    assert page in text
    assert "END" not in text
