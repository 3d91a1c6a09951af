"""What each request of an engine took from the cache, beside the most that it could have taken."""

from dataclasses import dataclass, field
from typing import Any

from runtime.engine.engine import Engine
from runtime.messages import Generate, Output, Outputs, unpack_ids


@dataclass(slots=True)
class Entry:
    """One request.

    ids     of its prompt
    ideal   tokens of it that earlier requests have computed
    cached  tokens of it that came from the cache
    output  what it has written so far
    """

    ids: list[int]
    ideal: int
    cached: int = 0
    output: list[int] = field(default_factory=list[int])

    @property
    def computed(self) -> list[int]:
        """The tokens whose positions are computed: the last of the output is not."""
        return self.ids + self.output[:-1]


class CacheLedger:
    """Listens to what an engine sends to its scheduler and hears from it.

    entries  of all requests since `clear`, in the order in which they were sent
    """

    def __init__(self, engine: Engine) -> None:
        self.entries: list[Entry] = []
        self._running: dict[int, Entry] = {}
        manager: Any = engine._service.manager
        self._socket, self._deliver = manager._socket, manager._receive
        manager._socket, manager._receive = self, self._receive

    def clear(self) -> None:
        """Forget all requests: the cache was emptied."""
        self.entries.clear()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def send(self, message: Any) -> None:
        """Pass a message on to the scheduler."""
        if isinstance(message, Generate):
            self._running[message.request_id] = entry = self._entry(message)
            self.entries.append(entry)
        self._socket.send(message)

    def _entry(self, request: Generate) -> Entry:
        ids = [int(i) for i in unpack_ids(request.input_ids)]
        most = len(ids) if request.sampling.max_new_tokens == 0 else len(ids) - 1
        if request.logprobs is not None and request.logprobs.start >= 0:
            most = min(most, request.logprobs.start)
        common = (_common(ids, entry.computed) for entry in self.entries)
        return Entry(ids, min(most, max(common, default=0)))

    async def _receive(self, message: Any) -> None:
        for item in message.items if isinstance(message, Outputs) else ():
            self._note(item)
        await self._deliver(message)

    def _note(self, item: Output) -> None:
        if (entry := self._running.get(item.request_id)) is not None:
            entry.cached = item.cached_tokens or entry.cached
            entry.output += item.token_ids


def _common(one: list[int], other: list[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((k for k, (a, b) in pairs if a != b), min(len(one), len(other)))
