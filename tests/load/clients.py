"""A crowd of clients of all manners, and a polite one beside it.

First each client of the crowd comes once: what a process has held for so many it may keep, and the
pools take their memory as their pages are first used. From there on nothing may grow.

Then the polite client, which comes from an address of its own, asks beside clients that just fill
all rows: its fair share, for nobody waits and every row counts alike. At last it asks beside the
crowd. Before and after, the server is idle and its cache empty.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.end_to_end.pools import wait_idle
from tests.load.asks import Sizes
from tests.load.lines import Line, quantile
from tests.load.manners import ANSWERED, LOST, MANNERS, WRONG, Visit, answer, visit_once
from tests.load.usage import Usage, usage
from tests.testing.server_process import ServerProcess

_POLITE_ADDRESS = "127.0.0.2"
_CROWD_ADDRESS = "127.0.0.3"
_PAUSE_S = 0.1
_SETTLE_S = 20.0
_FLUSHES = 10
_FLUSH_PAUSE_S = 0.5
_MEMORY_SHARE = 1.2
_FAIR_TIMES = 1.5


@dataclass(frozen=True, slots=True)
class Crowd:
    """How many clients, which send how many requests in all.

    rows     of the server
    calm_s   for which all rows are just full
    limit_s  after which a request that is not over is lost
    """

    requests: int
    clients: int
    rows: int
    seed: int
    sizes: Sizes
    calm_s: float = 40.0
    limit_s: float = 300.0


@dataclass(slots=True)
class Seen:
    """What the clients saw.

    calm_s, crowded_s  latencies of the polite client
    """

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    calm_s: list[float] = field(default_factory=list[float])
    crowded_s: list[float] = field(default_factory=list[float])
    seconds: float = 0.0

    def total(self, outcome: str) -> int:
        """Return how many requests ended so."""
        return sum(count for (_, one), count in self.outcomes.items() if one == outcome)


def measure_clients(server: ServerProcess, crowd: Crowd) -> list[Line]:
    """Let the crowd in; return the figures. Raises AssertionError where it never gets idle."""
    seen = Seen()
    fresh = usage(server.pid)
    asyncio.run(_come_once(server, crowd))
    _not_free(server)
    before = usage(server.pid)
    asyncio.run(_let_in(server, crowd, seen))
    not_free = _not_free(server)
    after = _settled(server, before)
    kinds = Counter(one for _, one in seen.outcomes.elements())
    return [
        Line("requests", seen.outcomes.total(), most=crowd.requests, least=crowd.requests),
        Line("requests a second", seen.outcomes.total() / seen.seconds),
        *(Line(f"requests {name}", count) for name, count in kinds.most_common()),
        Line("requests neither answered nor closed", seen.total(LOST), most=0),
        Line("replies that are wrong or cut off", seen.total(WRONG), most=0),
        *_used(fresh, before, after),
        Line("pages, windows and rings lost", not_free, most=0),
        *_polite(seen),
    ]


def _used(fresh: dict[str, Usage], before: dict[str, Usage], after: dict[str, Usage]) -> list[Line]:
    lines: list[Line] = []
    for name, first in before.items():
        last = after[name]
        lines += [
            Line(f"{name}: memory at the start", fresh[name].resident_mib, "MiB"),
            Line(f"{name}: memory before", first.resident_mib, "MiB"),
            Line(f"{name}: memory after", last.resident_mib, "MiB"),
            Line(
                f"{name}: memory after / before",
                last.resident_mib / first.resident_mib,
                most=_MEMORY_SHARE,
            ),
            Line(f"{name}: open files after - before", last.files - first.files, most=0),
        ]
    return lines


def _polite(seen: Seen) -> list[Line]:
    fair, crowded = quantile(seen.calm_s, 0.5), quantile(seen.crowded_s, 0.5)
    return [
        Line("polite client: answers beside full rows", len(seen.calm_s), least=5),
        Line("polite client: median beside full rows", fair, "s"),
        Line("polite client: answers beside the crowd", len(seen.crowded_s), least=5),
        Line("polite client: median beside the crowd", crowded, "s"),
        Line("polite client: 99th percentile", quantile(seen.crowded_s, 0.99), "s"),
        Line("polite client: crowded / fair", crowded / fair, most=_FAIR_TIMES),
    ]


async def _come_once(server: ServerProcess, crowd: Crowd) -> None:
    """Have every client send a request, each manner in its turn."""
    draw = random.Random(f"once {crowd.seed}")
    acts = [*MANNERS]
    visits = [
        visit_once(
            acts[k % len(acts)],
            _visit(server, crowd, draw, f"once-{k}", _CROWD_ADDRESS),
            crowd.limit_s,
        )
        for k in range(crowd.clients)
    ]
    await asyncio.gather(*visits)


async def _let_in(server: ServerProcess, crowd: Crowd, seen: Seen) -> None:
    """Measure the polite client beside full rows, then beside the crowd."""
    over = asyncio.Event()
    full = [asyncio.ensure_future(_fill(server, crowd, k, over)) for k in range(crowd.rows - 1)]
    polite = asyncio.ensure_future(_be_polite(server, crowd, over, seen.calm_s))
    await asyncio.sleep(crowd.calm_s)
    over.set()
    await asyncio.gather(polite, *full)

    over = asyncio.Event()
    numbers = iter(range(crowd.requests))
    begun = time.monotonic()
    clients = [
        asyncio.ensure_future(_come(server, crowd, k, numbers, seen)) for k in range(crowd.clients)
    ]
    polite = asyncio.ensure_future(_be_polite(server, crowd, over, seen.crowded_s))
    await asyncio.gather(*clients)
    seen.seconds = time.monotonic() - begun
    over.set()
    await polite


async def _fill(server: ServerProcess, crowd: Crowd, number: int, over: asyncio.Event) -> None:
    """Hold a row all the time."""
    draw = random.Random(f"full {crowd.seed} {number}")
    count = 0
    while not over.is_set():
        count += 1
        visit = _visit(server, crowd, draw, f"full-{number}-{count}", _CROWD_ADDRESS)
        await visit_once(answer, visit, crowd.limit_s)


async def _come(
    server: ServerProcess, crowd: Crowd, client: int, numbers: Iterator[int], seen: Seen
) -> None:
    """Send one request after the other until all have been sent."""
    draw = random.Random(f"client {crowd.seed} {client}")
    for number in numbers:
        [act] = draw.choices([*MANNERS], [*MANNERS.values()])
        visit = _visit(server, crowd, draw, f"crowd-{number}", _CROWD_ADDRESS)
        outcome = await visit_once(act, visit, crowd.limit_s)
        seen.outcomes[act.__name__, outcome] += 1


async def _be_polite(
    server: ServerProcess, crowd: Crowd, over: asyncio.Event, latencies: list[float]
) -> None:
    """Ask one thing after the other, and note how long each answer took."""
    draw = random.Random(f"polite {crowd.seed}")
    await asyncio.sleep(1.0)
    count = 0
    while not over.is_set():
        count += 1
        visit = _visit(server, crowd, draw, f"polite-{id(over)}-{count}", _POLITE_ADDRESS)
        begun = time.monotonic()
        if await visit_once(answer, visit, crowd.limit_s) == ANSWERED and not over.is_set():
            latencies.append(time.monotonic() - begun)
        await asyncio.sleep(_PAUSE_S)


def _visit(
    server: ServerProcess, crowd: Crowd, draw: random.Random, rid: str, address: str
) -> Visit:
    return Visit(server.port, address, rid, draw, crowd.sizes)


def _not_free(server: ServerProcess) -> float:
    """Return how much of the pools is in use in an idle server whose cache was emptied.

    A request whose client has left may come to the scheduler late: then it is emptied again.
    """
    missing = 0.0
    for _ in range(_FLUSHES):
        wait_idle(server)
        server.post("/flush_cache", {})
        state = wait_idle(server)
        pools = ("full_pages", "swa_pages", "rings")
        missing = sum(state[pool] - state[f"{pool}_free"] for pool in pools)
        if not missing:
            break
        time.sleep(_FLUSH_PAUSE_S)
    return missing


def _settled(server: ServerProcess, before: dict[str, Usage]) -> dict[str, Usage]:
    """Return what is used once it is not above `before` any more, or at the deadline."""
    deadline = time.monotonic() + _SETTLE_S
    while True:
        now = usage(server.pid)
        done = all(
            now[name].files <= one.files
            and now[name].resident_mib <= one.resident_mib * _MEMORY_SHARE
            for name, one in before.items()
        )
        if done or time.monotonic() > deadline:
            return now
        time.sleep(0.2)
