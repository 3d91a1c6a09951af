"""The caller is that of a task and of the tasks that it starts, and of no other."""

import asyncio

from runtime.server.caller import Caller, answering, caller
from runtime.share import Share


def test_tasks_answer_different_callers_at_once() -> None:
    async def told() -> str:
        await asyncio.sleep(0)
        return caller().share.name

    async def answer(name: str) -> list[str]:
        with answering(Caller(Share(name))):
            return [await told(), await asyncio.create_task(told())]

    async def scenario() -> list[list[str]]:
        return list(await asyncio.gather(answer("a"), answer("b")))

    assert asyncio.run(scenario()) == [["a", "a"], ["b", "b"]]
    assert caller() == Caller()
