"""The manager when somebody goes: the reader, the operator, or the engine."""

import asyncio
import contextlib
from dataclasses import replace

import pytest

from runtime.errors import (
    Aborted,
    RequestFailed,
    Unavailable,
)
from runtime.messages import (
    Abort,
    Generate,
    Output,
    Outputs,
    TokenLogprobs,
)
from runtime.tokenizer.choice import Finish
from runtime.tokenizer.observer import ChoiceEnd, Observer
from tests.runtime.tokenizer.manager_rig import call, collect, run, running
from tests.testing.fake_scheduler import silent


class Ends(Observer):
    """Keeps why choices ended."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def finished(self, end: ChoiceEnd) -> None:
        self.reasons.append(end.reason)


@pytest.mark.parametrize("how", ["aclose", "with", "cancel", "error", "drop"])
@pytest.mark.parametrize("tokens", [0, 1, 3])
def test_leaving_aborts_every_unfinished_choice_once(how: str, tokens: int) -> None:
    async def test() -> None:
        async with running(silent) as (manager, fake):
            entered = asyncio.Event()
            leave = asyncio.Event()

            async def read() -> None:
                stream = manager.generate(call([1], n=2, max_new_tokens=9, rid="label"))
                await stream.start()
                seen = 0
                while seen < tokens:
                    seen += len((await anext(stream)).token_ids)
                entered.set()
                match how:
                    case "aclose":
                        await leave.wait()
                        await stream.aclose()
                    case "with":
                        async with stream:
                            await leave.wait()
                    case "cancel":
                        await anext(stream)
                    case "error":
                        await leave.wait()
                        async with stream:
                            raise ZeroDivisionError
                    case _:
                        await leave.wait()

            reading = asyncio.create_task(read())
            first, second = await fake.saw(Generate, 2)
            for number in range(tokens):
                fake.send(Outputs([Output(first.request_id, token_ids=[number])]))
            await entered.wait()
            leave.set()
            if how == "cancel":
                await asyncio.sleep(0.01)
                reading.cancel()
            with contextlib.suppress(asyncio.CancelledError, ZeroDivisionError):
                await reading

            assert await fake.saw(Abort) == [Abort([first.request_id, second.request_id])]
            fake.send(Outputs([Output(first.request_id, token_ids=[7])]))  # too late: ignored
            await manager.state()
            assert len(fake.of(Abort)) == 1
            await manager.generate(call([1], rid="label")).aclose()  # the label is free again

    run(test)


def test_a_stream_that_is_never_read_is_aborted_before_it_fills_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("runtime.tokenizer.choice.MOST_UNREAD_ENTRIES", 100)
    told = TokenLogprobs([-1.0] * 10, [97] * 10, [[(-1.0, 97)] * 4] * 10)

    async def test() -> None:
        async with running(silent) as (manager, fake):
            manager.observer = observed = Ends()
            stream = manager.generate(call([1], max_new_tokens=500, n=2))
            await stream.start()
            first, second = await fake.saw(Generate, 2)
            fake.send(Outputs([Output(first.request_id, token_ids=[97] * 10, logprobs=told)]))
            assert len((await anext(stream)).token_ids) == 10
            for _ in range(3):
                fake.send(Outputs([Output(first.request_id, token_ids=[97] * 10, logprobs=told)]))

            [abort] = await fake.saw(Abort)
            assert sorted(abort.request_ids) == sorted([first.request_id, second.request_id])
            assert manager.in_flight == 0
            with pytest.raises(Aborted, match="not read"):
                _ = [delta async for delta in stream]
            assert observed.reasons == ["unread", "unread"]

    run(test)


def test_leaving_aborts_only_what_still_runs() -> None:
    async def test() -> None:
        async with running(silent) as (manager, fake):
            async with manager.generate(call([1], n=2)) as stream:
                first, second = await fake.saw(Generate, 2)
                fake.send(Outputs([Output(first.request_id, token_ids=[1], finish="length")]))
                assert (await anext(stream)).finish == Finish("length")

            assert await fake.saw(Abort) == [Abort([second.request_id])]

    run(test)


def test_leaving_before_the_prompt_is_tokenised_sends_nothing() -> None:
    async def test() -> None:
        async with running(silent) as (manager, fake):
            starting = asyncio.create_task(manager.generate(call("long " * 50, rid="a")).start())
            await asyncio.sleep(0)
            assert manager.in_flight == 1
            starting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await starting

            await manager.state()
            assert not fake.of(Generate)
            assert not fake.of(Abort)

    run(test)


def test_a_stream_closed_by_another_task_while_its_prompt_is_tokenised_sends_nothing() -> None:
    async def test() -> None:
        async with running(silent) as (manager, fake):
            stream = manager.generate(call("long " * 50, rid="a"))
            starting = asyncio.create_task(stream.start())
            await asyncio.sleep(0)
            assert manager.in_flight == 1
            await stream.aclose()

            with pytest.raises(Aborted, match="closed before it was sent"):
                await starting
            await manager.state()
            assert not fake.of(Generate)
            assert manager.in_flight == 0

    run(test)


@pytest.mark.parametrize("by_label", [True, False])
def test_a_call_aborted_while_its_prompt_is_tokenised_is_not_sent(by_label: bool) -> None:
    async def test() -> None:
        async with running(silent) as (manager, fake):
            stream = manager.generate(call("long " * 50, rid="a"))
            starting = asyncio.create_task(stream.start())
            await asyncio.sleep(0)
            assert manager.in_flight == 1

            assert await (manager.abort("a") if by_label else manager.abort(all=True)) == 1
            with pytest.raises(Aborted, match="aborted on request"):
                await starting
            await manager.state()
            assert not fake.of(Generate)

    run(test)


def test_a_stream_that_is_never_read_costs_nothing() -> None:
    async def test() -> None:
        async with running(silent) as (manager, fake):
            manager.generate(call([1], rid="a"))
            assert manager.in_flight == 0
            await manager.state()
            assert not fake.of(Generate)

    run(test)


def test_abort_goes_by_the_exact_label() -> None:
    async def test() -> None:
        async with running(silent) as (manager, fake):
            one = manager.generate(call([1], n=2, rid="job"))
            other = manager.generate(call([1], rid="job-2"))
            await one.start()
            await other.start()
            sent = await fake.saw(Generate, 3)

            assert await manager.abort("jo") == 0
            assert await manager.abort("job") == 1
            assert await manager.abort("job") == 0

            deltas = [delta async for delta in one]
            assert [d.finish and d.finish.type for d in deltas] == ["abort", "abort"]
            assert await fake.saw(Abort) == [Abort([sent[0].request_id, sent[1].request_id])]
            assert manager.in_flight == 1
            assert await manager.abort(all=True) == 1
            assert [d.finish and d.finish.type async for d in other] == ["abort"]

    run(test)


def test_an_aborted_call_that_does_not_stream_gets_what_the_scheduler_kept_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("runtime.tokenizer.manager._LAST_WORDS_S", 20.0)

    async def test() -> None:
        async with running(silent) as (manager, fake):
            reading = asyncio.create_task(collect(manager, replace(call([1]), stream=False)))
            (sent,) = await fake.saw(Generate)
            ending = asyncio.create_task(manager.abort(all=True))
            await fake.saw(Abort)
            kept = Output(sent.request_id, token_ids=[7, 8], finish="abort", error="on request")
            fake.send(Outputs([kept]))

            assert await ending == 1
            (delta,) = await reading
            assert (delta.token_ids, delta.completion_tokens) == ([7, 8], 2)
            assert delta.finish == Finish("abort", message="on request")

    run(test)


def test_a_scheduler_that_says_nothing_holds_up_no_abort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.tokenizer.manager._LAST_WORDS_S", 0.01)

    async def test() -> None:
        async with running(silent) as (manager, fake):
            reading = asyncio.create_task(collect(manager, replace(call([1]), stream=False)))
            await fake.saw(Generate)

            assert await manager.abort(all=True) == 1
            assert [d.finish and d.finish.type for d in await reading] == ["abort"]

    run(test)


def test_an_abort_of_all_ends_streams_before_it_waits_for_last_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("runtime.tokenizer.manager._LAST_WORDS_S", 5.0)

    async def test() -> None:
        async with running(silent) as (manager, fake):
            kept = asyncio.create_task(collect(manager, replace(call([1]), stream=False)))
            (sent,) = await fake.saw(Generate)
            streaming = asyncio.create_task(collect(manager, call([1])))
            await fake.saw(Generate, 2)
            ending = asyncio.create_task(manager.abort(all=True))

            assert [d.finish and d.finish.type for d in await streaming] == ["abort"]
            assert not ending.done()
            fake.send(Outputs([Output(sent.request_id, finish="abort")]))
            assert await ending == 2
            await kept
            assert not manager._groups

    run(test)


def test_a_dead_engine_fails_everybody_and_refuses_new_calls() -> None:
    async def test() -> None:
        async with running(silent) as (manager, fake):
            reading = asyncio.create_task(collect(manager, call([1])))
            await fake.saw(Generate)
            asking = asyncio.create_task(manager.flush_cache())
            await asyncio.sleep(0)

            manager.engine_died("the scheduler was killed by SIGKILL", retry_after_s=7)
            manager.engine_died("only the first reason counts", retry_after_s=9)

            with pytest.raises(Unavailable, match=r"the engine died: .* SIGKILL"):
                await reading
            for refused in (collect(manager, call([1])), manager.state(), manager.flush_cache()):
                with pytest.raises(Unavailable, match="by SIGKILL") as raised:
                    await refused
                assert raised.value.retry_after_s == 7
            with contextlib.suppress(Unavailable):
                await asking

    run(test)


def test_who_has_not_read_of_a_failure_yet_hears_of_that_and_not_of_a_death_after_it() -> None:
    async def test() -> None:
        async with running(silent) as (manager, fake):
            stream = manager.generate(call([1], n=2))
            await stream.start()
            first, _ = await fake.saw(Generate, 2)
            fake.send(Outputs([Output(first.request_id, finish="error", error="no number")]))
            await manager.state()

            manager.engine_died("it was killed")

            with pytest.raises(RequestFailed, match="no number"):
                _ = [delta async for delta in stream]

    run(test)


@pytest.mark.parametrize("how", ["death", "drain"])
def test_a_call_that_has_ended_hears_nothing_of_what_comes_after(how: str) -> None:
    async def test() -> None:
        async with running(silent) as (manager, fake):
            ended, other = manager.generate(call([1])), manager.generate(call([2]))
            await ended.start()
            await other.start()
            first, _ = await fake.saw(Generate, 2)
            fake.send(Outputs([Output(first.request_id, token_ids=[7], finish="length")]))
            await manager.state()

            if how == "death":
                manager.engine_died("it was killed")
            else:
                assert await manager.drain(0.0) == 1

            assert [delta.finish async for delta in ended] == [Finish("length")]
            with pytest.raises(Unavailable):
                await anext(other)

    run(test)
