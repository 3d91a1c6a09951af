"""Tests of runtime.server.runs."""

import asyncio

import pytest

from runtime.errors import BadRequest, PromptTooLong, RequestFailed, Unavailable
from runtime.sampling import SamplingSpec
from runtime.server.runs import Answer, Batches, gather, labels, merge
from runtime.server.service import Service
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


async def finishes(server: Server, how: str, calls: list[GenerateCall]) -> list[str]:
    """Return how each of `calls` ends, of which one at a time is sent."""
    if how == "gather":
        answers = [each[0] for each in await gather(server.manager, calls, at_once=1)]
    else:
        answers = [Answer() for _ in calls]
        async for number, delta in merge(server.manager, calls, at_once=1):
            answers[number].add(delta)
    return [answer.finish.type for answer in answers if answer.finish is not None]


async def begun(server: Server, how: str, calls: list[GenerateCall]) -> "asyncio.Task[list[str]]":
    """Return what `finishes` when it waits for its first call."""
    server.engine.hold.clear()
    work = asyncio.ensure_future(finishes(server, how, calls))
    while not server.engine.requests:
        await asyncio.sleep(0)
    return work


@pytest.mark.parametrize("how", ["gather", "merge"])
@served()
async def test_a_batch_that_runs_is_sent_whole_while_the_server_drains(
    server: Server, how: str
) -> None:
    work = await begun(server, how, [call("a"), call("b"), call("c")])
    draining = asyncio.ensure_future(server.manager.drain(60.0))
    await asyncio.sleep(0)
    with pytest.raises(Unavailable):
        await gather(server.manager, [call("a"), call("b")])
    server.engine.hold.set()

    assert await work == ["length"] * 3
    assert await draining == 0


@pytest.mark.parametrize("how", ["gather", "merge"])
@served()
async def test_nothing_more_of_a_batch_is_sent_once_a_drain_is_over(
    server: Server, how: str
) -> None:
    work = await begun(server, how, [call("a"), call("b")])

    assert await server.manager.drain(0.01) == 1

    with pytest.raises(Unavailable):
        await work
    assert len(server.engine.requests) == 1


@pytest.mark.parametrize("how", ["gather", "merge"])
@pytest.mark.parametrize("rid", ["r", None])
@served()
async def test_an_abort_reaches_the_calls_of_a_batch_that_are_not_sent_yet(
    server: Server, how: str, rid: str | None
) -> None:
    names = labels(rid, 4)
    calls = [GenerateCall(SamplingSpec(), text="a", rid=name) for name in names]
    service: Service = server.app.state.service
    with service.batches.named(rid, calls):
        work = await begun(server, how, calls)

        assert await service.abort(rid, all=rid is None) == 4

        assert await work == ["abort"] * 4
    assert len(server.engine.requests) == 1


@pytest.mark.parametrize("how", ["gather", "merge"])
@served()
async def test_one_call_of_a_batch_can_be_aborted_before_it_is_sent(
    server: Server, how: str
) -> None:
    calls = [GenerateCall(SamplingSpec(max_new_tokens=3), text="a", rid=r) for r in "xyz"]
    work = await begun(server, how, calls)

    assert await server.manager.abort("y") == 1
    server.engine.hold.set()

    assert await work == ["length", "abort", "length"]


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
