"""A life: a script run from its first event to an empty scheduler, everything watched."""

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from unittest import mock

import runtime.tokenizer.choice as choice
from runtime.config import ServerConfig
from runtime.errors import RequestError
from runtime.messages import Flushed
from runtime.scheduler.request import Status
from runtime.tokenizer.manager import TokenizerManager
from runtime.tokenizer.tokenizer import TextTokenizer
from tests.runtime.tokenizer.samples import byte_tokenizer
from tests.simulation import script as happen
from tests.simulation.audit import Audit, check_manager, check_sets, demand
from tests.simulation.claims import Claims
from tests.simulation.client import Client, cancel
from tests.simulation.clock import VirtualClock, VirtualLoop
from tests.simulation.engine import Engine, expected_of
from tests.simulation.expected import Expected
from tests.simulation.pipes import ManagerEnd, Pipes, Violation
from tests.simulation.recurrence import BAD
from tests.simulation.script import AnyEvent, WorldSpec

FULL_CHECK_STEPS = 16
# Turns without a step although somebody waits or runs.
MOST_IDLE_TURNS = 3000
MOST_DRAIN_TURNS = 60_000
_TOKENIZER = TextTokenizer(byte_tokenizer(), {})


class Life:
    """One world, and who lives in it.

    seed     of how long steps take
    steps    launched so far, by all engines
    happened events so far
    counted  by all schedulers that have ended
    """

    def __init__(self, seed: int, world: WorldSpec, expected: Expected | None = None) -> None:
        self._seed, self.world = seed, world
        self._expected = expected or expected_of(world)
        self.clock = VirtualClock()
        self.loop = VirtualLoop(self.clock)
        self.happened: list[AnyEvent] = []
        self.counted = Counter[str]()
        self.clients: dict[int, Client] = {}
        self._next_event_s = float("inf")
        self._engines = itertools.count()
        self._past_steps = 0
        self._api_until_s = self._down_until_s = 0.0
        self._longest_stall_s = 0.0
        self._seen_steps = self._idle_turns = 0
        self._engine: Engine | None = None
        self._tasks: list[asyncio.Task[object]] = []
        self._start_all()

    # --- processes

    def _start_all(self) -> None:
        self._start_engine()
        config = ServerConfig(
            max_queued_requests=self.world.max_queued,
            max_queued_tokens=self.world.max_queued_tokens,
            max_running_requests=self.world.rows,
        )
        with self.loop.running():
            self.manager = TokenizerManager(
                config,
                _TOKENIZER,
                ManagerEnd(self.pipes, self.loop),  # pyright: ignore[reportArgumentType]
                self.engine.ready,
                clock=self.clock,
                seeds=itertools.count(40),
            )
        self._receiving = self.loop.create_task(self.manager.run())

    def _start_engine(self) -> None:
        self.pipes = Pipes()
        self._engine = Engine(
            self.world,
            pipes=self.pipes,
            clock=self.clock,
            wake_s=self._wake_s,
            seed=self._seed + next(self._engines),
            expected=self._expected,
        )
        self._latest = self._engine
        self._audit, self._claims = Audit(self._engine), Claims(self._engine)
        self._seen_steps = 0

    @property
    def engine(self) -> Engine:
        """The scheduler that lives."""
        assert self._engine is not None
        return self._engine

    @property
    def steps(self) -> int:
        """Steps launched so far."""
        return self._past_steps + (self._engine.launched if self._engine else 0)

    def _wake_s(self) -> float:
        # A process that stalls hears no timer.
        return min(self._next_event_s, self._api_until_s or self.loop.next_timer_s)

    def _lose_engine(self) -> None:
        if self._engine is not None:
            self._past_steps += self._engine.launched
            self.counted += self._engine.counted
        self._engine = None
        for client in self._live():
            client.lost_s = self.clock.now_s

    def _live(self) -> Iterator[Client]:
        return (client for client in self.clients.values() if not client.done)

    # --- events

    def run(self, events: Iterable[AnyEvent]) -> None:
        """Let events happen in their time, then drain. Raises Violation."""
        with mock.patch.object(choice, "MOST_UNREAD_ENTRIES", self.world.unread):
            for event in events:
                self._next_event_s = event.at
                while self.clock.now_s < event.at:
                    self.turn()
                self.happened.append(event)
                self._happen(event)
            self._next_event_s = float("inf")
            self._drain()

    def _happen(self, event: AnyEvent) -> None:
        match event:
            case happen.Arrive():
                self._arrive(event)
            case happen.Abort():
                if (client := self.clients.get(event.key)) and not client.done:
                    client.aborted = True
                    self._start_task(self.manager.abort(f"call {event.key}"))
            case happen.Flush():
                self._start_task(self._flush())
            case happen.Question():
                self._start_task(self._ask())
            case happen.Bad() | happen.NoRoom() | happen.Stall():
                if isinstance(event, happen.Stall):
                    self._longest_stall_s = max(self._longest_stall_s, event.seconds)
                if self._engine is not None:
                    self._engine.weather.take(event)
            case happen.Rot():
                self._rot(event.draw)
            case happen.ApiStall():
                self._api_until_s = self.clock.now_s + event.seconds
                self._longest_stall_s = max(self._longest_stall_s, event.seconds)
            case happen.SchedulerDies():
                if self._engine is not None:
                    self._lose_engine()
                    self._down_until_s = self.clock.now_s + event.seconds
                    self.manager.engine_died("it was told to", retry_after_s=1)
                    self._receiving.cancel()
            case happen.ApiDies():
                for client in self._live():
                    cancel(client)
                self._receiving.cancel()
                self.loop.run_ready()
                self._lose_engine()
                self._start_all()

    def _start_task(self, work: "object") -> None:
        self._tasks = [task for task in self._tasks if not task.done()]
        self._tasks.append(self.loop.create_task(work))  # pyright: ignore[reportArgumentType]

    def _arrive(self, call: happen.Arrive) -> None:
        engine = self._latest
        engine.most_in_flight = max(engine.most_in_flight, self.manager.in_flight)
        client = Client(call, lambda: self._latest, self.clock, lambda: self.manager.in_flight)
        if self._engine is None:
            client.lost_s = self.clock.now_s
        self.clients[call.key] = client
        stream = self.manager.generate(client.generate_call())
        client.task = self.loop.create_task(client.run(stream))

    async def _flush(self) -> None:
        try:
            answer = await self.manager.flush_cache()
        except RequestError:
            return
        assert isinstance(answer, Flushed)

    async def _ask(self) -> None:
        try:
            await self.manager.cache(20, 0)
            state = await self.manager.state()
        except RequestError:
            return
        counted = state.counters
        ends = ("finished", "aborted", "failed", "refused")
        ended = sum(counted[f"{name}_requests"] for name in ends)
        demand(ended <= counted["requests"], f"more requests ended than came: {counted}")

    def _rot(self, draw: int) -> None:
        """Let a page of a tree go bad."""
        if self._engine is None:
            return
        k = draw % len(self._engine.networks)
        cache = self._engine.scheduler.replicas[k].residency.cache
        units = cache.arrays.unit[cache.arrays.page("parent").nonzero()[0]]
        if len(units):
            unit = int(units[draw // 7 % len(units)])
            self._engine.networks[k].memory.records[unit] = BAD
            self._engine.rotten[k].add(unit)

    # --- turns

    def turn(self) -> None:
        """Let everybody have a turn, and look at what came of it."""
        if self.clock.now_s >= self._api_until_s:
            self._api_until_s = 0.0
            self.loop.run_ready()
        if self._engine is None:
            if self.clock.now_s < self._down_until_s:
                self.clock.advance_to(min(self._down_until_s, max(self._wake_s(), 1e-4)))
                return
            self._start_engine()
            self.manager.revive(ManagerEnd(self.pipes, self.loop), self.engine.ready)  # pyright: ignore[reportArgumentType]
            self._receiving = self.loop.create_task(self.manager.run())
        self.engine.scheduler.turn()
        if not self._api_until_s:
            self.loop.run_ready()
        self._look()

    def _look(self) -> None:
        engine = self.engine
        self._claims.check()
        engine.most_in_flight = max(engine.most_in_flight, self.manager.in_flight)
        if engine.launched == self._seen_steps:
            waits = any(r.status is not Status.FINISHED for r in engine.requests)
            self._idle_turns = self._idle_turns + 1 if waits else 0
            demand(self._idle_turns < MOST_IDLE_TURNS, "requests wait and nothing is computed")
            return
        self._seen_steps, self._idle_turns = engine.launched, 0
        check_sets(engine)
        check_manager(self.manager)
        if engine.launched % FULL_CHECK_STEPS == 0:
            self._audit.check()
            self._claims.check_ages(self.clock.now_s, 0.1 + 2 * self._longest_stall_s)

    def _drain(self) -> None:
        """Let all that is under way come to an end, and see that nothing is left."""
        self._start_task(self._drain_manager())
        for _ in range(MOST_DRAIN_TURNS):
            self.turn()
            if self._engine and not self.engine.requests and not any(self._live()):
                break
        else:
            keys = [client.call.key for client in self._live()]
            raise Violation(f"calls {keys} do not come to an end")
        while any(replica.in_flight for replica in self.engine.scheduler.replicas):
            self.turn()
        self._audit.check()
        self._check_empty()

    def close(self) -> None:
        """Let go of all clients; nothing more happens."""
        if self._engine is not None:
            self.counted += self._engine.counted
        for client in self._live():
            cancel(client)
        self._receiving.cancel()
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(Exception):
            self.loop.run_ready()

    async def _drain_manager(self) -> None:
        for client in self._live():
            client.draining = client.call.reader == "never"
        await self.manager.drain(1000.0)

    def _check_empty(self) -> None:
        manager = self.manager
        demand(manager.in_flight == 0, "the manager has something in flight")
        kept = manager._groups or manager._labels or manager._running
        demand(not kept, "the manager keeps calls that have ended")
        for replica in self.engine.scheduler.replicas:
            residency = replica.residency
            demand(residency.rows_used == 0, "a row is lost")
            demand(residency.points.states_held == 0, "the state of a point is lost")
            demand(residency.points.swa_held == 0, "a window of a point is lost")
            replica.reset()
            for pool in (residency.full, residency.swa):
                demand(pool.free == pool.capacity, f"units of {pool.name} are lost")
            demand(replica.in_flight is None, "a step is left in flight")
        total = self.engine.counted
        ends = sum(total[f"{how}_requests"] for how in ("finished", "aborted", "failed", "refused"))
        demand(total["requests"] == ends, f"requests and ends differ: {total}")
        ledger = self.pipes.ledger
        lost = set(ledger.sent) - ledger.ended - ledger.given_up
        demand(not lost, f"requests {lost} were never told of their end")
