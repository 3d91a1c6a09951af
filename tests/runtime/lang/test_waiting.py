"""Tests of runtime.lang.waiting."""

import asyncio
from concurrent.futures import Future

import pytest

from runtime.lang.waiting import arrival


def test_a_result_arrives_in_any_loop() -> None:
    async def scenario() -> tuple[int, int]:
        late: Future[int] = Future()
        done: Future[int] = Future()
        done.set_result(1)
        asyncio.get_running_loop().call_soon(late.set_result, 2)
        return await arrival(done), await arrival(late)

    assert asyncio.run(scenario()) == (1, 2)


def test_an_error_arrives_as_itself() -> None:
    async def scenario() -> None:
        late: Future[int] = Future()
        asyncio.get_running_loop().call_soon(late.set_exception, ValueError("no"))
        await arrival(late)

    with pytest.raises(ValueError, match="no"):
        asyncio.run(scenario())


def test_giving_up_leaves_the_future_to_others() -> None:
    future: Future[int] = Future()

    async def scenario() -> None:
        task = asyncio.ensure_future(arrival(future))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    future.set_result(3)

    assert future.result() == 3
