"""Questions to the scheduler that it answers between two steps."""

import asyncio
from collections.abc import Callable, Iterator
from typing import TypeVar

from msgspec.structs import replace

from runtime.cache_messages import CacheView, GetCache
from runtime.errors import Unavailable
from runtime.ipc import ManagerSocket
from runtime.messages import Flush, Flushed, GetState, State
from runtime.profile_messages import Profiled, StartProfile, StopProfile

Question = Flush | GetState | GetCache | StartProfile | StopProfile
AnyAnswer = Flushed | State | CacheView | Profiled
Answer = TypeVar("Answer", Flushed, State, CacheView, Profiled)


class Questions:
    """Sends questions, and hands each answer to whoever asked. Of one event loop."""

    def __init__(self, socket: ManagerSocket, ids: Iterator[int]) -> None:
        """Ask over `socket`; `ids` are used by nothing else."""
        self._socket = socket
        self._ids = ids
        self._open: dict[int, asyncio.Future[AnyAnswer]] = {}
        self._gone: Unavailable | None = None

    async def ask(self, question: Callable[[int], Question], answer: type[Answer]) -> Answer:
        """Return the answer to what `question` makes of an id.

        Raises Unavailable where none will come.
        """
        if self._gone is not None:
            raise self._gone
        call_id = next(self._ids)
        future = asyncio.get_running_loop().create_future()
        self._open[call_id] = future
        try:
            self._socket.send(question(call_id))
            reply = await future
        finally:
            del self._open[call_id]
        assert isinstance(reply, answer)
        return reply

    def answered(self, message: AnyAnswer) -> None:
        """Take in an answer; who asked may have gone."""
        future = self._open.get(message.call_id)
        if future is not None and not future.done():
            future.set_result(message)

    def fail(self, gone: Unavailable) -> None:
        """Tell all who wait, and who asks from now on, why there will be no answer."""
        self._gone = gone
        for future in self._open.values():
            if not future.done():
                future.set_exception(gone)


class Asking:
    """What a manager asks the scheduler for its callers. All raise Unavailable."""

    _questions: Questions

    async def flush_cache(self) -> Flushed:
        """Empty the prefix cache; the answer says whether it was."""
        return await self._questions.ask(Flush, Flushed)

    async def state(self) -> State:
        """Ask the scheduler for its counters and gauges."""
        return await self._questions.ask(GetState, State)

    async def cache(self, max_spans: int, replica: int) -> CacheView:
        """Ask the scheduler for a replica's cache, between two steps."""
        return await self._questions.ask(
            lambda call_id: GetCache(call_id, max_spans, replica), CacheView
        )

    async def start_profile(self, wanted: StartProfile) -> Profiled:
        """Have steps traced; the `call_id` of `wanted` is replaced."""
        return await self._questions.ask(lambda call_id: replace(wanted, call_id=call_id), Profiled)

    async def stop_profile(self) -> Profiled:
        """End the profile; the answer comes when its file is written."""
        return await self._questions.ask(StopProfile, Profiled)
