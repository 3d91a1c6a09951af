"""Which calls are taken: counted from when they are prepared, refused before anything is sent."""

import threading
from dataclasses import replace
from typing import ClassVar

import pytest

from runtime.errors import Aborted, BadRequest, QueueFull, Unavailable
from runtime.messages import Abort, Generate, Queued
from runtime.server.runs import gather, merge
from runtime.share import Share
from runtime.tokenizer.observer import Observer
from runtime.tokenizer.threads import LONG_CHARS
from runtime.tokenizer.tokenizer import TextTokenizer
from tests.runtime.tokenizer.manager_rig import call, collect, run, running
from tests.testing.fake_scheduler import silent


def test_a_prepared_call_counts_until_it_is_sent_or_left() -> None:
    async def test() -> None:
        async with running(silent, max_queued_requests=0, max_running_requests=2) as (
            manager,
            fake,
        ):
            stream = manager.generate(call([1], n=2))
            await stream.prepare()
            assert manager.in_flight == 2
            assert isinstance(manager.refusal_at_once(Share()), QueueFull)

            await stream.aclose()
            assert manager.in_flight == 0
            assert manager.refusal_at_once(Share()) is None
            await manager.state()
            assert not fake.of(Generate)

    run(test)


def test_long_texts_are_tokenised_in_threads_of_their_own() -> None:
    names: list[str] = []

    class Noting(TextTokenizer):
        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            names.append(threading.current_thread().name.split("_")[0])
            return [1]

    async def test() -> None:
        async with running(tokenizer=Noting(None, {})) as (manager, _):
            for text in ("x" * (LONG_CHARS - 1), "x" * LONG_CHARS):
                names.clear()
                await collect(manager, call(text))
                await manager.tokenize(text, add_special_tokens=True)
                assert {*names} == {"tokenise" if len(text) < LONG_CHARS else "tokenise-long"}

    run(test)


def test_who_cannot_be_taken_is_told_why_before_a_prompt_is_read() -> None:
    class Refusals(Observer):
        heard: ClassVar[list[str]] = []

        def refused(self, reason: str) -> None:
            self.heard.append(reason)

    async def test() -> None:
        async with running(silent) as (manager, _):
            manager.observer = Refusals()
            assert manager.refusal_at_once(Share()) is None
            await manager.drain(0.0)
            for why in ("the server is shutting down", "the engine died: by SIGKILL"):
                refusal = manager.refusal_at_once(Share())
                assert (type(refusal), str(refusal)) == (Unavailable, why)
                with pytest.raises(Unavailable, match=why):
                    await manager.generate(call([1])).prepare()
                manager.engine_died("by SIGKILL")
            assert Refusals.heard == ["Unavailable"] * 4

    run(test)


def test_a_call_that_is_aborted_between_its_checks_and_its_start_is_not_sent() -> None:
    async def test() -> None:
        async with running(silent) as (manager, fake):
            stream = manager.generate(call([1], rid="a"))
            await stream.prepare()
            assert await manager.abort("a") == 1
            with pytest.raises(Aborted, match="on request"):
                await stream.start()
            assert not manager._labels
            assert not manager._groups
            await manager.state()
            assert not fake.of(Generate)

    run(test)


def test_a_call_that_was_refused_is_refused_again_for_the_same_reason() -> None:
    async def test() -> None:
        async with running(silent) as (manager, _):
            stream = manager.generate(call([1], n=1 << 20))
            for hear in (stream.prepare, stream.start):
                with pytest.raises(BadRequest, match="n must be at most"):
                    await hear()

    run(test)


def test_a_batch_whose_last_prompt_is_bad_sends_nothing() -> None:
    async def test() -> None:
        async with running(silent) as (manager, fake):
            for bad in (call([]), call([1] * 2000), call([1, 1 << 20])):
                calls = [call([1], rid="a"), call("text"), bad]
                with pytest.raises(BadRequest):
                    await gather(manager, calls)
                with pytest.raises(BadRequest):
                    async for _ in merge(manager, calls):
                        pass
                assert manager.in_flight == 0
            await manager.state()
            assert not fake.of(Generate)

    run(test)


def test_a_batch_that_does_not_fit_into_the_queue_sends_nothing() -> None:
    async def test() -> None:
        async with running(silent, max_queued_requests=1, max_running_requests=2) as (
            manager,
            fake,
        ):
            with pytest.raises(QueueFull):
                await gather(manager, [call([k]) for k in range(4)])
            assert manager.in_flight == 0
            await manager.state()
            assert not fake.of(Generate)

    run(test)


def test_a_key_with_all_that_may_wait_and_run_is_refused_at_once_and_others_are_not() -> None:
    async def test() -> None:
        async with running(silent) as (manager, _):
            one = Share("one", max_running=1, max_queued=1)
            shared = replace(call([1], n=2), share=one)
            async with manager.generate(shared):
                refusal = manager.refusal_at_once(one)
                assert isinstance(refusal, QueueFull)
                assert "1 requests of this API key are waiting" in str(refusal)
                assert manager.refusal_at_once(Share("two", max_running=1, max_queued=1)) is None
            assert manager.refusal_at_once(one) is None

    run(test)


def test_tokens_beyond_what_may_wait_are_refused_while_the_scheduler_is_in_a_step() -> None:
    async def test() -> None:
        async with running(silent, max_running_requests=1, max_queued_tokens=10) as (manager, fake):
            async with manager.generate(call([1] * 50)):  # finds a row, however long
                await fake.saw(Generate)
                fake.send(Queued(received=1, tokens=0))
                await manager.state()
                async with manager.generate(call([1] * 10)) as second:
                    # The scheduler has not read it: it counts in whole.
                    assert isinstance(manager.refusal_at_once(Share()), QueueFull)
                    await fake.saw(Generate, 2)
                    fake.send(Queued(received=2, tokens=6))
                    await manager.state()
                    assert manager.refusal_at_once(Share()) is None
                    with pytest.raises(QueueFull, match="6 tokens are waiting, 6 more"):
                        await manager.generate(call([1] * 3, n=2)).prepare()
                    async with manager.generate(call([1] * 4)):
                        assert isinstance(manager.refusal_at_once(Share()), QueueFull)
                    await second.aclose()
            assert manager.refusal_at_once(Share()) is None
            assert len(await fake.saw(Generate, 3)) == 3

    run(test)


def test_calls_prepared_together_are_judged_again_as_they_are_sent() -> None:
    async def test() -> None:
        async with running(silent, max_running_requests=1, max_queued_tokens=10) as (manager, _):
            streams = [manager.generate(call([1] * 6)) for _ in range(2)]
            for stream in streams:
                await stream.prepare()
            async with streams[0]:
                with pytest.raises(QueueFull):
                    await streams[1].start()
            assert manager.in_flight == 0

    run(test)


def test_all_calls_are_aborted_in_the_order_in_which_they_came() -> None:
    async def test() -> None:
        async with running(silent) as (manager, fake):
            streams = [manager.generate(call([k], rid=f"r{k}")) for k in range(40)]
            for stream in streams:
                await stream.start()
            sent = [request.request_id for request in await fake.saw(Generate, len(streams))]

            assert await manager.abort(all=True) == len(streams)
            assert await fake.saw(Abort) == [Abort(sent)]
            for stream in streams:
                await stream.aclose()

    run(test)
