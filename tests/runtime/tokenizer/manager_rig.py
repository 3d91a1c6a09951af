"""A manager over real sockets, with a scripted scheduler at the other end."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from runtime.config import ServerConfig
from runtime.ipc import ManagerSocket, private_addresses
from runtime.sampling import SamplingSpec
from runtime.tokenizer.choice import Delta
from runtime.tokenizer.manager import GenerateCall, TokenizerManager
from runtime.tokenizer.tokenizer import TextTokenizer
from tests.runtime.tokenizer.samples import byte_tokenizer
from tests.testing.fake_scheduler import READY, FakeScheduler, Script, counting

BYTES = TextTokenizer(byte_tokenizer(), {})
DEADLINE_S = 60.0


@contextlib.asynccontextmanager
async def running(
    script: Script = counting,
    *,
    tokenizer: TextTokenizer = BYTES,
    max_queued_requests: int = 1024,
    max_running_requests: int = 64,
    max_queued_tokens: int | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncIterator[tuple[TokenizerManager, FakeScheduler]]:
    """Run a manager against a scripted scheduler; nothing may be in flight at the end."""
    with private_addresses() as addresses, FakeScheduler(addresses, script) as fake:
        socket = ManagerSocket(addresses)
        config = ServerConfig(
            max_queued_requests=max_queued_requests,
            max_running_requests=max_running_requests,
            max_queued_tokens=max_queued_tokens,
        )
        manager = TokenizerManager(
            config, tokenizer, socket, READY, clock=clock, seeds=itertools.count(40)
        )
        receiving = asyncio.create_task(manager.run())
        try:
            async with asyncio.timeout(DEADLINE_S):
                yield manager, fake
            assert manager.in_flight == 0
        finally:
            receiving.cancel()
            manager.close()
            socket.close()


def call(prompt: list[int] | str, *, rid: str | None = None, **spec: Any) -> GenerateCall:
    """Return a call for four new tokens."""
    fields: dict[str, Any] = {"max_new_tokens": 4, **spec}
    sampling = SamplingSpec(**fields)
    if isinstance(prompt, str):
        return GenerateCall(sampling, text=prompt, rid=rid)
    return GenerateCall(sampling, input_ids=prompt, rid=rid)


async def collect(manager: TokenizerManager, wanted: GenerateCall) -> list[Delta]:
    """Return all deltas of a call."""
    return [delta async for delta in manager.generate(wanted)]


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test's coroutine."""
    asyncio.run(test())
