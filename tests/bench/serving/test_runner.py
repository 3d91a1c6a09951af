"""Who is sent when: conversations in order, trees at once, no more in flight than allowed."""

import asyncio
from collections.abc import Sequence

import pytest

from tests.bench.serving.client import Client
from tests.bench.serving.dialects import make_dialect
from tests.bench.serving.fake_server import FakeServer, fake_server
from tests.bench.serving.prompt import Asked
from tests.bench.serving.runner import Arrival, Runner
from tests.bench.serving.summary import ideal_hits
from tests.bench.serving.workload import Call, Workload

CONVERSATION = [Call([5, 6], 3, system=[1, 2]), Call([7], 3, parent=0), Call([8], 3, parent=1)]


def play(
    calls: Sequence[Call], arrival: Arrival, *, api: str = "generate", tells_ids: bool = True,
    refuse: int = 0,
) -> tuple[FakeServer, list[Asked]]:  # fmt: skip
    """Run `calls` against a fake server."""

    async def scenario() -> tuple[FakeServer, list[Asked]]:
        async with asyncio.timeout(60), fake_server() as server, Client(server.url) as client:
            server.tells_ids, server.refuse = tells_ids, refuse
            runner = Runner(client, make_dialect(api, "fake"))
            return server, await runner.run(Workload("w", calls), arrival)

    return asyncio.run(scenario())


def test_a_turn_goes_on_from_the_answer_before_it() -> None:
    server, asked = play(CONVERSATION, Arrival())

    answer = [100, 101, 102]
    assert [body["input_ids"] for body in server.bodies] == [
        [1, 2, 5, 6],
        [1, 2, 5, 6, *answer, 7],
        [1, 2, 5, 6, *answer, 7, *answer, 8],
    ]
    assert ideal_hits(asked) == [0, 7, 11]


def test_without_ids_other_ids_stand_for_the_answer_and_no_cache_could_know_them() -> None:
    server, asked = play(CONVERSATION, Arrival(), api="completions", tells_ids=False)

    assert [len(body["prompt"]) for body in server.bodies] == [4, 8, 12]
    assert ideal_hits(asked) == [0, 4, 8]


def test_a_chat_repeats_the_text_of_the_answer() -> None:
    server, asked = play(CONVERSATION, Arrival(), api="chat")

    assert server.bodies[1]["messages"][2] == {"role": "assistant", "content": "w0 w1 w2 "}
    assert ideal_hits(asked) == [0, 7, 11]


def test_branches_are_sent_at_once() -> None:
    calls = [Call([1], 40), *(Call([2], 40, parent=0) for _ in range(6))]

    server, _ = play(calls, Arrival())

    assert server.most_in_flight > 1
    assert len(server.bodies) == 7


def test_no_more_begin_than_may_be_in_flight() -> None:
    calls = [Call([k], 20) for k in range(9)]

    server, asked = play(calls, Arrival(concurrency=2))

    assert server.most_in_flight <= 2
    assert len(asked) == 9


@pytest.mark.parametrize("rate", [None, 400.0])
def test_everything_is_sent_at_any_rate(rate: float | None) -> None:
    _, asked = play([Call([k], 2) for k in range(9)], Arrival(rate=rate))

    assert sorted(one.prompt.ids[0] for one in asked) == list(range(9))


def test_nothing_goes_on_from_a_failure() -> None:
    server, asked = play(CONVERSATION, Arrival(), refuse=500)

    assert len(server.bodies) == len(asked) == 1
    assert asked[0].outcome.error is not None
