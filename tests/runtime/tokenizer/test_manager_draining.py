"""The manager that drains: who may still finish, who is refused, and what is left in the end."""

import asyncio
from dataclasses import replace

import pytest

from runtime.errors import Unavailable
from runtime.messages import Abort, Generate, Output, Outputs, Shutdown
from runtime.tokenizer.choice import Finish
from tests.runtime.tokenizer.manager_rig import call, collect, run, running
from tests.testing.fake_scheduler import silent


def test_draining_lets_running_requests_finish() -> None:
    async def test() -> None:
        async with running(silent) as (manager, fake):
            reading = asyncio.create_task(collect(manager, call([1])))
            (sent,) = await fake.saw(Generate)
            draining = asyncio.create_task(manager.drain(60.0))
            await asyncio.sleep(0)

            with pytest.raises(Unavailable, match="shutting down"):
                await collect(manager, call([1]))
            fake.send(Outputs([Output(sent.request_id, token_ids=[1], finish="length")]))

            assert await draining == 0
            assert (await reading)[-1].finish == Finish("length")

    run(test)


def test_draining_waits_for_a_bundle_between_two_of_its_calls() -> None:
    async def test() -> None:
        async with running() as (manager, _):
            with manager.under_way() as bundle:
                draining = asyncio.create_task(manager.drain(60.0))
                await asyncio.sleep(0.01)
                assert not draining.done()

                deltas = [d async for d in manager.generate(call("text"), bundle)]
                assert deltas[-1].finish == Finish("length")
            assert await draining == 0
            with manager.under_way() as late, pytest.raises(Unavailable):
                await manager.generate(call([1]), late).start()

    run(test)


def test_nothing_more_of_a_bundle_is_sent_once_a_drain_is_over() -> None:
    async def test() -> None:
        async with running() as (manager, fake):
            with manager.under_way() as bundle:
                assert await manager.drain(0.01) == 0

                with pytest.raises(Unavailable):
                    await manager.generate(call([1]), bundle).start()
            assert not fake.of(Generate)

    run(test)


def test_a_closed_manager_ends_the_scheduler_and_refuses_what_wants_its_threads() -> None:
    async def test() -> None:
        async with running(silent) as (manager, fake):
            await manager.drain(0.0)
            manager.close()

            with pytest.raises(Unavailable, match="shutting down"):
                await manager.tokenize("a", add_special_tokens=True)
            assert await fake.saw(Shutdown) == [Shutdown()]

    run(test)


@pytest.mark.parametrize("stream", [True, False])
def test_what_does_not_finish_in_time_hears_that_the_server_ends(stream: bool) -> None:
    async def test() -> None:
        async with running(silent) as (manager, fake):
            deltas = manager.generate(replace(call([1], n=2), stream=stream))
            reading = asyncio.create_task(anext(deltas))
            sent = await fake.saw(Generate, 2)
            fake.send(Outputs([Output(sent[0].request_id, token_ids=[7])]))
            assert (await reading).token_ids == [7]
            fake.send(Outputs([Output(sent[1].request_id, token_ids=[8])]))
            await manager.state()

            assert await manager.drain(0.01) == 1
            assert (await anext(deltas)).token_ids == [8]
            with pytest.raises(Unavailable, match="the server is shutting down"):
                await anext(deltas)
            assert await fake.saw(Abort) == [Abort([one.request_id for one in sent])]

    run(test)
