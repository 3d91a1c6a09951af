"""A client that reads many streams at once, in a process of its own.

    python -m tests.bench.api.reader '{"port": 8000, "rows": 128, "tokens": 512, ...}'

Prints what it saw as JSON. The bare reader counts events in what each read returns; the aiohttp
one takes each line and parses it, as load generators in Python do.
"""

import asyncio
import gc
import itertools
import json
import statistics
import subprocess
import sys
import time
from typing import Any, Literal

import aiohttp
import msgspec

from tests.bench.api.server import ROOT

Dialect = Literal["generate", "completions", "chat", "messages"]
Reader = Literal["bare", "aiohttp"]
_PATHS: dict[Dialect, str] = {
    "generate": "/generate",
    "completions": "/v1/completions",
    "chat": "/v1/chat/completions",
    "messages": "/v1/messages",
}
_PROMPT_TOKEN = 20


class Wanted(msgspec.Struct, frozen=True):
    """What is to be read: `tokens` tokens of each of `rows` streams, by one request each."""

    port: int
    rows: int
    tokens: int
    dialect: Dialect = "chat"
    reader: Reader = "bare"
    prompt: int = 1

    @property
    def path(self) -> str:
        """Path of the endpoint."""
        return _PATHS[self.dialect]

    def body(self) -> bytes:
        """Return the request's body."""
        ids, said = [_PROMPT_TOKEN] * self.prompt, [{"role": "user", "content": "hi"}]
        fields: dict[str, Any]
        match self.dialect:
            case "generate":
                sampling = {"max_new_tokens": self.tokens, "temperature": 0}
                fields = {"input_ids": ids, "sampling_params": sampling}
            case "completions":
                fields = {"prompt": ids, "max_tokens": self.tokens}
            case "chat":
                fields = {
                    "messages": said,
                    "max_tokens": self.tokens,
                    "reasoning_effort": "none",
                    "stream_options": {"include_usage": True},
                }
            case "messages":
                fields = {"model": "default", "messages": said, "max_tokens": self.tokens}
        return json.dumps({**fields, "stream": True}).encode()


class Seen(msgspec.Struct, frozen=True):
    """What a client saw.

    cpu_us  CPU time of the client for each event
    busy    share of the time between first and last event that the client was on a CPU
    """

    events: int
    tokens: int
    seconds: float
    cpu_us: float
    busy: float
    gap_p50_ms: float
    gap_p99_ms: float
    gap_max_ms: float


def read(wanted: Wanted) -> Seen:
    """Run a client process; return what it saw."""
    command = [sys.executable, "-m", __name__, msgspec.json.encode(wanted).decode()]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    return msgspec.json.decode(done.stdout, type=Seen)


class _Stream(asyncio.Protocol):
    """Reads one reply as it comes."""

    def __init__(self, wanted: Wanted, done: asyncio.Future[None]) -> None:
        body = wanted.body()
        head = f"POST {wanted.path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        self._request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        self._done = done
        self._tail = b""
        self.times: list[float] = []
        self.events = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        events = data.count(b"data: {")
        if events:
            self.times.append(time.perf_counter())
            self.events += events
        # The chunk of length 0 ends a reply.
        self._tail = self._tail[-5:] + data[-5:]
        if self._tail.endswith(b"0\r\n\r\n"):
            self._transport.close()
            self._done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(RuntimeError("a stream broke off"))


async def _bare(wanted: Wanted) -> tuple[list[list[float]], int]:
    loop = asyncio.get_running_loop()
    dones = [loop.create_future() for _ in range(wanted.rows)]
    streams = [_Stream(wanted, done) for done in dones]
    for stream in streams:
        await loop.create_connection(lambda stream=stream: stream, "127.0.0.1", wanted.port)
    await asyncio.gather(*dones)
    return [stream.times for stream in streams], sum(stream.events for stream in streams)


async def _aiohttp(wanted: Wanted) -> tuple[list[list[float]], int]:
    url, body = f"http://127.0.0.1:{wanted.port}{wanted.path}", wanted.body()
    headers = {"Content-Type": "application/json"}

    async def one(session: aiohttp.ClientSession) -> list[float]:
        times: list[float] = []
        async with session.post(url, data=body, headers=headers) as response:
            response.raise_for_status()
            async for line in response.content:
                if line.startswith(b"data: {"):
                    times.append(time.perf_counter())
                    json.loads(line[6:])
        return times

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, read_bufsize=1 << 22) as session:
        times = await asyncio.gather(*(one(session) for _ in range(wanted.rows)))
    return times, sum(map(len, times))


def main() -> None:
    """Read what the argument describes, and print what was seen."""
    wanted = msgspec.json.decode(sys.argv[1], type=Wanted)
    # The client's own collector would show as a stall of the server.
    gc.freeze()
    gc.disable()
    clients = {"bare": _bare, "aiohttp": _aiohttp}
    before_s = time.process_time()
    times, events = asyncio.run(clients[wanted.reader](wanted))
    cpu_s = time.process_time() - before_s
    seconds = max(own[-1] for own in times) - min(own[0] for own in times)
    gaps = [(b - a) * 1e3 for own in times for a, b in itertools.pairwise(own)] or [0.0, 0.0]
    cuts = statistics.quantiles(gaps, n=100)
    seen = Seen(
        events=events,
        tokens=wanted.rows * wanted.tokens,
        seconds=seconds,
        cpu_us=cpu_s / events * 1e6,
        busy=cpu_s / max(seconds, 1e-9),
        gap_p50_ms=cuts[49],
        gap_p99_ms=cuts[98],
        gap_max_ms=max(gaps),
    )
    sys.stdout.buffer.write(msgspec.json.encode(seen) + b"\n")


if __name__ == "__main__":
    main()
