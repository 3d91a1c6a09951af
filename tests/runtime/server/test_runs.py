"""Tests of runtime.server.runs."""

import asyncio

import pytest

from runtime.errors import BadRequest, PromptTooLong, RequestFailed
from runtime.sampling import SamplingSpec
from runtime.server.runs import Answer, Batches, gather, labels, merge
from runtime.tokenizer.call import GenerateCall
from runtime.tokenizer.choice import Delta, Finish
from tests.runtime.server.engine import CONTEXT_TOKENS, Server, served


def call(text: str, n: int = 1) -> GenerateCall:
    return GenerateCall(SamplingSpec(n=n, max_new_tokens=3), text=text)


@served()
async def test_gathered_answers_keep_their_order(server: Server) -> None:
    answers = await gather(server.manager, [call("a", 2), call("bcd")])

    assert [[a.text for a in choices] for choices in answers] == [["hel", "hel"], ["hel"]]
    assert [choices[0].prompt_tokens for choices in answers] == [1, 3]


@served()
async def test_so_many_calls_run_at_once_and_no_more(server: Server) -> None:
    most = 0

    async def look() -> None:
        nonlocal most
        while True:
            most = max(most, server.manager.in_flight)
            await asyncio.sleep(0)

    looking = asyncio.ensure_future(look())
    answers = await gather(server.manager, [call("a", 2)] * 7, at_once=2)
    looking.cancel()

    assert len(answers) == 7
    assert most == 4


@served()
async def test_one_refused_call_ends_the_others(server: Server) -> None:
    server.engine.hold.clear()

    with pytest.raises(PromptTooLong):
        await gather(server.manager, [call("a"), call("x" * CONTEXT_TOKENS), call("b")])

    assert server.manager.in_flight == 0
    assert len(server.engine.aborted) == len(server.engine.requests)


@served()
async def test_closing_a_merged_stream_ends_every_call(server: Server) -> None:
    server.engine.hold.clear()
    merged = merge(server.manager, [call("a"), call("b", 2)])
    await anext(merged)

    await merged.aclose()

    assert server.manager.in_flight == 0
    assert len(server.engine.aborted) == 3


@served()
async def test_merged_streams_give_every_token_of_every_call(server: Server) -> None:
    answers = [[Answer() for _ in range(n)] for n in (1, 2, 3)]

    async for number, delta in merge(server.manager, [call("a"), call("b", 2), call("c", 3)]):
        answers[number][delta.index].add(delta)

    assert {a.text for choices in answers for a in choices} == {"hel"}
    assert all(a.finish for choices in answers for a in choices)


@served()
async def test_one_failing_call_breaks_a_merged_stream(server: Server) -> None:
    server.engine.fail = "broke"

    async def read() -> None:
        async for _, delta in merge(server.manager, [call("a"), call("b")]):
            Answer().add(delta)

    with pytest.raises(RequestFailed, match="broke"):
        await read()

    await asyncio.sleep(0)
    assert server.manager.in_flight == 0


def test_a_failed_delta_raises() -> None:
    delta = Delta(0, "", [], Finish("error", message="broke"), 1, 0, 0)

    with pytest.raises(RequestFailed, match="broke"):
        Answer().add(delta)


def test_labels_number_the_calls_of_a_batch() -> None:
    assert labels(None, 2) == [None, None]
    assert labels("r", 1) == ["r"]
    assert labels("r", 3) == ["r_0", "r_1", "r_2"]
    for rid in ("", "r" * 257):
        with pytest.raises(BadRequest):
            labels(rid, 1)


def test_a_batch_is_known_by_its_name_while_it_runs() -> None:
    batches = Batches()
    calls = [GenerateCall(SamplingSpec(), text="x", rid=rid) for rid in ("r_0", "r_1")]

    with batches.named("r", calls):
        assert batches.members("r") == ["r_0", "r_1", "r"]
        assert batches.members("other") == ["other"]
        with pytest.raises(BadRequest), batches.named("r", calls):
            pass
        assert batches.members("r") == ["r_0", "r_1", "r"]
    assert batches.members("r") == ["r"]
