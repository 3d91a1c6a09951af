"""The manager over real sockets: calls that run to their end, or are refused."""

import asyncio
import time
from typing import Any, cast

import pytest
from msgspec import structs

from runtime.cache_messages import GetCache
from runtime.config import ServerConfig
from runtime.errors import (
    BadRequest,
    BadSampling,
    PromptTooLong,
    QueueFull,
    RequestError,
    RequestFailed,
)
from runtime.ipc import ManagerSocket
from runtime.messages import (
    Abort,
    Flush,
    Generate,
    GetState,
    Output,
    Outputs,
    Refused,
    State,
    Stop,
    unpack_ids,
)
from runtime.profile_messages import StartProfile
from runtime.tokenizer.choice import Finish
from runtime.tokenizer.manager import GenerateCall, TokenizerManager
from runtime.tokenizer.tokenizer import TextTokenizer
from tests.runtime.tokenizer.manager_rig import BYTES, call, collect, run, running
from tests.testing.fake_scheduler import READY, silent


def test_a_prompt_streams_to_its_end() -> None:
    async def test() -> None:
        async with running() as (manager, fake):
            deltas = await collect(manager, call("abc"))

            assert "".join(d.text for d in deltas) == "\x00\x01\x02\x03"
            assert [i for d in deltas for i in d.token_ids] == [0, 1, 2, 3]
            assert deltas[-1].finish == Finish("length")
            assert all(d.finish is None for d in deltas[:-1])
            assert (deltas[-1].prompt_tokens, deltas[-1].completion_tokens) == (3, 4)
            (sent,) = fake.of(Generate)
            assert unpack_ids(sent.input_ids).tolist() == list(b"abc")
            assert (sent.sampling.seed, sent.traced) == (40, False)
            assert not fake.of(Abort)

    run(test)


def test_a_manager_that_is_behind_tells_of_several_tokens_at_once() -> None:
    async def test() -> None:
        async with running(silent) as (manager, fake):
            counts: list[int] = []
            # The sockets have threads of their own, which may need longer to carry it over.
            for pause_s in (0.1, 1.0, 10.0):
                stream = manager.generate(call([1], max_new_tokens=9))
                await stream.start()
                *_, sent = await fake.saw(Generate, len(counts) + 1)
                for number in range(8):
                    fake.send(Outputs([Output(sent.request_id, token_ids=[number])]))
                time.sleep(pause_s)  # the loop stands still meanwhile

                deltas = [await anext(stream)]
                fake.send(Outputs([Output(sent.request_id, token_ids=[8], finish="length")]))
                deltas += [delta async for delta in stream]

                assert [i for d in deltas for i in d.token_ids] == list(range(9))
                counts.append(len(deltas))
                if counts[-1] < 9:
                    break
            assert counts[-1] < 9, counts

    run(test)


def test_readers_have_a_turn_between_messages_however_many_wait() -> None:
    class Flood:
        """A socket in which a message always waits, so many times."""

        messages = 5

        async def receive(self) -> State:
            if self.messages == 0:
                raise asyncio.CancelledError
            self.messages -= 1
            return State(0, {}, {})

        def waiting(self) -> list[State]:
            return []

    async def test() -> None:
        flood, seen = Flood(), list[int]()
        socket = cast(ManagerSocket, flood)
        receiving = asyncio.create_task(
            TokenizerManager(ServerConfig(), BYTES, socket, READY).run()
        )
        while not receiving.done():
            await asyncio.sleep(0)
            seen.append(flood.messages)

        assert seen == [4, 3, 2, 1, 0, 0]

    run(test)


def test_many_calls_at_once_keep_apart() -> None:
    async def test() -> None:
        async with running() as (manager, _):
            results = await asyncio.gather(
                *(collect(manager, call([i], max_new_tokens=8)) for i in range(64))
            )
            for first, deltas in enumerate(results, start=1):
                tokens = [i for d in deltas for i in d.token_ids]
                assert tokens == [(first + k) % 100 for k in range(8)]

    run(test)


def test_each_choice_is_a_request_of_its_own() -> None:
    async def test() -> None:
        async with running() as (manager, fake):
            deltas = await collect(manager, call([5], n=3))

            for index in range(3):
                own = [d for d in deltas if d.index == index]
                assert [i for d in own for i in d.token_ids] == [6, 7, 8, 9]
                assert own[-1].finish == Finish("length")
            sent = fake.of(Generate)
            assert len({g.request_id for g in sent}) == 3
            assert len({g.sampling.seed for g in sent}) == 3

    run(test)


def test_a_stop_string_ends_the_request_as_finished_and_once() -> None:
    async def test() -> None:
        async with running(silent) as (manager, fake):
            stream = manager.generate(call("x", stop=("END",), max_new_tokens=50))
            await stream.start()
            (sent,) = await fake.saw(Generate)
            for token in b"go END and on":
                fake.send(Outputs([Output(sent.request_id, token_ids=[token])]))
            deltas = [delta async for delta in stream]

            assert "".join(d.text for d in deltas) == "go "
            assert deltas[-1].finish == Finish("stop", matched="END")
            assert deltas[-1].completion_tokens == 6
            assert await fake.saw(Stop) == [Stop([sent.request_id])]
            await stream.aclose()
            await manager.state()
            assert len(fake.of(Stop)) == 1
            assert fake.of(Abort) == []

    run(test)


def test_more_than_the_bound_in_flight_is_refused_before_anything_is_sent() -> None:
    async def test() -> None:
        async with running(silent, max_queued_requests=2, max_running_requests=2) as (
            manager,
            fake,
        ):
            async with manager.generate(call([1], n=3)):
                with pytest.raises(QueueFull) as refusal:
                    await manager.generate(call([1], n=2)).start()
                assert (refusal.value.status, refusal.value.retry_after_s) == (429, 1)
                async with manager.generate(call([1])):
                    assert manager.in_flight == 4
                with pytest.raises(QueueFull):
                    await collect(manager, call([1], n=2))
            async with manager.generate(call([1], n=4)):
                assert manager.in_flight == 4
            assert len(await fake.saw(Generate, 8)) == 8

    run(test)


def test_what_could_never_be_in_flight_is_no_matter_of_trying_again() -> None:
    async def test() -> None:
        async with running(max_queued_requests=1, max_running_requests=1) as (manager, fake):
            with pytest.raises(BadRequest, match="n must be at most 2") as refusal:
                await collect(manager, call([1], n=3))
            assert (refusal.value.status, refusal.value.param) == (400, "n")
            await manager.state()
            assert not fake.of(Generate)

    run(test)


@pytest.mark.parametrize(
    ("wanted", "kind"),
    [
        (call([]), BadRequest),
        (call([300]), BadRequest),
        (call([1] * 1025), PromptTooLong),
        (call([1], max_new_tokens=1024), PromptTooLong),
        (call([1], temperature=-1.0), BadSampling),
        (call([1], stop_token_ids=(300,)), BadSampling),
    ],
)
def test_bad_calls_are_refused_before_anything_is_sent(
    wanted: GenerateCall, kind: type[RequestError]
) -> None:
    async def test() -> None:
        async with running() as (manager, fake):
            with pytest.raises(kind):
                await collect(manager, wanted)
            assert manager.in_flight == 0
            await manager.state()
            assert not fake.of(Generate)

    run(test)


def test_a_live_label_cannot_be_taken_twice() -> None:
    async def test() -> None:
        async with running(silent) as (manager, _):
            async with manager.generate(call([1], rid="a")):
                with pytest.raises(BadRequest, match="rid"):
                    await manager.generate(call([1], rid="a")).start()
                assert await manager.abort("a") == 1
            async with manager.generate(call([1], rid="a")):
                pass

    run(test)


@pytest.mark.parametrize(
    ("reason", "kind"),
    [("too_long", PromptTooLong), ("queue_full", QueueFull), ("bad_request", BadRequest)],
)
def test_a_refusal_of_the_scheduler_is_raised(reason: Any, kind: type[RequestError]) -> None:
    def refuse_second(request: Generate) -> list[Refused]:
        return [Refused(request.request_id, reason, "why")] if request.sampling.seed != 40 else []

    async def test() -> None:
        async with running(refuse_second) as (manager, fake):
            with pytest.raises(kind, match="why"):
                await collect(manager, call([1], n=2))
            first = fake.of(Generate)[0]
            assert await fake.saw(Abort) == [Abort([first.request_id])]

    run(test)


def test_news_of_who_is_gone_and_a_second_greeting_change_nothing() -> None:
    async def test() -> None:
        async with running(silent) as (manager, fake):
            gone = 1 << 50
            fake.send(Outputs([Output(gone, token_ids=[1], finish="length")]))
            fake.send(Refused(gone, "too_long", "why"))
            fake.send(structs.replace(READY, context_tokens=7))

            assert (await manager.state()).counters == {"requests": 7.0}
            assert (manager.limits.context_tokens, manager.in_flight) == (1024, 0)

    run(test)


def test_a_failed_request_raises_after_its_news_and_harms_no_other() -> None:
    async def test() -> None:
        async with running(silent) as (manager, fake):
            bad, good = manager.generate(call([1])), manager.generate(call([2]))
            await bad.start()
            await good.start()
            first, second = await fake.saw(Generate, 2)
            failed = Output(first.request_id, token_ids=[97], finish="error", error="not finite")
            fine = Output(second.request_id, token_ids=[98], finish="length")
            fake.send(Outputs([failed, fine]))

            assert (await anext(bad)).text == "a"
            with pytest.raises(RequestFailed, match="not finite"):
                await anext(bad)
            with pytest.raises(StopAsyncIteration):
                await anext(bad)
            assert [d.text async for d in good] == ["b"]

    run(test)


def test_a_slow_reader_gets_everything_in_one_piece() -> None:
    async def test() -> None:
        async with running(silent) as (manager, fake):
            stream = manager.generate(call([1], max_new_tokens=500))
            await stream.start()
            (sent,) = await fake.saw(Generate)
            for number in range(500):
                last = "length" if number == 499 else None
                fake.send(Outputs([Output(sent.request_id, token_ids=[97], finish=last)]))
            while manager.in_flight:
                await asyncio.sleep(0.002)

            (delta,) = [delta async for delta in stream]
            assert delta.text == "a" * 500
            assert delta.completion_tokens == len(delta.token_ids) == 500

    run(test)


def test_a_reply_of_many_tokens_leaves_turns_to_others() -> None:
    async def test() -> None:
        async with running(silent) as (manager, fake):
            reading = asyncio.create_task(collect(manager, call([1], max_new_tokens=900)))
            (sent,) = await fake.saw(Generate)
            tokens = [97] * 20_000
            fake.send(Outputs([Output(sent.request_id, token_ids=tokens, finish="length")]))

            deltas = await reading

            assert "".join(d.text for d in deltas) == "a" * 20_000
            assert len(deltas) > 1

    run(test)


def test_questions_are_answered_and_heartbeats_noted() -> None:
    async def test() -> None:
        async with running() as (manager, fake):
            assert (await manager.flush_cache()).done
            assert (await manager.state()).counters == {"requests": 7.0}
            assert (await manager.cache(7, 2)).spans_left_out == 7
            wanted = StartProfile(0, steps=3)
            assert (await manager.start_profile(wanted)).file == "x.json.gz"
            assert (await manager.stop_profile()).done
            assert [m.steps for m in fake.of(StartProfile)] == [3]
            assert [m.replica for m in fake.of(GetCache)] == [2]
            assert len(fake.of(Flush)) == len(fake.of(GetState)) == 1

            fake.send(State(0, {"requests": 8.0}, {}))
            while manager.last_state is None or manager.last_state.counters["requests"] != 8.0:
                await asyncio.sleep(0.002)

    run(test)


def test_texts_are_tokenised_with_special_tokens_or_without() -> None:
    class Asked(TextTokenizer):
        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            return [len(text), add_special_tokens]

    async def test() -> None:
        async with running(tokenizer=Asked(None, {})) as (manager, _):
            assert await manager.tokenize("abc", add_special_tokens=True) == [3, True]
            assert await manager.tokenize("abc", add_special_tokens=False) == [3, False]

    run(test)


def test_a_checkpoint_without_tokenizer_serves_ids_and_refuses_text() -> None:
    async def test() -> None:
        async with running(tokenizer=TextTokenizer(None, {})) as (manager, _):
            deltas = await collect(manager, call([5]))
            assert [i for d in deltas for i in d.token_ids] == [6, 7, 8, 9]
            assert "".join(d.text for d in deltas) == ""
            with pytest.raises(BadRequest, match="no tokenizer"):
                await collect(manager, call("text"))
            with pytest.raises(BadRequest, match="no tokenizer"):
                await manager.tokenize("text", add_special_tokens=True)

    run(test)
