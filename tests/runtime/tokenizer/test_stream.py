"""Who reads, who owns, and who is told when the reader leaves."""

import asyncio
import contextlib
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

from runtime.errors import (
    Aborted,
    BadRequest,
    GrammarError,
    PromptTooLong,
    QueueFull,
    RequestError,
    RequestFailed,
    TimedOut,
    Unavailable,
)
from runtime.messages import Output, RefusalReason, Refused, State
from runtime.sampling import SamplingSpec
from runtime.tokenizer.call import GenerateCall
from runtime.tokenizer.choice import Choice, ChoiceText
from runtime.tokenizer.detokenizer import Detokenizer
from runtime.tokenizer.observer import Observer
from runtime.tokenizer.stream import (
    Bundle,
    Group,
    ResponseStream,
    queue_full,
    refusal_of,
    share_full,
    tokens_full,
)

CALL = GenerateCall(SamplingSpec(n=2), input_ids=[1])


def choice(index: int) -> Choice:
    """Return a choice without text."""
    text = ChoiceText(Detokenizer(None, frozenset()), None, min_new_tokens=0, trim=True)
    return Choice(index, 100 + index, text, trim=True)


class Owner:
    """A manager that admits at once, or when told to, and notes who leaves."""

    def __init__(self) -> None:
        self.left: list[Group] = []
        self.threads: list[int] = []
        self.may_admit = asyncio.Event()
        self.may_admit.set()
        self.refusal: Unavailable | None = None

    async def prepare(self, call: GenerateCall, group: Group) -> None:
        """Wait until it may be admitted."""
        await self.may_admit.wait()
        if self.refusal is not None:
            raise self.refusal

    def send(self, call: GenerateCall, group: Group) -> None:
        """Give the group two choices."""
        group.choices = [choice(0), choice(1)]

    def leave(self, group: Group) -> None:
        """Note the call."""
        if not group.left:
            group.left = True
            group.notify()
            self.left.append(group)
            self.threads.append(threading.get_ident())


def run(test: Callable[[Owner, Group], Any]) -> None:
    """Run a test's coroutine with a fresh owner and group."""

    async def main() -> None:
        async with asyncio.timeout(60):
            await test(Owner(), Group(None, started_s=0.0, observer=Observer()))

    asyncio.run(main())


def say(group: Group, index: int, *tokens: int, end: bool = False) -> None:
    """Feed a choice and tell the reader."""
    subject = group.choices[index]
    subject.feed(Output(0, token_ids=list(tokens), finish="length" if end else None))
    group.notify(subject)


def test_news_of_the_choices_come_in_turn() -> None:
    async def test(owner: Owner, group: Group) -> None:
        stream = ResponseStream(owner, CALL, group)
        await stream.start()
        say(group, 1, 5)
        say(group, 0, 6)
        say(group, 1, 7)

        first, second = await anext(stream), await anext(stream)

        assert (first.index, first.token_ids) == (1, [5, 7])
        assert (second.index, second.token_ids) == (0, [6])
        await stream.aclose()

    run(test)


def test_a_waiting_reader_is_woken() -> None:
    async def test(owner: Owner, group: Group) -> None:
        stream = ResponseStream(owner, CALL, group)
        reading = asyncio.create_task(anext(stream))  # type: ignore[arg-type]
        await asyncio.sleep(0.01)
        say(group, 0, 1)

        assert (await reading).token_ids == [1]
        await stream.aclose()

    run(test)


def test_the_stream_ends_with_its_last_choice_and_stays_ended() -> None:
    async def test(owner: Owner, group: Group) -> None:
        stream = ResponseStream(owner, CALL, group)
        await stream.start()
        say(group, 0, 1, end=True)
        say(group, 1, 2, end=True)

        assert [d.index async for d in stream] == [0, 1]
        assert owner.left == [group]
        assert [d async for d in stream] == []

    run(test)


def test_an_error_comes_after_the_news_before_it() -> None:
    async def test(owner: Owner, group: Group) -> None:
        stream = ResponseStream(owner, CALL, group)
        await stream.start()
        say(group, 0, 1)
        group.error = RequestFailed("why")
        group.notify()

        assert (await anext(stream)).token_ids == [1]
        with pytest.raises(RequestFailed, match="why"):
            await anext(stream)
        assert owner.left == [group]

    run(test)


def test_a_refused_call_has_left() -> None:
    async def test(owner: Owner, group: Group) -> None:
        owner.refusal = Unavailable("no")
        with pytest.raises(Unavailable):
            async with ResponseStream(owner, CALL, group):
                pass

        assert owner.left == [group]

    run(test)


@pytest.mark.parametrize("phase", ["admission", "waiting"])
def test_cancelling_the_reader_is_leaving(phase: str) -> None:
    async def test(owner: Owner, group: Group) -> None:
        if phase == "admission":
            owner.may_admit.clear()
        stream = ResponseStream(owner, CALL, group)
        reading = asyncio.create_task(anext(stream))  # type: ignore[arg-type]
        await asyncio.sleep(0.01)
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading

        assert owner.left == [group]

    run(test)


def test_closing_ends_the_wait_of_a_reader() -> None:
    async def test(owner: Owner, group: Group) -> None:
        stream = ResponseStream(owner, CALL, group)
        reading = asyncio.create_task(anext(stream, None))  # type: ignore[arg-type]
        await asyncio.sleep(0.01)
        await stream.aclose()

        assert await reading is None
        assert owner.left == [group]

    run(test)


def test_dropping_the_last_reference_is_leaving() -> None:
    async def test(owner: Owner, group: Group) -> None:
        stream = ResponseStream(owner, CALL, group)
        await stream.start()
        del stream
        gc.collect()
        await asyncio.sleep(0)

        assert owner.left == [group]

    run(test)


def test_garbage_collected_in_another_thread_leaves_in_the_loop() -> None:
    async def test(owner: Owner, group: Group) -> None:
        held = [ResponseStream(owner, CALL, group)]
        await held[0].start()
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
        await asyncio.sleep(0.01)

        assert owner.left == [group]
        assert owner.threads == [threading.get_ident()]

    run(test)


def test_a_stream_that_was_never_started_has_nothing_to_leave() -> None:
    async def test(owner: Owner, group: Group) -> None:
        stream = ResponseStream(owner, CALL, group)
        del stream
        gc.collect()
        await asyncio.sleep(0)

        assert owner.left == []

    run(test)


def test_a_stream_that_outlives_its_loop_is_dropped_quietly() -> None:
    held: list[ResponseStream] = []

    async def test(owner: Owner, group: Group) -> None:
        held.append(ResponseStream(owner, CALL, group))
        await held[0].start()

    run(test)
    held.clear()
    gc.collect()


def test_what_is_not_sent_yet_of_a_bundle_can_be_aborted_by_name() -> None:
    bundle = Bundle(["a", "b", "c", None])
    bundle.sending("a")

    assert [bundle.abort(name) for name in ("a", "b", "b", "other", None)] == [0, 1, 0, 0, 0]
    with pytest.raises(Aborted):
        bundle.sending("b")
    bundle.sending("c")
    bundle.sending(None)


def test_nothing_more_is_sent_of_a_bundle_that_was_aborted() -> None:
    bundle = Bundle([None, None, None, "a"])
    for _ in range(2):
        bundle.sending(None)

    assert [bundle.abort_all(), bundle.abort_all()] == [2, 0]
    for name in (None, "a", "never announced"):
        with pytest.raises(Aborted):
            bundle.sending(name)


REFUSALS: list[tuple[RefusalReason, type[RequestError], dict[str, object]]] = [
    ("too_long", PromptTooLong, {"param": "prompt"}),
    ("queue_full", QueueFull, {"retry_after_s": 9}),
    ("queue_timeout", Unavailable, {"retry_after_s": 9}),
    ("timeout", TimedOut, {}),
    ("bad_request", BadRequest, {"param": None}),
    ("grammar", GrammarError, {"param": "regex"}),
]


@pytest.mark.parametrize(("reason", "kind", "facts"), REFUSALS)
def test_a_refusal_says_what_the_scheduler_said(
    reason: RefusalReason, kind: type[RequestError], facts: dict[str, object]
) -> None:
    error = refusal_of(Refused(1, reason, "why", "regex", 9))

    assert (type(error), error.message) == (kind, "why")
    assert {name: getattr(error, name) for name in facts} == facts
    assert getattr(refusal_of(Refused(1, "queue_full", "")), "retry_after_s", None) == 1


@pytest.mark.parametrize(("queue_s", "wait_s"), [(None, 1), (0.0, 1), (2.1, 3)])
def test_who_finds_no_room_hears_how_much_there_is_and_when_to_come_again(
    queue_s: float | None, wait_s: int
) -> None:
    state = None if queue_s is None else State(0, {}, {}, queue_s=queue_s)

    refusals = (queue_full(5, state), tokens_full(6, 7, 8, state), share_full(9, state))

    assert [refusal.retry_after_s for refusal in refusals] == [wait_s] * 3
    assert [refusal.message.split(":")[0] for refusal in refusals] == [
        "5 requests are waiting or running",
        "6 tokens are waiting, 7 more would exceed 8",
        "9 requests of this API key are waiting, which is its limit",
    ]
