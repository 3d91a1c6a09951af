"""A scheduler without a model: answers over the real sockets with what a test scripts.

with private_addresses() as addresses, FakeScheduler(addresses, counting) as fake:
    ...
    await fake.saw(Abort)
"""

import asyncio
import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

from msgspec.structs import replace

from runtime.cache_messages import GetCache
from runtime.ipc import Addresses, SchedulerSocket
from runtime.messages import (
    Flush,
    Flushed,
    FromScheduler,
    Generate,
    GetState,
    Output,
    Outputs,
    Ready,
    Shutdown,
    State,
    ToScheduler,
    unpack_ids,
)
from runtime.profile_messages import Profiled, StartProfile, StopProfile
from tests.testing.cache_views import EMPTY

Kind = TypeVar("Kind", bound=ToScheduler)
Script = Callable[[Generate], Iterable[FromScheduler]]

READY = Ready(context_tokens=1024, vocab_size=300, eos_token_ids=[256], info={"backend": "fake"})
DEADLINE_S = 60.0


def silent(request: Generate) -> Iterable[FromScheduler]:
    """Answer nothing: the test sends what it wants by `FakeScheduler.send`."""
    return ()


def counting(request: Generate) -> Iterable[FromScheduler]:
    """Answer like a model that continues a prompt ending in t with t+1, t+2 ... modulo 100."""
    prompt = unpack_ids(request.input_ids)
    tokens = [(int(prompt[-1]) + 1 + i) % 100 for i in range(request.sampling.max_new_tokens)]
    return speak(request, tokens)


def speak(request: Generate, tokens: list[int]) -> Iterable[FromScheduler]:
    """Yield one Outputs per token, the last with finish "length", or a single one."""
    each = 1 if request.stream else max(len(tokens), 1)
    steps = [tokens[i : i + each] for i in range(0, len(tokens), each)] or [[]]
    for number, step in enumerate(steps, start=1):
        yield Outputs(
            [
                Output(
                    request.request_id,
                    token_ids=step,
                    finish="length" if number == len(steps) else None,
                    prompt_tokens=len(request.input_ids) // 4 if number == 1 else 0,
                )
            ]
        )


class FakeScheduler:
    """A thread at the scheduler's end of the sockets.

    received  every message so far, in order
    """

    def __init__(self, addresses: Addresses, script: Script = silent) -> None:
        self.received: list[ToScheduler] = []
        self._script = script
        self._socket = SchedulerSocket(addresses)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fake scheduler")

    def send(self, message: FromScheduler) -> None:
        """Send a message to the manager, from any thread."""
        self._socket.send(message)

    def of(self, kind: type[Kind]) -> list[Kind]:
        """Return the messages of one kind so far."""
        return [message for message in list(self.received) if isinstance(message, kind)]

    async def saw(self, kind: type[Kind], count: int = 1) -> list[Kind]:
        """Wait until so many messages of a kind have come, and return them."""
        async with asyncio.timeout(DEADLINE_S):
            while len(found := self.of(kind)) < count:
                await asyncio.sleep(0.002)
        return found

    def _run(self) -> None:
        while not self._stop.is_set():
            for message in self._socket.receive(0.01):
                self.received.append(message)
                self._answer(message)

    def _answer(self, message: ToScheduler) -> None:
        match message:
            case Generate():
                for reply in self._script(message):
                    self._socket.send(reply)
            case Flush():
                self._socket.send(Flushed(message.call_id, True, "the cache is empty"))
            case GetState():
                self._socket.send(State(message.call_id, {"requests": 7.0}, {"running": 1.0}))
            case GetCache():
                left_out = message.max_spans
                self._socket.send(replace(EMPTY, call_id=message.call_id, spans_left_out=left_out))
            case StartProfile() | StopProfile():
                self._socket.send(Profiled(message.call_id, True, "told", "x.json.gz"))
            case Shutdown():
                self._stop.set()
            case _:
                pass

    def __enter__(self) -> "FakeScheduler":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._socket.close(linger_s=0.0)
