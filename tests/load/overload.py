"""More requests than a server can compute: what it still computes, and what a refusal costs.

First as many clients as rows and queue hold ask without a pause: the peak, at which nothing is
refused. Then requests come at random moments, so many times as often as the peak's answers.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.end_to_end.pools import read_state
from tests.load.asks import Sizes, draw_ask
from tests.load.exchange import Exchange, Head, post
from tests.load.lines import Line, quantile
from tests.load.usage import usage
from tests.testing.server_process import ServerProcess

_REFUSED = 429
_LIMIT_S = 300.0
_RAMP_S = 5.0


@dataclass(frozen=True, slots=True)
class Flood:
    """How long, and how many times the capacity.

    rows, queued  of the server
    """

    seconds: float
    times: float
    rows: int
    queued: int
    seed: int
    sizes: Sizes

    @property
    def peak_s(self) -> float:
        """For how long the peak is measured."""
        return min(60.0, max(10.0, self.seconds / 4))

    @property
    def most_before(self) -> int:
        """Requests that may start before an accepted one.

        Those that run, those that wait before it, and as many later ones as may wait.
        """
        return self.rows + 2 * self.queued


@dataclass(slots=True)
class Phase:
    """What happened in a phase.

    refused_s      how long refusals took, from the connection on
    first_s        how long the first bytes of streamed answers took
    passed         answers to others that ended while a request that was sent had none
    retry_after_s  what refusals said
    tokens         that were sampled
    """

    seconds: float = 0.0
    tokens: float = 0.0
    api_cpu_s: float = 0.0
    api_delay_s: float = 0.0
    scheduler_cpu_s: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter[str])
    refused_s: list[float] = field(default_factory=list[float])
    first_s: list[float] = field(default_factory=list[float])
    passed: list[float] = field(default_factory=list[float])
    retry_after_s: list[float] = field(default_factory=list[float])

    @property
    def tokens_per_s(self) -> float:
        """Tokens sampled a second."""
        return self.tokens / self.seconds

    @property
    def others(self) -> int:
        """Requests that were neither answered nor refused."""
        fine = self.outcomes["answered"] + self.outcomes["refused"]
        return self.outcomes.total() - fine


def measure_overload(server: ServerProcess, flood: Flood) -> list[Line]:
    """Find the peak, flood the server, and return the figures."""
    peak, flooded = asyncio.run(_measure(server, flood))
    return [
        *_throughput(peak, flooded, flood),
        *_refusals(peak, flooded),
        *_waits(flooded, flood),
        Line("neither answered nor refused", flooded.others, most=0),
    ]


def _throughput(peak: Phase, flooded: Phase, flood: Flood) -> list[Line]:
    times = flooded.tokens_per_s / peak.tokens_per_s
    by_cpu = flooded.tokens / flooded.scheduler_cpu_s / (peak.tokens / peak.scheduler_cpu_s)
    return [
        Line("peak", peak.tokens_per_s, "tokens/s"),
        Line("flooded", flooded.tokens_per_s, "tokens/s"),
        Line("flooded / peak", times, least=0.95),
        Line("flooded / peak, tokens by the scheduler's CPU time", by_cpu),
        Line("requests a second, answered", flooded.tokens_per_s / flood.sizes.new_tokens),
        Line("requests a second, refused", len(flooded.refused_s) / flooded.seconds),
    ]


def _refusals(peak: Phase, flooded: Phase) -> list[Line]:
    count = len(flooded.refused_s)
    # What the answers cost is known from the peak.
    cpu_s = flooded.api_cpu_s - peak.api_cpu_s * flooded.tokens / peak.tokens
    delay = flooded.api_delay_s / flooded.seconds
    p50, p99 = (1e3 * quantile(flooded.refused_s, share) for share in (0.5, 0.99))
    return [
        Line("refusals", count, least=1),
        Line("API process: CPU at the peak", 100 * peak.api_cpu_s / peak.seconds, "%"),
        Line("API process: CPU flooded", 100 * flooded.api_cpu_s / flooded.seconds, "%"),
        Line("API process: ready, but without a processor", 100 * delay, "%"),
        Line("CPU of a refusal", 1e3 * cpu_s / max(count, 1), "ms", most=2.0),
        Line(
            "CPU of a refusal and its share of all else",
            1e3 * flooded.api_cpu_s / max(count, 1),
            "ms",
        ),
        Line("a refusal comes after, median", p50, "ms"),
        Line("a refusal comes after, 99th percentile", p99, "ms", most=100.0),
    ]


def _waits(flooded: Phase, flood: Flood) -> list[Line]:
    per_s = flooded.tokens_per_s / flood.sizes.new_tokens
    return [
        Line("first token after, median", quantile(flooded.first_s, 0.5), "s"),
        Line(
            "first token after, longest",
            quantile(flooded.first_s, 1.0),
            "s",
            most=flood.most_before / per_s,
        ),
        Line(
            "answers to others before it, most",
            quantile(flooded.passed, 1.0),
            most=flood.most_before,
        ),
        Line("Retry-After, median", quantile(flooded.retry_after_s, 0.5), "s"),
    ]


async def _measure(server: ServerProcess, flood: Flood) -> tuple[Phase, Phase]:
    over = asyncio.Event()
    crowd = flood.rows + flood.queued
    peak = Phase()
    clients = [asyncio.ensure_future(_go_on(server, flood, k, over, peak)) for k in range(crowd)]
    await asyncio.sleep(_RAMP_S)
    async with _measured(server, peak):
        await asyncio.sleep(flood.peak_s)
    over.set()
    await asyncio.gather(*clients)

    per_s = flood.times * peak.tokens / peak.seconds / flood.sizes.new_tokens
    flooded = Phase()
    asking: set[asyncio.Task[None]] = set()
    moments = _moments(random.Random(f"moments {flood.seed}"), per_s)
    await _pour(server, flood, moments, _RAMP_S, Phase(), asking)
    async with _measured(server, flooded):
        await _pour(server, flood, moments, flood.seconds, flooded, asking)
    await asyncio.gather(*asking)
    return peak, flooded


@asynccontextmanager
async def _measured(server: ServerProcess, phase: Phase) -> AsyncGenerator[None]:
    """Note tokens and processor times of what happens inside."""
    state, before = await asyncio.to_thread(read_state, server), usage(server.pid)
    begun = time.monotonic()
    yield
    phase.seconds = time.monotonic() - begun
    after = usage(server.pid)
    phase.tokens = (await asyncio.to_thread(read_state, server))["generation_tokens"]
    phase.tokens -= state["generation_tokens"]
    phase.api_cpu_s = after["api"].cpu_s - before["api"].cpu_s
    phase.api_delay_s = after["api"].delay_s - before["api"].delay_s
    phase.scheduler_cpu_s = after["scheduler"].cpu_s - before["scheduler"].cpu_s


def _moments(draw: random.Random, per_s: float) -> Iterator[float]:
    """Yield the seconds between one request and the next."""
    while True:
        yield draw.expovariate(per_s)


async def _pour(
    server: ServerProcess,
    flood: Flood,
    moments: Iterator[float],
    seconds: float,
    phase: Phase,
    asking: set[asyncio.Task[None]],
) -> None:
    """Send requests at their moments, however many are on their way."""
    draw = random.Random(f"asks {flood.seed} {seconds}")
    now, begun = 0.0, time.monotonic()
    while (now := now + next(moments)) < seconds:
        await asyncio.sleep(max(0.0, begun + now - time.monotonic()))
        task = asyncio.ensure_future(_ask(server, flood, draw, phase))
        asking.add(task)
        task.add_done_callback(asking.discard)


async def _go_on(
    server: ServerProcess, flood: Flood, number: int, over: asyncio.Event, phase: Phase
) -> None:
    draw = random.Random(f"peak {flood.seed} {number}")
    while not over.is_set():
        await _ask(server, flood, draw, phase)


async def _ask(server: ServerProcess, flood: Flood, draw: random.Random, phase: Phase) -> None:
    """Send one request and note what became of it."""
    ask = draw_ask(draw, flood.sizes, stream=draw.random() < 0.5)
    data = post(ask.path, ask.body)
    begun = time.monotonic()
    try:
        async with asyncio.timeout(_LIMIT_S):
            exchange = await Exchange.open(server.port)
            try:
                await exchange.send(data)
                answered = phase.outcomes["answered"]
                head = await exchange.head()
                if head.status == 200 and ask.body["stream"]:
                    first = True
                    async for chunk in exchange.chunks():
                        # Before it there may be what keeps the connection alive.
                        if first and b"data: " in chunk:
                            phase.first_s.append(time.monotonic() - begun)
                            phase.passed.append(phase.outcomes["answered"] - answered)
                            first = False
                else:
                    await exchange.body(head)
                _note(phase, head, time.monotonic() - begun)
            finally:
                exchange.close()
    except TimeoutError:
        phase.outcomes["lost"] += 1
    except (OSError, asyncio.IncompleteReadError):
        phase.outcomes["closed"] += 1


def _note(phase: Phase, head: Head, seconds: float) -> None:
    if head.status == _REFUSED:
        phase.refused_s.append(seconds)
        phase.retry_after_s.append(float(head.headers.get("retry-after", "nan")))
        phase.outcomes["refused"] += 1
    else:
        phase.outcomes["answered" if head.status == 200 else str(head.status)] += 1
