"""What a client may do with one request, polite or not; and what became of the request."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.load.asks import Ask, Sizes, draw_ask
from tests.load.exchange import Exchange, post

# What became of a request. LOST: neither answered nor closed in time.
ANSWERED, REFUSED, LEFT, CLOSED, LOST, WRONG = (
    *("answered", "refused", "left", "closed by the server", "lost", "wrong"),
)
_REFUSALS = (408, 429, 431, 503, 504)
_DONE = b"data: [DONE]"


@dataclass(frozen=True, slots=True)
class Visit:
    """Where and how a client asks.

    address  loopback address that it comes from
    rid      a name for its request that no other has
    """

    port: int
    address: str
    rid: str
    draw: random.Random
    sizes: Sizes

    def ask(self, *, stream: bool) -> Ask:
        """Return the request."""
        return draw_ask(self.draw, self.sizes, stream=stream, rid=self.rid)

    async def open(self, *, small: bool = False) -> Exchange:
        """Connect. Raises OSError."""
        return await Exchange.open(self.port, address=self.address, small=small)


async def answer(visit: Visit) -> str:
    """Ask at once and read at once: a polite client."""
    return await _ask(visit, await visit.open(), stream=visit.draw.random() < 0.5)


async def dawdle(visit: Visit) -> str:
    """Connect, wait, and send the request in pieces with pauses between them."""
    exchange = await visit.open()
    ask = visit.ask(stream=False)
    data = post(ask.path, ask.body)
    await asyncio.sleep(visit.draw.uniform(0.0, 3.0))
    cuts = sorted(visit.draw.randrange(len(data)) for _ in range(4))
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        await exchange.send(data[start:end])
        await asyncio.sleep(visit.draw.uniform(0.0, 0.5))
    return await _reply(exchange)


async def read_slowly(visit: Visit) -> str:
    """Read a stream by some bytes at a time, through a small window."""
    exchange = await visit.open(small=True)
    ask = visit.ask(stream=True)
    await exchange.send(post(ask.path, ask.body))
    read = b""
    while piece := await exchange.piece(256):
        read += piece
        await asyncio.sleep(0.02)
    exchange.close()
    if _DONE in read:
        return ANSWERED
    status = read[9:12]
    return REFUSED if status.isdigit() and int(status) in _REFUSALS else CLOSED


async def vanish(visit: Visit) -> str:
    """Leave at some moment, in good order or not: in the head, in the body, in the reply."""
    exchange = await visit.open()
    ask = visit.ask(stream=visit.draw.random() < 0.5)
    data = post(ask.path, ask.body)
    sent = visit.draw.choice((visit.draw.randrange(len(data)), len(data)))
    await exchange.send(data[:sent])
    await asyncio.sleep(visit.draw.uniform(0.0, 4.0))
    if visit.draw.random() < 0.5:
        exchange.reset()
    else:
        exchange.close()
    return LEFT


async def abort(visit: Visit) -> str:
    """Abort one's own request by its name after a while; read what comes of it."""
    exchange = await visit.open()
    reading = asyncio.ensure_future(_ask(visit, exchange, stream=visit.draw.random() < 0.5))
    try:
        await asyncio.sleep(visit.draw.uniform(0.0, 4.0))
        other = await visit.open()
        await other.send(post("/abort_request", {"rid": visit.rid}))
        await _reply(other)
        return await reading
    finally:
        reading.cancel()


async def idle(visit: Visit) -> str:
    """Connect, ask for nothing, and leave."""
    exchange = await visit.open()
    await asyncio.sleep(visit.draw.uniform(0.0, 5.0))
    exchange.close()
    return LEFT


# How often each is drawn.
MANNERS: dict[Callable[[Visit], Awaitable[str]], int] = {
    answer: 40,
    dawdle: 15,
    read_slowly: 12,
    vanish: 18,
    abort: 10,
    idle: 5,
}


async def visit_once(act: Callable[[Visit], Awaitable[str]], visit: Visit, limit_s: float) -> str:
    """Return what became of one request."""
    try:
        async with asyncio.timeout(limit_s):
            return await act(visit)
    except TimeoutError:
        return LOST
    except (OSError, asyncio.IncompleteReadError):
        return CLOSED


async def _ask(visit: Visit, exchange: Exchange, *, stream: bool) -> str:
    ask = visit.ask(stream=stream)
    await exchange.send(post(ask.path, ask.body))
    return await _reply(exchange)


async def _reply(exchange: Exchange) -> str:
    """Read a reply, and say what it is."""
    head = await exchange.head()
    body = await exchange.body(head)
    exchange.close()
    if head.status == 200:
        return ANSWERED if _is_whole(head.headers.get("content-type", ""), body) else WRONG
    # What is aborted before it is sent is a 499.
    if head.status in (*_REFUSALS, 499) and "error" in json.loads(body):
        return REFUSED
    return WRONG


def _is_whole(content_type: str, body: bytes) -> bool:
    if content_type.startswith("text/event-stream"):
        return _DONE in body
    return isinstance(json.loads(body), dict)
