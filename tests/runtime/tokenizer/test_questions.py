"""Tests of runtime.tokenizer.questions: who asks hears the answer to it, or why there is none."""

import asyncio
import itertools
from typing import Any, cast

import pytest

from runtime.errors import Unavailable
from runtime.ipc import ManagerSocket
from runtime.messages import Flush, Flushed, GetState, State
from runtime.tokenizer.questions import Questions


class Sent(list[Any]):
    """A socket that keeps what is sent."""

    def send(self, message: Any) -> None:
        self.append(message)


def make() -> tuple[Questions, Sent]:
    sent = Sent()
    return Questions(cast(ManagerSocket, sent), itertools.count(7)), sent


def test_answers_go_to_who_asked_in_whatever_order_they_come() -> None:
    async def test() -> None:
        questions, sent = make()
        flushed = asyncio.ensure_future(questions.ask(Flush, Flushed))
        state = asyncio.ensure_future(questions.ask(GetState, State))
        await asyncio.sleep(0)
        assert [message.call_id for message in sent] == [7, 8]

        questions.answered(State(8, {"a": 1.0}, {}))
        questions.answered(Flushed(7, done=True, message=""))
        questions.answered(Flushed(9, done=True, message=""))

        assert (await flushed).done
        assert (await state).counters == {"a": 1.0}

    asyncio.run(test())


def test_who_no_longer_waits_is_not_told() -> None:
    async def test() -> None:
        questions, _ = make()
        asking = asyncio.ensure_future(questions.ask(GetState, State))
        await asyncio.sleep(0)
        asking.cancel()
        questions.answered(State(7, {}, {}))
        with pytest.raises(asyncio.CancelledError):
            await asking
        questions.answered(State(7, {}, {}))

    asyncio.run(test())


def test_all_are_told_why_there_is_no_answer_then_and_later() -> None:
    async def test() -> None:
        questions, sent = make()
        asking = [asyncio.ensure_future(questions.ask(GetState, State)) for _ in range(3)]
        await asyncio.sleep(0)

        questions.answered(State(9, {}, {}))
        questions.fail(Unavailable("the engine died: why"))

        *asking, answered = asking
        assert (await answered).call_id == 9
        for waiting in asking:
            with pytest.raises(Unavailable, match="died: why"):
                await waiting
        with pytest.raises(Unavailable, match="died: why"):
            await questions.ask(GetState, State)
        assert len(sent) == 3

    asyncio.run(test())
