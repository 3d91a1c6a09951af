"""Tests of runtime.server.loop_turns."""

import asyncio

from runtime.server.loop_turns import own_turn


async def _turns_of(count: int, *, cancelled: tuple[int, ...] = ()) -> list[int]:
    """Return in which turn each of `count` tasks that come at once goes on."""
    turn, gone_on = 0, dict[int, int]()

    async def go_on(nth: int) -> None:
        await own_turn()
        gone_on[nth] = turn

    tasks = [asyncio.create_task(go_on(nth)) for nth in range(count)]
    await asyncio.sleep(0)
    for nth in cancelled:
        tasks[nth].cancel()
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        turn += 1
    return [gone_on[nth] for nth in range(count) if nth in gone_on]


def test_who_comes_at_once_goes_on_one_after_the_other_a_turn_each() -> None:
    turns = asyncio.run(_turns_of(5))

    assert turns == list(range(turns[0], turns[0] + 5))


def test_who_leaves_the_line_holds_up_nobody() -> None:
    turns = asyncio.run(_turns_of(5, cancelled=(0, 2)))

    assert turns == list(range(turns[0], turns[0] + 3))


def test_a_loop_that_ended_with_a_line_leaves_none_to_the_next() -> None:
    async def leave() -> None:
        for _ in range(3):
            asyncio.get_running_loop().create_task(own_turn())
        await asyncio.sleep(0)

    asyncio.run(leave())

    assert len(asyncio.run(_turns_of(2))) == 2


def test_later_ones_find_an_empty_line() -> None:
    async def twice() -> list[list[int]]:
        return [await _turns_of(2), await _turns_of(3)]

    assert [len(turns) for turns in asyncio.run(twice())] == [2, 3]
