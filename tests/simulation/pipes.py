"""Both pipes between manager and scheduler, as lists of encoded messages, and what passed."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from runtime.ipc import Codec
from runtime.messages import (
    Abort,
    Flushed,
    FromScheduler,
    Generate,
    Output,
    Outputs,
    Refused,
    Stop,
    ToScheduler,
    unpack_ids,
)
from tests.simulation.clock import VirtualClock, VirtualLoop


class Violation(AssertionError):
    """Something that must never be."""


class Ledger:
    """What each request was told: it must end once.

    sent      by id, as the scheduler got it
    ended     ids of those that were told of their end
    given_up  ids of those that the manager has ended
    first     first output of each, in the order in which they came; to be emptied by the reader
    flushed   called when the scheduler says that its cache is empty
    """

    def __init__(self) -> None:
        self.flushed: Callable[[], None] = lambda: None
        self.sent: dict[int, Generate] = {}
        self.ended: set[int] = set()
        self.given_up: set[int] = set()
        self.first: list[Output] = []
        self._begun: set[int] = set()

    def to_scheduler(self, message: ToScheduler) -> None:
        """Note a message to the scheduler."""
        match message:
            case Generate():
                self.sent[message.request_id] = message
            case Abort() | Stop():
                self.given_up.update(message.request_ids)
            case _:
                pass

    def from_scheduler(self, message: FromScheduler) -> None:
        """Note a message from the scheduler. Raises Violation."""
        match message:
            case Refused():
                self._end(message.request_id)
            case Outputs():
                for item in message.items:
                    self._output(item)
            case Flushed(done=True):
                self.flushed()
            case _:
                pass

    def _output(self, item: Output) -> None:
        if item.request_id in self.ended:
            raise Violation(f"request {item.request_id} has news after its end")
        if item.request_id not in self._begun:
            self._begun.add(item.request_id)
            self._check_first(item)
            self.first.append(item)
        if item.finish is not None:
            self._end(item.request_id)

    def _check_first(self, item: Output) -> None:
        if item.request_id not in self.sent:
            raise Violation(f"nobody sent request {item.request_id}")
        length = len(unpack_ids(self.sent[item.request_id].input_ids))
        if item.prompt_tokens != length or item.cached_tokens > length:
            raise Violation(f"{item} of a prompt of {length} tokens")

    def _end(self, request_id: int) -> None:
        if request_id not in self.sent:
            raise Violation(f"nobody sent request {request_id}")
        if request_id in self.ended:
            raise Violation(f"request {request_id} ended twice")
        self.ended.add(request_id)


class Pipes:
    """Messages on their way, encoded as on real sockets; a ledger reads along."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.inbound: deque[bytes] = deque()
        self.outbound: deque[bytes] = deque()
        self.waiter: asyncio.Future[None] | None = None


class SchedulerEnd:
    """A `runtime.ipc.Socket` of the scheduler.

    wake_s  asked for when the next thing happens: an idle loop waits until then
    """

    def __init__(self, pipes: Pipes, clock: VirtualClock, wake_s: Any) -> None:
        self._pipes, self._clock, self._wake_s = pipes, clock, wake_s
        self._codec = Codec[ToScheduler](ToScheduler)

    def receive(self, timeout_s: float) -> list[ToScheduler]:
        """Return all messages that wait; if there is none, let time pass."""
        messages: list[ToScheduler] = []
        inbound = self._pipes.inbound
        if not inbound and timeout_s > 0:
            now_s = self._clock.now_s
            self._clock.advance_to(min(now_s + timeout_s, max(now_s + 1e-4, self._wake_s())))
        while inbound:
            message = self._codec.decode(inbound.popleft())
            if message is None:
                raise Violation("a message to the scheduler was dropped")
            self._pipes.ledger.to_scheduler(message)
            messages.append(message)
        return messages

    def send(self, message: FromScheduler) -> None:
        """Send a message."""
        self._pipes.ledger.from_scheduler(message)
        self._pipes.outbound.append(self._codec.encode(message))
        waiter = self._pipes.waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class ManagerEnd:
    """What a manager needs of `runtime.ipc.ManagerSocket`."""

    def __init__(self, pipes: Pipes, loop: VirtualLoop) -> None:
        self._pipes, self._loop = pipes, loop
        self._codec = Codec[FromScheduler](FromScheduler)

    async def receive(self) -> FromScheduler:
        """Wait for the next message."""
        pipes = self._pipes
        while not pipes.outbound:
            pipes.waiter = self._loop.create_future()
            await pipes.waiter
        return self._next()

    def waiting(self) -> list[FromScheduler]:
        """Return the messages that wait."""
        return [self._next() for _ in range(len(self._pipes.outbound))]

    def _next(self) -> FromScheduler:
        message = self._codec.decode(self._pipes.outbound.popleft())
        if message is None:
            raise Violation("a message from the scheduler was dropped")
        return message

    def send(self, message: ToScheduler) -> None:
        """Send a message."""
        self._pipes.inbound.append(self._codec.encode(message))
