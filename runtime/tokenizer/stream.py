"""The stream of one generation: deltas of its choices, and the ownership of its requests.

Who leaves a stream (by `aclose`, the end of `async with`, cancellation, an exception, or by
dropping the last reference) ends every choice that still runs, exactly once. Nothing else is
needed when a client goes away.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Iterable
from typing import Protocol

from runtime.errors import (
    Aborted,
    BadRequest,
    GrammarError,
    PromptTooLong,
    QueueFull,
    RequestError,
    TimedOut,
    Unavailable,
)
from runtime.messages import Generate, Refused, State
from runtime.tokenizer.call import GenerateCall
from runtime.tokenizer.choice import Choice, Delta
from runtime.tokenizer.observer import Observer


class Bundle:
    """The calls of one request, of which some are sent after others; those can be aborted, too.

    labels  of the calls, as far as they are known beforehand
    """

    def __init__(self, labels: Iterable[str | None] = ()) -> None:
        self._unsent = Counter(labels)
        self._dropped: set[str | None] = set()
        self._ended = False

    def abort(self, label: str | None) -> int:
        """Let the calls of this label never be sent; return how many there are. None: none."""
        count = self._unsent.pop(label, 0) if label is not None else 0
        if count:
            self._dropped.add(label)
        return count

    def abort_all(self) -> int:
        """Let nothing more be sent; return how many calls that were, as far as they are known."""
        count, self._ended = self._unsent.total(), True
        self._unsent.clear()
        return count

    def sending(self, label: str | None) -> None:
        """Take note of a call that is sent. Raises Aborted where it may not be."""
        if self._ended or label in self._dropped:
            raise Aborted("aborted on request")
        if self._unsent[label] > 1:
            self._unsent[label] -= 1
        else:
            del self._unsent[label]


class Group:
    """The choices of one call, shared by the manager (who feeds) and the stream (who reads).

    label      the client's own name for the call
    choices    empty until the prompt is tokenised and sent
    error      raised to the reader after the news that came before it
    left       the reader is gone, or everything has ended
    started_s  clock reading when the call came in
    observer   hears of it
    bundle     what the call is one of
    share      name of the share that it belongs to
    prepared   its requests, from when they are checked until they are sent
    arriving   how many of its requests are counted, but not sent
    """

    def __init__(
        self,
        label: str | None,
        *,
        started_s: float,
        observer: Observer,
        bundle: Bundle | None = None,
    ) -> None:
        self.label = label
        self.observer = observer
        self.bundle = bundle
        self.started_s = started_s
        self.share = ""
        self.prepared: list[Generate] = []
        self.arriving = 0
        self.choices: list[Choice] = []
        self.error: RequestError | None = None
        self.left = False
        self._news: dict[int, Choice] = {}
        self._waiter: asyncio.Future[None] | None = None

    def notify(self, choice: Choice | None = None) -> None:
        """Tell the reader that `choice` has news, or that `error` was set."""
        if choice is not None:
            self._news[choice.index] = choice
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def running(self) -> list[Choice]:
        """Choices that have not ended."""
        return [choice for choice in self.choices if choice.finish is None]

    @property
    def ended(self) -> bool:
        """Whether it was sent and nothing of it runs any more."""
        return bool(self.choices) and not self.running

    async def next(self) -> Delta | None:
        """Wait for news, oldest first; None at the end. Raises `error`."""
        while True:
            if self._news:
                return self._news.pop(next(iter(self._news))).take()
            if self.error is not None:
                raise self.error
            if self.left or not self.running:
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None


def refusal_of(message: Refused) -> RequestError:
    """Return what to raise for a request that the scheduler did not take."""
    match message.reason:
        case "too_long":
            return PromptTooLong(message.message)
        case "queue_full":
            return QueueFull(message.message, retry_after_s=message.retry_after_s or 1)
        case "queue_timeout":
            return Unavailable(message.message, retry_after_s=message.retry_after_s)
        case "timeout":
            return TimedOut(message.message)
        case "bad_request":
            return BadRequest(message.message)
        case "grammar":
            return GrammarError(message.message, param=message.param)


def queue_full(in_flight: int, state: State | None) -> QueueFull:
    """Return what to raise for a call beyond the queue's bound; `state` is the last heartbeat."""
    text = f"{in_flight} requests are waiting or running: try again later"
    return QueueFull(text, retry_after_s=_retry_after_s(state))


def tokens_full(waiting: int, tokens: int, most: int, state: State | None) -> QueueFull:
    """Return what to raise for a call whose tokens exceed the bound on those that wait."""
    text = f"{waiting} tokens are waiting, {tokens} more would exceed {most}"
    return QueueFull(text, retry_after_s=_retry_after_s(state))


def share_full(waiting: int, state: State | None) -> QueueFull:
    """Return what to raise for a call beyond the bound of its share."""
    text = f"{waiting} requests of this API key are waiting, which is its limit"
    return QueueFull(text, retry_after_s=_retry_after_s(state))


def _retry_after_s(state: State | None) -> int:
    return 1 if state is None else max(1, math.ceil(state.queue_s))


class Owner(Protocol):
    """What a stream needs of the manager."""

    async def prepare(self, call: GenerateCall, group: Group) -> None:
        """Count, tokenise and check the call. Raises RequestError."""
        ...

    def send(self, call: GenerateCall, group: Group) -> None:
        """Send the prepared call. Raises RequestError."""
        ...

    def leave(self, group: Group) -> None:
        """End what still runs; does nothing the second time."""
        ...


class ResponseStream:
    """Async iterator over the deltas of one call; has one reader.

    Nothing happens before `start`, `async with` or the first step of the iteration.
    """

    def __init__(self, owner: Owner, call: GenerateCall, group: Group) -> None:
        self._owner = owner
        self._call: GenerateCall | None = call
        self._group = group
        self._is_prepared = False
        self._refusal: RequestError | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def prepare(self) -> None:
        """Have the call counted, tokenised and checked, once; nothing is sent.

        Raises what `start` raises, which then raises it again.
        """
        if self._call is None or self._is_prepared:
            return
        self._loop = asyncio.get_running_loop()
        self._is_prepared = True
        try:
            await self._owner.prepare(self._call, self._group)
        except BaseException as fault:
            self._refusal = fault if isinstance(fault, RequestError) else None
            self._owner.leave(self._group)
            raise

    async def start(self) -> None:
        """Send the call to the engine, once; the way to hear of a refusal before any output.

        Raises BadRequest, PromptTooLong, QueueFull, Unavailable or Aborted.
        """
        if self._call is None:
            return
        await self.prepare()
        call, self._call = self._call, None
        if self._refusal is not None:
            raise self._refusal
        try:
            self._owner.send(call, self._group)
        except BaseException:
            self._owner.leave(self._group)
            raise

    async def aclose(self) -> None:
        """Leave the stream: abort every choice that has not ended."""
        self._owner.leave(self._group)

    def __aiter__(self) -> "ResponseStream":
        return self

    async def __anext__(self) -> Delta:
        if self._call is not None:
            await self.start()
        if self._group.left:
            raise StopAsyncIteration
        try:
            delta = await self._group.next()
        except BaseException:
            self._owner.leave(self._group)
            raise
        if delta is None:
            self._owner.leave(self._group)
            raise StopAsyncIteration
        return delta

    async def __aenter__(self) -> "ResponseStream":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        if self._loop is None or self._group.left or self._loop.is_closed():
            return
        # Garbage may be collected in any thread; the manager lives in the loop's.
        self._loop.call_soon_threadsafe(self._owner.leave, self._group)
