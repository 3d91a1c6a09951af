"""Tests of runtime.server.next_turn: what is prefilled after an answer, and when not."""

import asyncio
from typing import Any

import pytest

from runtime.chat.chat_prompt import ChatPrompt
from runtime.config import ServerConfig
from runtime.messages import Generate, unpack_ids
from runtime.server.next_turn import LEAST_PRIORITY, drops_reasoning
from tests.runtime.chat.conversations import encoder
from tests.runtime.chat.families import FAMILIES, end_id, family_tokenizer
from tests.runtime.server.engine import Server, served, tokenised

PATH = "/v1/chat/completions"
HI: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "reasoning_effort": "low"}
TOOLS: dict[str, Any] = {"tools": [{"type": "function", "function": {"name": "f"}}]}
LONG = "the same page again. " * 40
OFF = ServerConfig(model_path="/m", disable_next_turn_prefill=True)
NO_CACHE = ServerConfig(model_path="/m", disable_radix_cache=True)
ONE_ROW = ServerConfig(model_path="/m", max_running_requests=1)


def ids_of(request: Generate) -> list[int]:
    return [int(i) for i in unpack_ids(request.input_ids)]


async def ahead(server: Server) -> Generate:
    """Return the request that follows the first one."""
    while len(server.engine.requests) < 2:
        await asyncio.sleep(0)
    return server.engine.requests[1]


async def settled(server: Server) -> None:
    """Wait for what runs in the background."""
    await asyncio.gather(*server.app.state.service.next_turn._tasks)


@pytest.mark.parametrize("stream", [False, True])
@served(v4=True)
async def test_the_next_prompts_beginning_is_prefilled(server: Server, stream: bool) -> None:
    server.engine.reply = f"why</think>{LONG}"

    body = {**HI, "stream": stream, "cache_salt": "mine"}
    await server.post(PATH, body)

    first, warm = server.engine.requests[0], await ahead(server)
    answer = {"role": "assistant", "content": LONG}
    messages = [*HI["messages"], answer, {"role": "user", "content": "more"}]
    then = encoder().encode({**HI, "messages": messages}).token_ids
    assert ids_of(warm) == then[: len(ids_of(warm))]
    assert len(then) - len(ids_of(warm)) < 8
    assert (warm.sampling.max_new_tokens, warm.priority) == (0, LEAST_PRIORITY)
    assert warm.namespace == first.namespace
    assert (first.background, warm.background) == (False, True)


@served(v4=True)
async def test_a_long_next_turn_keeps_no_short_text_waiting(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = tokenised(server, monkeypatch)
    server.engine.reply = f"why</think>{LONG}"

    await server.post(PATH, HI)
    await settled(server)

    told, ahead = asked[0], next(chars for chars in asked[1:] if chars)
    assert told < 10
    assert len(LONG) < ahead < len(LONG) + 100


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat mode": (LONG, {"reasoning_effort": "none"}),
    "no reasoning": (f"</think>{LONG}", {}),
    "a short answer": ("why</think>yes", {}),
    "an answer cut off": (f"why</think>{LONG}", {"max_tokens": 200}),
    "several choices": (f"why</think>{LONG}", {"n": 2}),
    "tools keep reasoning": (f"why</think>{LONG}", TOOLS),
}


@pytest.mark.parametrize("name", CASES)
@served(v4=True)
async def test_nothing_is_prefilled_where_it_would_not_help(server: Server, name: str) -> None:
    server.engine.reply, fields = CASES[name]

    await server.post(PATH, {**HI, **fields})

    await settled(server)
    assert len(server.engine.requests) == fields.get("n", 1)


@pytest.mark.parametrize("config", [OFF, NO_CACHE], ids=["flag", "no cache"])
def test_it_can_be_turned_off(config: ServerConfig) -> None:
    @served(config, v4=True)
    async def scenario(server: Server) -> None:
        server.engine.reply = f"why</think>{LONG}"
        await server.post(PATH, HI)
        await server.post(PATH, HI)
        assert len(server.engine.requests) == 2

    scenario()


@served(v4=True)
async def test_a_flush_ends_what_is_prefilled_ahead(server: Server) -> None:
    server.engine.reply = f"why</think>{LONG}"
    server.engine.free = 1
    server.engine.hold.clear()
    await server.post(PATH, HI)
    warm = await ahead(server)

    reply = await server.post("/flush_cache", None)

    assert reply.status_code == 200, reply.text
    assert server.engine.aborted == [warm.request_id]


@served(v4=True)
async def test_it_is_not_measured_as_a_request(server: Server) -> None:
    server.engine.reply = f"why</think>{LONG}"
    await server.post(PATH, HI)
    await ahead(server)
    await settled(server)

    metrics = (await server.client.get("/metrics")).text

    counted = [x for x in metrics.splitlines() if x.startswith("umbra:choices_finished_total{")]
    assert sum(float(line.rpartition(" ")[2]) for line in counted) == 1


@served(ONE_ROW, v4=True)
async def test_a_busy_server_is_left_alone(server: Server) -> None:
    server.engine.reply = f"why</think>{LONG}"
    server.manager._arriving += 1  # as if another request took the only row
    await server.post(PATH, HI)
    await settled(server)
    server.manager._arriving -= 1

    assert len(server.engine.requests) == 1


def test_with_tools_it_depends_on_the_clients_history() -> None:
    prompt = ChatPrompt([], thinking=True, reasoning=True, tools={})
    answer = {"role": "assistant", "content": "C"}
    kept = {**answer, "reasoning_content": "R"}
    user = {"role": "user", "content": "U"}

    assert drops_reasoning({"messages": [user, answer, user]}, prompt)
    assert not drops_reasoning({"messages": [user, kept, user]}, prompt)
    assert not drops_reasoning({"messages": [user]}, prompt)


QWEN = family_tokenizer("qwen3")


@served(template=FAMILIES["qwen3"][0], family=(QWEN, end_id("qwen3")))
async def test_the_next_prompts_beginning_by_a_template_is_prefilled(server: Server) -> None:
    server.engine.reply = f"<think>\nwhy\n</think>\n\n{LONG}"

    reply = await server.post(PATH, HI)

    warm = await ahead(server)
    said = reply.json()["choices"][0]["message"]["content"]
    answer = {"role": "assistant", "content": said}
    messages = [*HI["messages"], answer, {"role": "user", "content": "more"}]
    rendered = await server.post("/tokenize", {"messages": messages})
    then = rendered.json()["tokens"]
    assert ids_of(warm) == then[: len(ids_of(warm))]
    # The user's text, the end of the turn, and the opening of the next.
    tail = "more<|im_end|>\n<|im_start|>assistant\n"
    assert len(then) - len(ids_of(warm)) == len(QWEN.encode(tail).ids)
    assert (warm.sampling.max_new_tokens, warm.background) == (0, True)


@pytest.mark.parametrize("effort", ["none", "low"])
@served(template=FAMILIES["qwen3"][0], family=(QWEN, end_id("qwen3")))
async def test_an_answer_without_reasoning_is_prefilled_where_its_prompt_changes(
    server: Server, effort: str
) -> None:
    server.engine.reply = LONG

    await server.post(PATH, {**HI, "reasoning_effort": effort})

    await settled(server)
    first, *more = server.engine.requests
    empty = QWEN.encode("<think>\n\n</think>\n\n").ids
    assert (ids_of(first)[-len(empty) :] == empty) == (effort == "none")
    answered = QWEN.encode(f"{LONG}<|im_end|>\n<|im_start|>user\n").ids
    # Where the next prompt repeats all of it, nothing is to be done.
    ahead = [[*ids_of(first)[: -len(empty)], *answered]] if effort == "none" else []
    assert [ids_of(warm) for warm in more] == ahead
