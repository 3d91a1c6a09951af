"""Runs calls on the manager, one or many: gathered into answers, or merged into one stream."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, contextmanager, suppress
from dataclasses import dataclass, field

from runtime.chat.reasoning_counter import Counter
from runtime.errors import Aborted, BadRequest, RequestFailed
from runtime.packed_logprobs import PromptLogprobs, TokenLogprobs
from runtime.tokenizer.call import GenerateCall
from runtime.tokenizer.channel_text import TokenChannel
from runtime.tokenizer.choice import Delta, Finish
from runtime.tokenizer.manager import TokenizerManager
from runtime.tokenizer.stream import Bundle, ResponseStream

_MAX_RID_CHARS = 256


@dataclass(slots=True)
class Tally:
    """What usage is made of, for one choice.

    reasoning_tokens  of the completion's; None where nothing tells them apart
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int | None = None

    def count(self, delta: Delta) -> None:
        """Take over the counts. Raises RequestFailed where the choice failed in the engine."""
        self.prompt_tokens = max(self.prompt_tokens, delta.prompt_tokens)
        self.cached_tokens = max(self.cached_tokens, delta.cached_tokens)
        self.completion_tokens = max(self.completion_tokens, delta.completion_tokens)
        if delta.finish is not None and delta.finish.type == "error":
            raise RequestFailed(delta.finish.message or "the request failed")

    def count_reasoning(self, counter: Counter | None, token_ids: Sequence[int]) -> None:
        """Count which of the next tokens are reasoning; None: nothing tells them apart."""
        if counter is not None:
            counter.count(token_ids)
            self.reasoning_tokens = counter.tokens


@dataclass(slots=True)
class Answer(Tally):
    """What one choice has said so far."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish: Finish | None = None
    prompt_logprobs: PromptLogprobs | TokenLogprobs = field(default_factory=TokenLogprobs)
    logprobs: TokenLogprobs = field(default_factory=TokenLogprobs)
    channels: list[TokenChannel] = field(default_factory=list[TokenChannel])

    def add(self, delta: Delta) -> None:
        """Append news. Raises RequestFailed where the choice failed in the engine."""
        self.text += delta.text
        self.token_ids += delta.token_ids
        self.prompt_logprobs = delta.prompt_logprobs or self.prompt_logprobs
        self.logprobs.extend(delta.logprobs)
        self.channels += delta.channels
        self.finish = delta.finish or self.finish
        self.count(delta)


class Batches:
    """What a client's name for a batch means: the calls of its prompts, while they run."""

    def __init__(self) -> None:
        self._members: dict[str, list[str]] = {}

    def members(self, rid: str) -> list[str]:
        """Return the labels of the calls that `rid` means right now.

        A single call may have the name of a batch: it is meant as well.
        """
        return [*self._members.get(rid, ()), rid]

    @contextmanager
    def named(self, rid: str | None, calls: Sequence[GenerateCall]) -> Iterator[None]:
        """Let `rid` mean all of `calls`. Raises BadRequest where it is taken."""
        if rid is None or len(calls) < 2:
            yield
            return
        if rid in self._members:
            raise BadRequest("a request with this rid is running", param="rid")
        self._members[rid] = [call.rid for call in calls if call.rid is not None]
        try:
            yield
        finally:
            del self._members[rid]


def labels(rid: str | None, count: int) -> list[str | None]:
    """Return the label of each call of a request that a client named `rid`.

    Raises BadRequest for an endless name.
    """
    if rid is not None and not 1 <= len(rid) <= _MAX_RID_CHARS:
        raise BadRequest(f"rid must have 1 to {_MAX_RID_CHARS} characters", param="rid")
    if rid is None or count < 2:
        return [rid] * count
    return [f"{rid}_{k}" for k in range(count)]


async def gather(
    manager: TokenizerManager,
    calls: Sequence[GenerateCall],
    *,
    at_once: int | None = None,
    bundle: Bundle | None = None,
) -> list[list[Answer]]:
    """Return the finished answers, per call and choice.

    at_once  calls that are sent before others have finished; None: all
    bundle   of a request that the calls are a part of; None: they are all of it
    The first call that fails ends the others, and its RequestError is raised.
    """
    slots = asyncio.Semaphore(at_once or max(1, len(calls)))
    async with AsyncExitStack() as stack:
        bundle = bundle or _bundle(stack, manager, calls)
        streams = await _prepared(stack, manager, calls, bundle, at_once=at_once)
        tasks = [
            asyncio.ensure_future(_one(manager, call, slots, bundle, streams.get(number)))
            for number, call in enumerate(calls)
        ]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _one(
    manager: TokenizerManager,
    call: GenerateCall,
    slots: asyncio.Semaphore,
    bundle: Bundle | None,
    prepared: ResponseStream | None,
) -> list[Answer]:
    answers = [Answer() for _ in range(call.sampling.n)]
    async with slots, aclosing(prepared or manager.generate(call, bundle)) as stream:
        async for delta in await _started(call, stream, bundle):
            answers[delta.index].add(delta)
    return answers


def _bundle(
    stack: AsyncExitStack, manager: TokenizerManager, calls: Sequence[GenerateCall]
) -> Bundle | None:
    """Return the bundle of several calls, as long as `stack` lives."""
    if len(calls) < 2:
        return None
    return stack.enter_context(manager.under_way(call.rid for call in calls))


async def _prepared(
    stack: AsyncExitStack,
    manager: TokenizerManager,
    calls: Sequence[GenerateCall],
    bundle: Bundle | None,
    *,
    at_once: int | None,
) -> dict[int, ResponseStream]:
    """Return the streams, by number, of calls that are all sent at once; none of others.

    All are checked before the first is sent: where one is refused, nothing was computed for the
    others. They are closed with `stack`. Raises RequestError.
    """
    if at_once is not None or len(calls) < 2:
        return {}
    streams = [manager.generate(call, bundle) for call in calls]
    for stream in streams:
        stack.push_async_callback(stream.aclose)
    tasks = [asyncio.ensure_future(_prepare(stream)) for stream in streams]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return dict(enumerate(streams))


async def _prepare(stream: ResponseStream) -> None:
    # One of several that is aborted by now says so when it is started.
    with suppress(Aborted):
        await stream.prepare()


async def _started(
    call: GenerateCall, stream: ResponseStream, bundle: Bundle | None
) -> AsyncIterator[Delta]:
    """Send a call; return its deltas. Raises RequestError.

    One of several that was aborted before it was sent is no error: it has just that to say.
    """
    try:
        await stream.start()
        return aiter(stream)
    except Aborted as abort:
        if bundle is None:
            raise
        return _aborted(call.sampling.n, str(abort))


async def _aborted(choices: int, message: str) -> AsyncIterator[Delta]:
    for index in range(choices):
        yield Delta(index, "", [], Finish("abort", message=message), 0, 0, 0)


async def merge(
    manager: TokenizerManager, calls: Sequence[GenerateCall], *, at_once: int | None = None
) -> AsyncGenerator[tuple[int, Delta], None]:
    """Yield (number of the call, delta) as they come; closing it ends every call.

    at_once  calls that are sent before others have finished; None: all
    """
    async with AsyncExitStack() as stack:
        bundle = _bundle(stack, manager, calls)
        made = await _prepared(stack, manager, calls, bundle, at_once=at_once)

        async def start(number: int) -> AsyncIterator[Delta]:
            call = calls[number]
            stream = made.get(number) or manager.generate(call, bundle)
            stack.push_async_callback(stream.aclose)
            return await _started(call, stream, bundle)

        streams = [await start(number) for number in range(len(calls[:at_once]))]
        if len(calls) == 1:
            async for delta in streams[0]:
                yield 0, delta
            return
        waiting = {asyncio.ensure_future(_next(s)): k for k, s in enumerate(streams)}
        try:
            while waiting:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    number = waiting.pop(task)
                    delta = task.result()
                    if delta is not None:
                        waiting[asyncio.ensure_future(_next(streams[number]))] = number
                        yield number, delta
                    elif (number := len(streams)) < len(calls):
                        streams.append(await start(number))
                        waiting[asyncio.ensure_future(_next(streams[number]))] = number
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)


async def _next(deltas: AsyncIterator[Delta]) -> Delta | None:
    return await anext(deltas, None)
