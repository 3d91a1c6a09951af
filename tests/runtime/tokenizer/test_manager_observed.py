"""What a manager's observer hears of calls, and of whom it hears nothing."""

import asyncio
from dataclasses import replace

import pytest
from msgspec import structs

from runtime.errors import BadRequest, PromptTooLong
from runtime.messages import Generate, Output, Outputs, Refused
from runtime.tokenizer.observer import ChoiceEnd, Observer, Stage
from tests.runtime.tokenizer.manager_rig import call, collect, run, running
from tests.testing.fake_scheduler import silent


class Heard(Observer):
    """Keeps what it hears."""

    traced = True

    def __init__(self) -> None:
        self.events: list[object] = []

    def of_call(self, label: str | None, *, started_s: float) -> Observer:
        self.events.append((label, started_s))
        return self

    def stage(self, stage: Stage, seconds: float) -> None:
        self.events.append((stage, seconds))

    def begun(self, index: int, first: Output) -> None:
        self.events.append((index, first.token_ids))

    def first_token(self, seconds: float) -> None:
        self.events.append(seconds)

    def inter_token(self, seconds: float, tokens: int) -> None:
        self.events.append((seconds, tokens))

    def finished(self, end: ChoiceEnd) -> None:
        self.events.append(end)

    def refused(self, reason: str) -> None:
        self.events.append(reason)


def test_it_hears_how_long_everything_took() -> None:
    async def test() -> None:
        now_s = 100.0
        async with running(silent, clock=lambda: now_s) as (manager, fake):
            manager.observer = heard = Heard()
            by_text = manager.generate(call([1, 2], rid="a", stop=("Z",), max_new_tokens=9))
            now_s = 101.0
            await by_text.start()
            by_count = manager.generate(call([1]))
            await by_count.start()
            first, second = await fake.saw(Generate, 2)
            assert first.traced
            begins = [("a", 100.0), ("tokenize", 1.0), (None, 101.0), ("tokenize", 0.0)]
            assert heard.events == begins
            heard.events.clear()

            news = Output(first.request_id, [97], queue_s=0.25, prefill_s=0.5)
            counted = structs.replace(news, prompt_tokens=2, cached_tokens=1)
            for at_s, item in (
                (103.0, counted),
                (107.0, Output(first.request_id, [97, 97])),
                (108.0, Output(first.request_id, [90])),
            ):
                now_s = at_s
                fake.send(Outputs([item]))
                await anext(by_text)
            end = Output(second.request_id, [5, 6], finish="length", decode_s=1.5, prompt_tokens=1)
            fake.send(Outputs([end]))
            await anext(by_count)

            assert heard.events == [
                *((0, [97]), ("prefill_waiting", 0.25), ("prefill_forward", 0.5)),
                *(3.0, (2.0, 2), (1.0, 1)),
                ChoiceEnd("stop", 0, 8.0, 5.0, 2, 1, 4),
                *((0, [5, 6]), ("prefill_waiting", 0.0), ("prefill_forward", 0.0), 7.0),
                ChoiceEnd("length", 0, 7.0, 1.5, 1, 0, 2),
            ]

    run(test)


def test_it_hears_of_refusals_and_not_of_calls_that_are_no_clients() -> None:
    async def test() -> None:
        async with running(silent, clock=lambda: 5.0) as (manager, fake):
            manager.observer = heard = Heard()
            with pytest.raises(BadRequest):
                await collect(manager, call([]))
            async with manager.generate(replace(call([1]), measured=False)):
                pass

            assert heard.events == [(None, 5.0), "BadRequest"]
            refused = asyncio.create_task(collect(manager, call([1])))
            _, sent = await fake.saw(Generate, 2)
            fake.send(Refused(sent.request_id, "too_long", "why"))
            with pytest.raises(PromptTooLong):
                await refused
            assert heard.events[2:] == [(None, 5.0), ("tokenize", 0.0), "PromptTooLong"]

    run(test)
